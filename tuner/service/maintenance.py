"""Maintenance of the service's storage and database: check the storage regularly, and migrate the database."""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from tuner.checkpoints.storage import Storage, explained
from tuner.database.database import Database, knows_revision, older_revisions
from tuner.domain.errors import Conflict, Invalid
from tuner.domain.time import Instant, system_now
from tuner.service.bootstrap import Service
from tuner.service.periodic import PeriodicService
from tuner.service.sole_use import home_of_one, term_of
from tuner.settings import Settings
from tuner.store import copies

log = logging.getLogger("tuner.storage")

EVERY_S = 120.0  # seconds between checks; the requests cost a few cents a month in object storage


class StorageWatch(PeriodicService):
    """Check regularly whether the checkpoint storage works, and record the result in the service's health."""

    def __init__(self, service: Service) -> None:
        super().__init__("storage", every_s=EVERY_S)
        self._service = service

    def one_pass(self) -> None:
        """Check the storage by writing, reading and removing a small file.

        The name of the file is unique to this process, because several services may share a storage.
        """
        health = self._service.health
        try:
            Storage(self._service.settings.storage).probe(f"{socket.gethostname()}-{os.getpid()}")
        except Exception as error:
            if health.storage is not False:
                log.error("the checkpoint storage failed its check: %s", explained(error))
            health.storage = False
        else:
            health.storage = True


@dataclass(frozen=True, slots=True)
class Migrated:
    """The revisions of the database schema before and after a migration."""

    database: str  #: URL of the database without passwords.
    before: str | None  #: Revision before the migration; None if the database was empty.
    after: str | None  #: Revision after the migration.


def migrate(settings: Settings) -> Migrated:
    """Migrate the database to the newest revision, as a starting service does.

    Raises:
        Unavailable: The database does not answer or is newer than this code.
    """
    if not settings.database_url_file:
        settings.make_home()
    database = Database(settings.database_url, failpoint=settings.failpoint)
    try:
        before = database.revision()
        database.migrate()
        return Migrated(database.address, before, database.revision())
    finally:
        database.dispose()


NAME = "`tuner migrate --to`"


def downgrade(settings: Settings, to: str, *, now: Callable[[], Instant] = system_now) -> Migrated:
    """Migrate the database to an older revision, for an older version of tuner.

    Raises:
        Invalid: `to` is not an older revision.
        Conflict: A service or another command uses the database, or a service begins to use it meanwhile.
        Unavailable: The database does not answer or is newer than this code, or other transactions keep its tables locked.
    """
    database = Database(settings.database_url, failpoint=settings.failpoint)
    try:
        before = database.revision()
        older = older_revisions(before) if knows_revision(before) else []
        if knows_revision(before) and to not in older:
            raise Invalid.at(
                "--to",
                f"{to!r} is not a revision before {before}; the earlier revisions: {', '.join(older) or 'none'}",
            )
        led_by = copies.contents(database, now()).led_by
        if led_by is not None:
            raise Conflict(
                f"a service or command uses this database: {led_by}; "
                "stop it and all other services, and wait for ten seconds"
            )
        with home_of_one(settings, NAME), term_of(database, NAME) if older else nullcontext():
            database.downgrade(to)
        return Migrated(database.address, before, database.revision())
    finally:
        database.dispose()
