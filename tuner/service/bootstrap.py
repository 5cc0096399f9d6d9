"""Build a service from its settings. Only this module connects the parts of a service."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tuner.checkpoints.storage import Storage, upload_options
from tuner.database.database import Database
from tuner.domain.access import BACKGROUND, DEFAULT_PROJECT, Actor
from tuner.domain.time import Instant, system_now
from tuner.service.cluster import Cluster, RayCluster
from tuner.service.leading import Leading
from tuner.service.periodic import ServiceHealth
from tuner.service.trainables import Prober, SubprocessProber
from tuner.settings import Settings, write_private
from tuner.store import exports, launches
from tuner.store.copies import refuse_half_restored
from tuner.store.earlier_jobs import Histories
from tuner.store.queue import QueuePlaces
from tuner.worker.limits import UserCodeLimits

PROJECT = DEFAULT_PROJECT


@dataclass(frozen=True)
class Service:
    """The parts of a service, such as its database and cluster, with the actor and project of the request in progress.

    In background work, which has no request, the actor is `BACKGROUND` and the project is the default one.
    """

    settings: Settings
    database: Database
    cluster: Cluster
    prober: Prober
    now: Callable[[], Instant] = system_now
    project: str = PROJECT
    health: ServiceHealth = field(default_factory=ServiceHealth)
    histories: Histories = field(default_factory=Histories)
    queue_places: QueuePlaces = field(default_factory=QueuePlaces)
    actor: Actor = BACKGROUND

    def within(self, actor: Actor) -> Self:
        """Return a service with the same parts for another actor, in the actor's project."""
        return self._but(project=actor.project, actor=actor)

    def of(self, project: str) -> Self:
        """Return a service with the same parts in another project, for background work."""
        return self if project == self.project else self._but(project=project)

    def _but(self, **changes: Any) -> Self:
        service_copy = replace(self, **changes)
        service_copy.__dict__["leading"] = self.leading
        return service_copy

    @cached_property
    def leading(self) -> Leading:
        """Return the object through which this service takes part in the election of the leader."""
        leadership = Leading(self.database, self.now)
        self.health.leads = leadership.is_leading
        return leadership


def build(settings: Settings) -> Service:
    """Build the service, and migrate its database to the newest revision.

    Raises:
        HalfRestored: A restore of the database was interrupted. Jobs would run without what was spent after the backup.
        Unavailable: The database does not answer.
        ValueError: The storage cannot be used.
    """
    settings.make_home()
    try:
        Storage(settings.storage)
        environ = {"TUNER_STORAGE_CLASS": settings.storage_class, "TUNER_STORAGE_TAGS": settings.storage_tags}
        upload_options(settings.storage, environ)
    except (ImportError, ValueError) as error:
        raise ValueError(f"TUNER_STORAGE: {settings.storage!r} cannot be used: {error}") from error
    database = Database(settings.database_url, failpoint=settings.failpoint)
    refuse_half_restored(database)
    database.migrate()
    if database.is_sqlite:
        with database.read() as db:
            runs = [*launches.live(db), *exports.live(db)]
        # A driver or an export of an older version could not open another connection to a file with a write-ahead log.
        if not runs:
            database.use_write_ahead_log()
    if settings.passes_url_in_file and not settings.database_url_file:
        keep_url(settings.database_url_path, settings.database_url)
    limits = UserCodeLimits(
        settings.max_processes, settings.max_open_files, settings.import_memory_gib << 30, settings.pass_env
    )
    return Service(settings, database, RayCluster(settings), SubprocessProber(limits))


def keep_url(path: Path, url: str) -> None:
    """Write the database URL to the file that drivers read.

    A file that already has this URL is left unchanged, because a driver may read it at any moment. Another service with
    the same home may call this at the same time.
    """
    with suppress(FileNotFoundError):
        if path.read_text() == url:
            return
        path.unlink()
    with suppress(FileExistsError):  # another service with the same settings has just written it
        write_private(path, url)
