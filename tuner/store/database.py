"""The database: one engine, read and write transactions, the schema brought up to date.

SQLite is used with a rollback journal: the API and one driver a job write to it from processes of their own, and its
write-ahead log can be corrupted by that before 3.51.3 (docs/decisions/0001-sqlite-rollback-journal.md).
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import sqlalchemy.orm  # noqa: F401  mirrors import it in a thread of theirs, and until it is whole no other thread can make a query
from sqlalchemy import URL, Engine, create_engine, event, inspect, make_url
from sqlalchemy import Connection as Connection
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tuner.domain.errors import Unavailable
from tuner.store import revisions
from tuner.store.failpoints import Failpoint
from tuner.store.sqlite_locks import BUSY_TIMEOUT_S, Turns, insist

if TYPE_CHECKING:
    from alembic.config import Config

# All are kept: one that is opened anew reads the schema, and with PostgreSQL starts a process, before its first question.
CONNECTIONS = 15
# PostgreSQL's advisory lock under which the schema is changed; any number will do that nobody else takes in this database.
MIGRATING = 7_205_759_403
# A migration that waits for a table holds up all who come after it, and one that waits for a driver which waits for it is a deadlock,
# found out by PostgreSQL after a second: it gives way before.
LOCKED_OUT_MS, GIVES_WAY_S, TRIES = 500, 0.5, 60
# PostgreSQL's codes for what it does not do: it is a standby, or its user may not.
READ_ONLY, NOT_PERMITTED = "25006", "42501"
# A server whose machine is gone, or no longer reached, says nothing: nobody waits for it longer than some twenty seconds. What the
# URL says is kept.
GONE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,  # ms
}
ASK_AGAIN_S = 0.2
# With its first question a transaction of SQLite begins to read.
LOOK = "SELECT 1 FROM sqlite_master LIMIT 1"
MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Thread-safe. Every write transaction takes the write lock at its beginning, so that none fails half-way. Raises ValueError, naming
    the setting, for a URL that cannot be used, or a failpoint that there is not. `patience_s`: a transaction that finds no server waits
    so long for one, as for one that is started again, before it begins."""

    def __init__(self, url: str, *, failpoint: str = "", patience_s: float = 0.0) -> None:
        self.url, self._patience_s = _url(url), patience_s
        self._failpoint = Failpoint.parse(failpoint) if failpoint else None
        self._one_writes = Lock()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._turns = Turns() if self.is_sqlite else None
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        pool = (
            {"pool_size": CONNECTIONS, "max_overflow": 0} if self.url.database else {}
        )  # in memory: one a thread
        try:
            self.engine = create_engine(
                self.url,
                pool_pre_ping=not self.is_sqlite,
                connect_args={} if self.is_sqlite else {**GONE, **self.url.query},
                **pool,
            )
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
        with _said(), self._turn(), self._writing() as connection, connection.begin():
            yield connection
            if self._failpoint is not None:
                self._failpoint.reached(name, "before")
            if self._turns is not None:
                with self._turns.committing():
                    _insist(connection, "COMMIT")
        if self._failpoint is not None:
            self._failpoint.reached(name, "after")

    def _writing(self) -> Connection:
        return self._connected().execution_options(write=True)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """SQLite has one writer at a time, and whoever waits looks again now and then, so that one may be passed by for seconds: in this
        process they stand in line. Who waits too long goes on to SQLite's own lock, which is what holds."""
        mine = self.is_sqlite and self._one_writes.acquire(timeout=BUSY_TIMEOUT_S)
        try:
            yield
        finally:
            if mine:
                self._one_writes.release()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view."""
        with _said(), self._reading(), self._connected() as connection, connection.begin():
            yield connection

    def _reading(self) -> AbstractContextManager[None]:
        return nullcontext() if self._turns is None else self._turns.reading()

    def _connected(self) -> Connection:
        """A connection that answers. Nothing was done yet, so that it may be asked for again."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return self.engine.connect()
            except OperationalError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(ASK_AGAIN_S)

    def migrate(self) -> None:
        """Brings the schema up to date. Safe where several processes start at once, one migrates, the others find it done, and where
        drivers are at work: it gives way to them, and tries again for a while. Nothing is written where it is up to date. Raises
        Unavailable for a database that is newer than this code."""
        if self.revision() == newest_revision():
            return
        for left in reversed(range(TRIES)):
            try:
                self._migrate()
                return
            except Unavailable as error:
                if not left or not _is_locked(error):
                    raise
            time.sleep(GIVES_WAY_S)

    def _migrate(self) -> None:
        from alembic import command  # seldom needed

        with self.write("schema.migrate") as connection:
            command.upgrade(self._migrating(connection), "head")

    def downgrade(self, to: str) -> None:
        """Takes the schema back to an older revision, for the version of tuner that knows no newer one: what it has no place for is
        gone. Raises Unavailable as `migrate` does, and where others use the database."""
        from alembic import command

        with self.write("schema.downgrade") as connection:
            command.downgrade(self._migrating(connection), to)

    def _migrating(self, connection: Connection) -> "Config":
        """Nobody else does so until the transaction ends."""
        from alembic.config import Config

        if not self.is_sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING})")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCKED_OUT_MS}")
        _refuse_newer(_revision(connection))
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        return config

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
    return revisions.newest(MIGRATIONS)


def older_revisions(revision: str | None) -> list[str]:
    """Those that a database at this revision can go back to, newest first."""
    before, found = revisions.known(MIGRATIONS), list[str]()
    while (revision := before.get(revision or "")) is not None:
        found.append(revision)
    return found


def knows_revision(revision: str | None) -> bool:
    """Whether this code can work on a database at this revision, once it is brought up to date."""
    return revision is None or revision in revisions.known(MIGRATIONS)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return found


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
            "busy_timeout = 0",  # `insist` waits
        ):
            raw.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        """Takes the lock that the transaction needs, for later no statement may have to wait for it."""
        immediate = connection.get_execution_options().get("write", False)
        for statement in ("BEGIN IMMEDIATE",) if immediate else ("BEGIN", LOOK):
            _insist(connection, statement)


def _insist(connection: Connection, statement: str) -> None:
    raw: Any = connection.connection.driver_connection
    error = insist(lambda: raw.execute(statement).fetchone())
    if error is not None:
        raise DBAPIError.instance(statement, (), error, sqlite3.Error, dialect=connection.dialect) from error
