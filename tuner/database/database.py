"""Connections and transactions for SQLite and PostgreSQL behind one interface, and migrations of the schema when a process starts.

To find out whether a database is up to date, a starting process needs only the newest revision. This module reads it from the
migration files without Alembic, because importing Alembic takes a tenth of a second.

`tuner.database.sqlite` has what only SQLite needs, and `tuner.database.postgresql` what only PostgreSQL needs.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from threading import Lock, local
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine, create_engine, insert, inspect, make_url
from sqlalchemy import Connection as Connection
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tuner.database import postgresql, sqlite
from tuner.database.failpoints import Failpoint
from tuner.database.ledger_tables import metadata
from tuner.database.tables import projects
from tuner.domain.errors import Unavailable

if TYPE_CHECKING:
    from alembic.config import Config

_WORDS = re.compile(r'^(revision|down_revision) = "(\w+)"', re.MULTILINE)


def known(migrations: Path) -> Mapping[str, str | None]:
    """Map each revision in the folder `migrations` to the revision before it. The first revision is mapped to None."""
    files = (migrations / "versions").glob("[0-9]*.py")
    headers = (dict(_WORDS.findall(file.read_text(encoding="utf-8"))) for file in files)
    return {header["revision"]: header.get("down_revision") for header in headers}


def newest(migrations: Path) -> str:
    """Return the newest revision in the folder `migrations`. No other revision names it as its predecessor."""
    revisions = known(migrations)
    (last,) = set(revisions) - set(revisions.values())
    return last


# All connections stay open, because a new one is slow: it reads the schema before its first query, and on PostgreSQL it also starts a
# server process.
CONNECTIONS = 15
# Number of the PostgreSQL advisory lock that a migration takes. The number is arbitrary, but nothing else in the database may use it.
MIGRATING = 7_205_759_403
# A migration that waits for a table lock blocks every later user of that table. If the migration and a driver wait for each other,
# PostgreSQL detects the deadlock after a second, and may end the driver's transaction. So the migration gives up after LOCKED_OUT_MS,
# pauses for GIVES_WAY_S, and tries again, up to TRIES times.
LOCKED_OUT_MS, GIVES_WAY_S, TRIES = 500, 0.5, 60
ASK_AGAIN_S = 0.2
MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """The connections to one database. Thread-safe.

    With SQLite, every write transaction takes the write lock when it begins, so that it cannot fail half-way because of another writer.

    Args:
        failpoint: For tests, the point at which this process exits (`tuner.database.failpoints`). Empty means that it does not exit.
        connect_timeout_s: How long to keep trying to connect at the beginning of a transaction if the server does not answer,
            for example because it restarts.

    Raises:
        ValueError: The URL is not usable, or `failpoint` names no failpoint. The error names the setting to correct.
    """

    def __init__(self, url: str, *, failpoint: str = "", connect_timeout_s: float = 0.0) -> None:
        self.url, self._connect_timeout_s = _url(url), connect_timeout_s
        self._failpoint = Failpoint.parse(failpoint) if failpoint else None
        self._writer_lock, self._reader_lock = Lock(), Lock()
        # Its attribute `is_writing` is True while this thread is in a write transaction.
        self._of_thread = local()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite and sqlite.sqlite3.sqlite_version_info < sqlite.OLDEST:
            raise ValueError(
                f"TUNER_DATABASE_URL: this Python has SQLite {sqlite.sqlite3.sqlite_version}, and the service needs 3.35 or later: use another "
                "Python, or PostgreSQL"
            )
        if self.is_sqlite and self.url.database:
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The size of the pool is not set for a database in memory, because each thread then has its own connection.
        options: dict[str, Any] = {"pool_size": CONNECTIONS, "max_overflow": 0} if self.url.database else {}
        if self.is_sqlite:
            options["module"] = sqlite.sqlite3
        try:
            self.engine = create_engine(
                self.url,
                connect_args={} if self.is_sqlite else {**postgresql.TIMEOUTS, **self.url.query},
                **options,
            )
        except ModuleNotFoundError as error:
            raise ValueError(
                'TUNER_DATABASE_URL: PostgreSQL needs `pip install "tuner[postgresql]"`'
            ) from error
        (sqlite if self.is_sqlite else postgresql).configure(self.engine)
        self._writing = self.engine.execution_options(write=True)

    @property
    def passwords(self) -> list[str]:
        """The passwords in the URL: the one before the host, and those among the parameters."""
        parameters = self.url.normalized_query
        given = [
            self.url.password,
            *chain.from_iterable(parameters.get(name, ()) for name in SECRET_PARAMETERS),
        ]
        return [password for password in given if password]

    @property
    def address(self) -> str:
        """The URL without its passwords, for messages."""
        return self.url.difference_update_query(SECRET_PARAMETERS).render_as_string(hide_password=True)

    @contextmanager
    def write(self, name: str = "") -> Iterator[Connection]:
        """Open a write transaction for a `with` block. The end of the block commits it, and an exception rolls it back.

        Until the end of the block, this thread cannot begin another transaction. The other transaction would need a second connection. If
        all connections are in use by threads that wait for a lock of this transaction, no thread could continue.

        Args:
            name: The name of this transaction in `tuner.database.failpoints`. A test can end the process before or after its commit.

        Raises:
            Unavailable: The database does not answer, refuses the write, or is damaged. With PostgreSQL also: another process has kept a
                lock for `postgresql.LOCKED_MS`, or this process was suspended during the transaction. Nothing was written.
            RuntimeError: This thread is already in a write transaction.
        """
        self._refuse_nested()
        with (
            _as_unavailable(),
            self._only_writer(),
            self._begun(self._writing) as connection,
            self._marked_as_writing(),
        ):
            yield connection
            if self._failpoint is not None:
                self._failpoint.reached(name, "before")
            if self.is_sqlite:
                sqlite.execute_while_locked(connection, "COMMIT")
            connection.commit()
        if self._failpoint is not None:
            self._failpoint.reached(name, "after")

    def _refuse_nested(self) -> None:
        """Raise RuntimeError if this thread is in a write transaction."""
        if getattr(self._of_thread, "is_writing", False):
            raise RuntimeError("this thread is in a write transaction; end it before beginning another one")

    @contextmanager
    def _marked_as_writing(self) -> Iterator[None]:
        self._of_thread.is_writing = True
        try:
            yield
        finally:
            self._of_thread.is_writing = False

    def _only_writer(self) -> AbstractContextManager[None]:
        """With SQLite, let only one thread of this process write in the `with` block. Other threads wait for its end.

        SQLite's own lock also allows only one writer at a time. But a thread that waits for SQLite's lock only polls it, so other threads
        could overtake the waiting thread for seconds. After `sqlite.BUSY_TIMEOUT_S` the thread proceeds anyway, because SQLite's lock still
        keeps writers apart.
        """
        return _held(self._writer_lock, sqlite.BUSY_TIMEOUT_S) if self.is_sqlite else nullcontext()

    def _only_reader(self) -> AbstractContextManager[None]:
        """With SQLite, let only one thread of this process read in the `with` block, for up to `sqlite.READ_TIMEOUT_S`.

        Simultaneous reads would share Python's interpreter, so each of them would take longer, and all of them more processor time.
        """
        return _held(self._reader_lock, sqlite.READ_TIMEOUT_S) if self.is_sqlite else nullcontext()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction for a `with` block. All its queries see the same state, with SQLite and with PostgreSQL.

        Raises:
            Unavailable: The database does not answer or is damaged.
            RuntimeError: This thread is in a write transaction.
        """
        self._refuse_nested()
        with _as_unavailable(), self._only_reader(), self._begun(self.engine) as connection:
            yield connection
            connection.commit()

    def _begun(self, engine: Engine) -> Connection:
        """Open a connection and begin a transaction. If the caller closes the connection without a commit, the transaction is rolled back.

        A connection of the pool may have been lost since its last use, for example because the server was restarted. Then the beginning of
        the transaction fails, and the next connection is tried. Nothing else was sent before, so this is safe.
        """
        lost = 0
        while True:
            connection = self._connected(engine)
            try:
                connection.begin()
                return connection
            except DBAPIError as error:
                connection.close()
                lost += 1
                if not error.connection_invalidated or lost > CONNECTIONS:
                    raise

    def _connected(self, engine: Engine) -> Connection:
        """Open a connection, retrying for `connect_timeout_s`. Retrying is safe, because no statement was sent yet."""
        deadline = time.monotonic() + self._connect_timeout_s
        while True:
            try:
                return engine.connect()
            except OperationalError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(ASK_AGAIN_S)

    def migrate(self) -> None:
        """Create the schema in an empty database, or bring an older schema up to date. Do nothing if it is up to date.

        A new schema is created from the table definitions (`tuner.database.tables`) and gets the newest revision, so the
        migrations run only on older databases.

        Several processes may call this at the same time: one migrates, and the others then find the schema up to date.
        Drivers may run meanwhile. If the migration cannot lock a table soon, it lets the drivers finish their transactions and tries again.

        With SQLite, other users of the machine lose all rights to the file.

        Raises:
            Unavailable: The database is newer than this code, or its tables stay locked.
        """
        if self.is_sqlite and (file := sqlite.file_of(self.url)) is not None:
            # The database contains the keys of webhooks, and earlier versions created files that every user of the machine could read.
            sqlite.hide_from_others(file)
        before = self.revision()
        if before == newest_revision():
            return
        for left in reversed(range(TRIES)):
            try:
                self._migrate()
                break
            except Unavailable as error:
                if not left or not _is_locked(error):
                    raise
            time.sleep(GIVES_WAY_S)
        if before is None:
            self.use_write_ahead_log()

    def use_write_ahead_log(self) -> None:
        """Switch a SQLite file from a rollback journal to a write-ahead log, for all processes that use it.

        Do nothing with PostgreSQL, with a SQLite version whose log is not safe, or while another process has locked the file.
        """
        if self.is_sqlite:
            sqlite.use_write_ahead_log(self.engine)

    def _migrate(self) -> None:
        from alembic import command  # imported here, because it is rarely needed

        with self.write("schema.migrate") as connection:
            config = self._migrating(connection)
            if _revision(connection) is not None:
                command.upgrade(config, "head")
                return
            metadata.create_all(connection, checkfirst=False)
            connection.execute(insert(projects).values(name="default", created_at=time.time_ns()))
            command.stamp(config, "head")

    def downgrade(self, to: str) -> None:
        """Take the schema back to the older revision `to`, so that an older version of tuner can use the database.

        Data that the older schema cannot store is lost.

        Raises:
            Unavailable: The database is newer than this code, or other transactions keep its tables locked.
        """
        from alembic import command

        with self.write("schema.downgrade") as connection:
            command.downgrade(self._migrating(connection), to)

    def _migrating(self, connection: Connection) -> "Config":
        """Block other migrations until the transaction ends, and return Alembic's configuration.

        Raises:
            Unavailable: The database is newer than this code.
        """
        from alembic.config import Config

        if not self.is_sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING})")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCKED_OUT_MS}")
        revision = _revision(connection)
        if not knows_revision(revision):
            raise Unavailable(
                f"the database is at revision {revision}, but this version of tuner only knows revisions up to {newest_revision()}: "
                "a newer version has upgraded the database; run that version, or restore the backup made before the upgrade"
            )
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        return config

    def revision(self) -> str | None:
        """Return the revision of the newest migration that was applied to the database, or None if none was applied."""
        with self.read() as connection:
            return _revision(connection)

    def dispose(self) -> None:
        self.engine.dispose()


