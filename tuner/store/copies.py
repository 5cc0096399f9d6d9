"""Copy a whole database, or replace one by a copy: SQLite with its online backup, PostgreSQL with its own programs."""

from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.exc import DatabaseError

from tuner.domain.errors import BadFile, Unavailable
from tuner.domain.ledger import Account
from tuner.domain.time import Instant
from tuner.store import leadership, ledger, postgres_programs, sqlite_copies
from tuner.store.backup_file import Kind
from tuner.store.database import Database
from tuner.store.restored import RECORDS, RESTORING, closing_epoch
from tuner.store.tables import accounts, jobs
from tuner.store.tables import leadership as terms


@dataclass(frozen=True, slots=True)
class There:
    """The relevant contents of a database that is about to be replaced by a copy."""

    accounts: dict[str, Account] = field(default_factory=dict)  #: The account of each job.
    empty: bool = True  #: Whether the database has neither jobs nor shared budgets.
    #: False if the accounts cannot be read: the file is damaged or not a database of tuner, or a restore was interrupted.
    readable: bool = True
    led_by: str | None = None  #: The service that is the current leader.


def kind_of(database: Database) -> Kind:
    """Return the kind of the database. Raise BadFile if it is in memory."""
    if database.is_sqlite and database.url.database in (None, "", ":memory:"):
        raise BadFile("a database in memory cannot be backed up, nor restored")
    return "sqlite" if database.is_sqlite else "postgresql"


def take(database: Database, to: Path) -> None:
    """Copy the database to the new file `to`. Other processes may write to the database meanwhile.

    Raises:
        BadFile: The database is damaged.
        Unavailable: The database cannot be copied.
    """
    if kind_of(database) == "sqlite":
        sqlite_copies.copy(Path(str(database.url.database)), to)
    else:
        postgres_programs.dump(database.url, _schema(database), to)


def put(database: Database, copy: Path, *, at: Instant) -> Path | None:
    """Replace everything in the database by the copy, in one transaction. On PostgreSQL this also fences earlier drivers.

    Returns:
        Path of a copy of the SQLite file that was replaced, if that file was damaged. Otherwise None.

    Raises:
        Unavailable: The copy cannot be loaded, and nothing has changed.
    """
    if kind_of(database) == "sqlite":
        database.dispose()
        return sqlite_copies.put_in_place(copy, Path(str(database.url.database)))
    schema = _schema(database)
    marks = f"COMMENT ON TABLE \"{schema}\".launches IS '{RESTORING}';\n"
    fence = f"UPDATE \"{schema}\".launches SET epoch = greatest(epoch + 1, {closing_epoch(at)}), state = 'ended';\n"
    database.dispose()
    postgres_programs.load(database.url, schema, copy, finally_sql=fence + marks)
    # Other sessions are ended, because their prepared statements refer to tables that no longer exist.
    with database.read() as db:
        others = "datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
        db.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
    return None


def jobs_in(database: Database) -> int:
    with database.read() as db:
        return int(db.execute(select(func.count()).select_from(jobs)).scalar_one())


def there(database: Database, now: Instant) -> There:
    """Return what the database contains. Raise Unavailable if the PostgreSQL server does not answer."""
    if database.is_sqlite and not Path(str(database.url.database)).exists():
        return There()
    try:
        with database.read() as db:
            return _there(db, now)
    except (DatabaseError, Unavailable):
        if not database.is_sqlite:
            raise
        return There(empty=False, readable=False)


def _there(db: Connection, now: Instant) -> There:
    known = set(inspect(db).get_table_names())
    empty = not any(
        db.execute(text(f"SELECT 1 FROM {name} LIMIT 1")).first() for name in RECORDS if name in known
    )
    if not {"jobs", "accounts"} <= known:
        return There(empty=empty)
    led_by = _led_by(db, now) if "leadership" in known else None
    if db.dialect.name == "postgresql":
        said = db.execute(text("SELECT obj_description('launches'::regclass, 'pg_class')")).scalar()
        if said == RESTORING:
            return There(empty=empty, readable=False, led_by=led_by)
    every = db.execute(select(accounts.c.job)).scalars().all()
    return There({job: ledger.account(db, job) for job in every}, empty=empty, led_by=led_by)


def _led_by(db: Connection, now: Instant) -> str | None:
    at = leadership.clock(db, now)
    lasts = (terms.c.expires_at > at) & (terms.c.expires_at <= at + leadership.LONGEST_NS)
    return db.execute(select(terms.c.holder).where(lasts).limit(1)).scalar()


def _schema(database: Database) -> str:
    with database.read() as db:
        found = db.execute(text("SELECT current_schema()")).scalar()
    if found is None:
        raise Unavailable(
            "the database has no schema that this user may use: GRANT USAGE, CREATE ON SCHEMA public to it"
        )
    return str(found)
