"""The database: one engine, read and write transactions, the schema brought up to date.

SQLite is used with a rollback journal: the API and one driver a job write to it from processes of their own, and its
write-ahead log can be corrupted by that before 3.51.3 (docs/decisions/0001-sqlite-rollback-journal.md).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy import Connection as Connection
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tuner.domain.errors import Unavailable
from tuner.store.failpoints import Failpoint

BUSY_TIMEOUT_MS = 30_000
# PostgreSQL's advisory lock under which the schema is changed; any number will do that nobody else takes in this database.
MIGRATING = 7_205_759_403
# A migration that waits for a table holds up all who come after it, and one that waits for a driver which waits for it is a deadlock,
# found out by PostgreSQL after a second: it gives way before.
LOCKED_OUT_MS, GIVES_WAY_S, TRIES = 500, 0.5, 60
# PostgreSQL's codes for what it does not do: it is a standby, or its user may not.
READ_ONLY, NOT_PERMITTED = "25006", "42501"
MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Thread-safe. Every write transaction takes the write lock at its beginning, so that none fails half-way. Raises ValueError, naming
    the setting, for a URL that cannot be used, or a failpoint that there is not."""

    def __init__(self, url: str, *, failpoint: str = "") -> None:
        self.url = _url(url)
        self._failpoint = Failpoint.parse(failpoint) if failpoint else None
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.engine = create_engine(self.url, pool_pre_ping=not self.is_sqlite)
        except ModuleNotFoundError as error:
            raise ValueError(
                'TUNER_DATABASE_URL: PostgreSQL needs `pip install "tuner[postgresql]"`'
            ) from error
        if self.is_sqlite:
            _listen_sqlite(self.engine)

    @contextmanager
    def write(self, name: str = "") -> Iterator[Connection]:
        """Commits at the end of the block; an exception undoes all of it. Raises Unavailable where the database does not answer.
        `name`: what is committed, as `tuner.store.failpoints` has it."""
        with _said(), self.engine.connect().execution_options(write=True) as connection, connection.begin():
            yield connection
            if self._failpoint is not None:
                self._failpoint.reached(name, "before")
        if self._failpoint is not None:
            self._failpoint.reached(name, "after")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view."""
        with _said(), self.engine.connect() as connection, connection.begin():
            yield connection

    def migrate(self) -> None:
        """Brings the schema up to date. Safe where several processes start at once, one migrates, the others find it done, and where
        drivers are at work: it gives way to them, and tries again for a while. Raises Unavailable for a database that is newer than
        this code."""
        for left in reversed(range(TRIES)):
            try:
                self._migrate()
                return
            except Unavailable as error:
                if not left or not _is_locked(error):
                    raise
            time.sleep(GIVES_WAY_S)

    def _migrate(self) -> None:
        with self.write("schema.migrate") as connection:
            if not self.is_sqlite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING})")
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCKED_OUT_MS}")
            _refuse_newer(_revision(connection))
            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def revision(self) -> str | None:
        """The newest migration that the database has seen; None before the first."""
        with self.read() as connection:
            return _revision(connection)

    def dispose(self) -> None:
        self.engine.dispose()


def _url(text: str) -> URL:
    """Nothing of the text is told: it may have a password."""
    try:
        url = make_url(text)
    except ArgumentError:
        url = None
    if url is None or url.get_backend_name() not in ("sqlite", "postgresql"):
        raise ValueError(
            "TUNER_DATABASE_URL: it is no URL of a database that can be used, in the file of TUNER_DATABASE_URL_FILE if that is set: "
            "write postgresql://USER:PASSWORD@HOST/NAME or sqlite:////PATH"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise Unavailable(f"the database does not answer: {error.orig}") from error
    except PoolTimeout as error:
        raise Unavailable(f"the database does not answer, all connections wait for it: {error}") from error
    except DatabaseError as error:
        if getattr(error.orig, "sqlstate", "") in (READ_ONLY, NOT_PERMITTED):
            raise Unavailable(f"the database refuses: {error.orig}") from error
        if type(error) is DatabaseError:  # SQLite's word for a file that is damaged
            raise Unavailable(f"the database is damaged, restore a backup: {error.orig}") from error
        raise


def newest_revision() -> str:
    """The newest migration that this code knows."""
    (found,) = ScriptDirectory(str(MIGRATIONS)).get_heads()
    return found


def knows_revision(revision: str | None) -> bool:
    """Whether this code can work on a database at this revision, once it is brought up to date."""
    known = {one.revision for one in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    return revision is None or revision in known


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_locked(error: Unavailable) -> bool:
    """Whether another transaction had a table for too long: lock_not_available or deadlock_detected."""
    cause = error.__cause__
    return isinstance(cause, OperationalError) and getattr(cause.orig, "sqlstate", "") in ("55P03", "40P01")


def _refuse_newer(revision: str | None) -> None:
    if not knows_revision(revision):
        raise Unavailable(
            f"the database is at revision {revision}, and this version of tuner knows none after {newest_revision()}: "
            "a newer version has upgraded it; run that version, or restore the backup made before"
        )


def _listen_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(raw: Any, _record: object) -> None:
        raw.isolation_level = None  # transactions are begun below, not by the driver's guess
        for pragma in (
            "journal_mode = TRUNCATE",
            "synchronous = FULL",
            "foreign_keys = ON",
            f"busy_timeout = {BUSY_TIMEOUT_MS}",
        ):
            raw.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