@contextmanager
def _held(lock: Lock, timeout_s: float) -> Iterator[None]:
    """Hold the lock in the `with` block. If other threads keep it for longer than the timeout, run the block without it."""
    is_mine = lock.acquire(timeout=timeout_s)
    try:
        yield
    finally:
        if is_mine:
            lock.release()


DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
SECRET_PARAMETERS = ("password", "sslpassword")  #: The parameters of a PostgreSQL URL that are secret.


def _url(text: str) -> URL:
    """Parse the URL of a database. Raise ValueError if it is not supported. The error never quotes the URL, which may contain a password."""
    try:
        url = make_url(text)
    except ArgumentError:
        url = None
    if url is None or url.drivername not in DRIVERS:
        raise ValueError(
            "TUNER_DATABASE_URL, or the file that TUNER_DATABASE_URL_FILE names, has no URL of a supported database: "
            "write postgresql://USER:PASSWORD@HOST/NAME or sqlite:////PATH"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise Unavailable(f"the database does not answer: {error.orig}") from error
    except PoolTimeout as error:
        raise Unavailable(f"the database does not answer: all connections are in use: {error}") from error
    except DatabaseError as error:
        code = getattr(error.orig, "sqlstate", "")
        if code in postgresql.REFUSED:
            raise Unavailable(f"the database refused the operation: {error.orig}") from error
        if code == postgresql.WAS_IDLE:
            raise Unavailable(
                f"this process was suspended in the middle of a transaction, which was rolled back; try again: {error.orig}"
            ) from error
        if type(error) is DatabaseError:  # this is what SQLite raises for a damaged file
            raise Unavailable(f"the database is damaged; restore a backup: {error.orig}") from error
        raise


def newest_revision() -> str:
    """Return the revision of the newest migration that this code has."""
    return newest(MIGRATIONS)


def older_revisions(revision: str | None) -> list[str]:
    """Return the revisions to which a database at this revision can be downgraded, newest first."""
    previous, older = known(MIGRATIONS), list[str]()
    while (revision := previous.get(revision or "")) is not None:
        older.append(revision)
    return older


def knows_revision(revision: str | None) -> bool:
    """Return True if this code can use a database at this revision, possibly after migrating it. None means an empty database."""
    return revision is None or revision in known(MIGRATIONS)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return revision


def _is_locked(error: Unavailable) -> bool:
    """Return True if the error means that a lock could not be taken. PostgreSQL's errors for this are lock_not_available and deadlock_detected."""
    cause = error.__cause__
    return isinstance(cause, OperationalError) and getattr(cause.orig, "sqlstate", "") in ("55P03", "40P01")
