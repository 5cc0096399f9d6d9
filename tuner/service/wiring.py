"""Settings become everything that is built: the one place where the parts are put together."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tuner.domain.access import BACKGROUND, DEFAULT_PROJECT, Actor
from tuner.domain.time import Instant
from tuner.engine.storage import Storage
from tuner.engine.worker.limits import Limits
from tuner.service.cluster import Cluster, RayCluster
from tuner.service.leading import Leading
from tuner.service.trainables import Prober, SubprocessProber
from tuner.service.vitals import Vitals
from tuner.settings import Settings, write_private
from tuner.store.database import Database

PROJECT = DEFAULT_PROJECT


def system_now() -> Instant:
    return Instant(time.time_ns())


@dataclass(frozen=True)
class Service:
    """What use cases work with, on behalf of whom, in which project: in that of the operator, and nobody's, where no request is."""

    settings: Settings
    database: Database
    cluster: Cluster
    prober: Prober
    now: Callable[[], Instant] = system_now
    project: str = PROJECT
    vitals: Vitals = field(default_factory=Vitals)
    actor: Actor = BACKGROUND

    def within(self, actor: Actor) -> Self:
        """The same service, with the same parts, on behalf of who asks and in the project of theirs."""
        return self._but(project=actor.project, actor=actor)

    def of(self, project: str) -> Self:
        """The same service in another project, where nobody asks."""
        return self if project == self.project else self._but(project=project)

    def _but(self, **changes: Any) -> Self:
        found = replace(self, **changes)
        found.__dict__["leading"] = self.leading
        return found

    @cached_property
    def leading(self) -> Leading:
        """This service's part in which of several acts."""
        found = Leading(self.database, self.now)
        self.vitals.leads = found.is_leading
        return found


def build(settings: Settings) -> Service:
    """The service over a database that is brought up to date. Raises Unavailable where the database does not answer, and
    ValueError for a storage that there is not."""
    settings.make_home()
    try:
        Storage(settings.storage)
    except (ImportError, ValueError) as error:
        raise ValueError(f"TUNER_STORAGE: {settings.storage!r} cannot be used: {error}") from error
    database = Database(settings.database_url, failpoint=settings.failpoint)
    database.migrate()
    if "@" in settings.database_url and not settings.database_url_file:
        keep_url(settings.database_url_path, settings.database_url)
    limits = Limits(
        settings.max_processes, settings.max_open_files, settings.import_memory_gib << 30, settings.pass_env
    )
    return Service(settings, database, RayCluster(settings), SubprocessProber(limits))


def keep_url(path: Path, url: str) -> None:
    """For drivers, which may look for it at any moment, and beside other services of the same home."""
    with suppress(FileNotFoundError):
        if path.read_text() == url:
            return
        path.unlink()
    with suppress(FileExistsError):  # by another service, of the same settings
        write_private(path, url)
