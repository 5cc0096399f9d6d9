"""Copy a whole database, or replace it by a copy: SQLite with its online backup, PostgreSQL with pg_dump, pg_restore and psql.

Connection settings, including the password, are passed to PostgreSQL's programs in a service file that only this user
can read. Every user of the machine could read them on a command line.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, Connection, func, inspect, select, text
from sqlalchemy.exc import DatabaseError

from tuner.database.database import Database
from tuner.database.sqlite import create_private, sqlite3
from tuner.database.tables import jobs
from tuner.database.tables import leadership as terms
from tuner.domain.errors import BadFile, Unavailable
from tuner.domain.ledger import Account
from tuner.domain.time import Instant
from tuner.ledger import ledger
from tuner.ledger.readable import accounts
from tuner.store import leadership
from tuner.store.backup_file import Kind
from tuner.store.restore_corrections import RECORDS, RESTORING, closing_epoch

LOCKED_S = 60.0  # how long to wait for a locked SQLite file
# Parts of SQLite's messages about a file that is not a database.
NOT_A_DATABASE = ("file is not a database", "malformed", "file is encrypted")
HALF_RESTORED = "a restore of the database was interrupted"
RESTORE_AGAIN = "run `tuner restore` with the backup again"


class HalfRestored(Unavailable):
    """The database is half restored."""


def copy(source: Path, to: Path) -> None:
    """Copy the SQLite database to the new file `to`, which only its owner can read.

    The copy is one consistent state, in a single file. While the pages are copied, other processes can commit only if the database has a
    write-ahead log.

    Raises:
        BadFile: The database is damaged, so that the copy is damaged too.
        Unavailable: The database cannot be read.
    """
    if not source.is_file():
        raise Unavailable(f"the database {source} does not exist: check TUNER_HOME and TUNER_DATABASE_URL")
    os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    _copy(source, to)
    with _reading(to) as db:
        db.execute("PRAGMA journal_mode = DELETE")  # a copy has no log of its own
    check(to)


def put_in_place(source: Path, target: Path) -> Path | None:
    """Replace the contents of the SQLite database `target` by the contents of `source`, in one transaction.

    A process that has `target` open sees either the old or the new contents. If `target` is damaged, so that SQLite cannot read
    it, it is first copied with its log to other files in the same directory, and emptied.

    Returns:
        The copy of the damaged file, or None if `target` was not damaged.

    Raises:
        BadFile: The result is damaged.
        Unavailable: A file cannot be read or written, or `target` was damaged and a process has it open.
    """
    kept = None
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.exists() and not _is_readable(target):
        kept = target.with_name(f"{target.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        for suffix in ("", "-wal"):
            file, copied = (path.with_name(path.name + suffix) for path in (target, kept))
            if file.exists():
                shutil.copyfile(file, copied)
                copied.chmod(0o600)
        # The file is emptied instead of replaced by a new one. If a process still has it open, the copy below then fails.
        os.truncate(target, 0)
        target.with_name(f"{target.name}-journal").unlink(missing_ok=True)
    create_private(target)
    _copy(source, target)
    check(target)
    return kept


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the SQLite database, and close it at the end. Raise BadFile if it cannot be read."""
    try:
        with closing(_open(path)) as db:
            yield db
    except sqlite3.DatabaseError as error:
        raise BadFile(f"the database in {path} is damaged: {error}; restore an undamaged backup") from error


def check(path: Path) -> None:
    """Raise BadFile if the database is damaged."""
    with _reading(path) as db:
        faults = [row[0] for row in db.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
        faults += [
            f"{row[0]} names a row of {row[2]} that is missing"
            for row in db.execute("PRAGMA foreign_key_check")
        ]
    if faults:
        raise BadFile(
            f"the database in {path} is damaged: {'; '.join(faults[:3])}; restore an undamaged backup"
        )


def refuse_foreign_code(path: Path, known: Collection[tuple[str, str, str]]) -> None:
    """Raise BadFile if the database has a trigger or view that is not among `known`.

    Somebody may have added a trigger or view to the backup. Its SQL would run whenever the service uses the table.

    Args:
        known: Type, name and SQL text of each trigger and view of a database of this version.
    """
    for kind, name, sql in triggers_and_views(path):
        if (kind, name, sql) not in known:
            raise BadFile(
                f"the backup was altered: it has a {kind} {name[:100]!r} that tuner did not create; use another backup"
            )


def refuse_negative_balances(path: Path) -> None:
    """Raise BadFile if an account has a negative limit, or a negative amount posted or held."""
    with _reading(path) as db:
        names = [row[1] for row in db.execute("PRAGMA table_info(accounts)")]
        amounts = [name for name in names if name.startswith(("posted_", "held_", "limit_"))]
        below = " OR ".join(f'"{name}" < 0' for name in amounts)
        row = db.execute(f"SELECT job FROM accounts WHERE {below} LIMIT 1").fetchone() if below else None
    if row is not None:
        raise BadFile(
            f"the backup was altered: the account of job {str(row[0])[:100]} has a negative amount; use another backup"
        )


def triggers_and_views(path: Path) -> frozenset[tuple[str, str, str]]:
    """Return type, name and SQL text of each trigger and view. Raise BadFile if the database cannot be read."""
    query = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')"
    with _reading(path) as db:
        return frozenset((row[0], row[1], row[2] or "") for row in db.execute(query))


def _copy(source: Path, to: Path) -> None:
    try:
        with closing(_open(source)) as read, closing(_open(to)) as write:
            read.backup(write, progress=_lock_timeout(source))
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"{source} cannot be copied to {to}: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=LOCKED_S)


def _lock_timeout(source: Path) -> Callable[[int, int, int], None]:
    """Return a progress callback that raises Unavailable after LOCKED_S, because SQLite's backup waits for a lock indefinitely."""
    deadline = time.monotonic() + LOCKED_S

    def step(status: int, _left: int, _pages: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise Unavailable(f"{source} was locked for {LOCKED_S:.0f} s: stop the processes that use it")

    return step


def _is_readable(path: Path) -> bool:
    try:
        with closing(_open(path)) as db:
            db.execute("PRAGMA schema_version").fetchone()
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if any(word in str(error) for word in NOT_A_DATABASE):
            return False
        raise Unavailable(f"{path} cannot be read: {error}") from error
    return True


INSTALL = "install PostgreSQL's client programs, of the server's version or newer, such as by `apt-get install postgresql-client`"
_EMPTY = """
SET client_min_messages = warning;
DO $$
DECLARE found record;
BEGIN
  FOR found IN SELECT format('%I.%I', n.nspname, c.relname) AS name, c.relkind AS kind
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p', 'v', 'm')
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
    ORDER BY c.relkind DESC LOOP
    EXECUTE format('DROP %s IF EXISTS %s CASCADE',
      CASE found.kind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END, found.name);
  END LOOP;
  FOR found IN SELECT p.oid::regprocedure AS name
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = '{schema}' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e') LOOP
    EXECUTE format('DROP ROUTINE %s CASCADE', found.name);
  END LOOP;
  FOR found IN SELECT format('%I.%I', n.nspname, t.typname) AS name
    FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE n.nspname = '{schema}' AND t.typtype = 'e'
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = t.oid AND d.deptype = 'e') LOOP
    EXECUTE format('DROP TYPE %s CASCADE', found.name);
  END LOOP;
END $$;
"""


def dump(url: URL, schema: str, to: Path) -> None:
    """Write one consistent state of the schema to `to`, in pg_dump's custom format.

    Raises:
        Unavailable: pg_dump is missing or fails.
    """
    words = ["--format=custom", "--no-owner", "--no-privileges", f'--schema="{schema}"', f"--file={to}"]
    with _service(url) as env:
        _run("pg_dump", [*words, "--dbname=service=tuner"], env)


def load(url: URL, schema: str, dumped: Path, *, finally_sql: str) -> None:
    """Replace everything in the schema by the dump and then run `finally_sql`, all in one transaction.

    Raises:
        Unavailable: psql or pg_restore is missing or failed. The database is unchanged.
    """
    _needs("psql")
    with _service(url) as env, tempfile.TemporaryDirectory(prefix="tuner-restore-") as name:
        before, script, after = (Path(name) / part for part in ("before.sql", "dumped.sql", "after.sql"))
        before.write_text(_EMPTY.replace("{schema}", schema.replace("'", "''")))
        after.write_text(finally_sql)
        # With --schema, pg_restore does not try to create the schema, which already exists.
        words = ["--no-owner", "--no-privileges", f"--schema={schema}", f"--file={script}", str(dumped)]
        _run("pg_restore", words, env)
        _without_newer_settings(script)
        files = [f"--file={sql_file}" for sql_file in (before, script, after)]
        words = ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", *files]
        _run("psql", [*words, "--output=/dev/null", "--dbname=service=tuner"], env)


def _without_newer_settings(script: Path) -> None:
    """Comment out the setting `transaction_timeout` in the script.

    pg_restore 17 and newer writes it, but PostgreSQL servers before 17 do not know it.
    """
    with script.open("r+b") as file:
        head = file.read(4096)
        file.seek(0)
        file.write(head.replace(b"\nSET transaction_timeout", b"\n--- transaction_timeout"))


@contextmanager
def _service(url: URL) -> Iterator[dict[str, str]]:
    """Write the connection settings to a temporary service file of PostgreSQL, which exists until the end of the `with` block.

    Yield environment variables with which PostgreSQL's programs find the file, so that `service=tuner` connects to the database.
    """
    settings = {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": url.password,
        "dbname": url.database,
        **{key: value for key, value in url.query.items() if isinstance(value, str)},
    }
    lines = ["[tuner]", *(f"{key}={value}" for key, value in settings.items() if value is not None)]
    handle, name = tempfile.mkstemp(prefix="tuner-pg-")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write("\n".join(lines) + "\n")
        yield {**os.environ, "PGSERVICEFILE": name}
    finally:
        Path(name).unlink()


def _needs(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise Unavailable(f"the program {program} is needed and is not on the PATH: {INSTALL}")
    return path


def _run(program: str, arguments: Sequence[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        [_needs(program), *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
    fix = (
        f": {INSTALL}"
        if "server version mismatch" in done.stderr or "unsupported version" in done.stderr
        else ""
    )
    raise Unavailable(f"{program} failed: {'; '.join(lines[:3])[:600]}{fix}")


@dataclass(frozen=True, slots=True)
class ReplacedContents:
    """Facts about a database that a restore may replace by a copy: its accounts, whether it is empty, and its leader."""

    #: The account of each job. Empty if the accounts cannot be used: the file is damaged, is not a database of tuner, or was left by
    #: an interrupted restore.
    accounts: dict[str, Account] = field(default_factory=dict)
    empty: bool = True  #: Whether the database has neither jobs nor shared budgets.
    led_by: str | None = None  #: The service that is the current leader. None if no service leads.


def kind_of(database: Database) -> Kind:
    """Return whether the database is SQLite or PostgreSQL. Raise BadFile if it is in memory."""
    if database.is_sqlite and database.url.database in (None, "", ":memory:"):
        raise BadFile(
            "a database in memory cannot be backed up or restored: set TUNER_DATABASE_URL to a file or to PostgreSQL"
        )
    return "sqlite" if database.is_sqlite else "postgresql"


def copy_database(database: Database, to: Path) -> None:
    """Copy the database to the new file `to`.

    Other processes may use the database meanwhile. If it is SQLite with a rollback journal, their commits wait until the copy is complete.

    Raises:
        BadFile: The database is damaged.
        Unavailable: The database cannot be copied.
    """
    if kind_of(database) == "sqlite":
        copy(Path(str(database.url.database)), to)
    else:
        dump(database.url, _schema(database), to)


def put(database: Database, copy: Path, *, at: Instant) -> Path | None:
    """Replace everything in the database by the copy, in one transaction. On PostgreSQL, this also fences all earlier drivers and leaders.

    Returns:
        If the replaced SQLite file was damaged, the path of a copy of it. Otherwise None.

    Raises:
        BadFile: The database is in memory, or the SQLite database is damaged after the copy.
        Unavailable: The copy cannot be loaded. The database is unchanged, but if it was a damaged SQLite file, it may now be empty.
    """
    if kind_of(database) == "sqlite":
        database.dispose()
        return put_in_place(copy, Path(str(database.url.database)))
    schema = _schema(database)
    marks = f"COMMENT ON TABLE \"{schema}\".launches IS '{RESTORING}';\n"
    epoch = closing_epoch(at)
    fence = f"UPDATE \"{schema}\".launches SET epoch = greatest(epoch + 1, {epoch}), state = 'ended';\n"
    # Otherwise the service that led during the backup could renew its term.
    fence += f'UPDATE "{schema}".leadership SET token = greatest(token + 1, {epoch}), expires_at = 0;\n'
    database.dispose()
    load(database.url, schema, copy, finally_sql=fence + marks)
    # End all other sessions, because their prepared statements refer to tables that no longer exist.
    with database.read() as db:
        others = "datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
        db.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
    return None


def jobs_in(database: Database, copy: Path) -> int:
    """Return the number of jobs in a copy of the database.

    A dump of PostgreSQL cannot be queried, so the jobs in the database are counted. Their number may have changed since the copy.
    """
    if database.is_sqlite:
        with _reading(copy) as opened:
            return int(opened.execute("SELECT count(*) FROM jobs").fetchone()[0])
    with database.read() as db:
        return int(db.execute(select(func.count()).select_from(jobs)).scalar_one())


def contents(database: Database, now: Instant) -> ReplacedContents:
    """Return the facts about a database that a restore needs before it replaces the database.

    Raise Unavailable if the PostgreSQL server does not answer.
    """
    if database.is_sqlite and not Path(str(database.url.database)).exists():
        return ReplacedContents()
    try:
        with database.read() as db:
            return _contents(db, now)
    except (DatabaseError, Unavailable):
        if not database.is_sqlite:
            raise
        return ReplacedContents(empty=False)


def _contents(db: Connection, now: Instant) -> ReplacedContents:
    known = set(inspect(db).get_table_names())
    empty = not any(
        db.execute(text(f"SELECT 1 FROM {name} LIMIT 1")).first() for name in RECORDS if name in known
    )
    if not {"jobs", "accounts"} <= known:
        return ReplacedContents(empty=empty)
    led_by = _led_by(db, now) if "leadership" in known else None
    if is_half_restored(db):
        return ReplacedContents(empty=empty, led_by=led_by)
    return ReplacedContents(_accounts(db), empty=empty, led_by=led_by)


def is_half_restored(db: Connection) -> bool:
    """Return whether a restore replaced the database, but ended before it corrected the accounts.

    Only PostgreSQL can be in this state. A file of SQLite is replaced when the accounts are correct.
    """
    if db.dialect.name != "postgresql":
        return False
    # `to_regclass` is null if the table does not exist, as in an empty database.
    comment = db.execute(text("SELECT obj_description(to_regclass('launches'), 'pg_class')")).scalar()
    return comment == RESTORING


def refuse_half_restored(database: Database) -> None:
    """Raise HalfRestored if a restore of the database was interrupted. The schema of the database may be older than this code."""
    if database.is_sqlite:
        return  # The file may not exist yet.
    with database.read() as db:
        if is_half_restored(db):
            raise HalfRestored(f"{HALF_RESTORED}: {RESTORE_AGAIN}")


def _accounts(db: Connection) -> dict[str, Account]:
    every = db.execute(select(accounts.c.job)).scalars().all()
    return {job: ledger.account(db, job) for job in every}


def fence(database: Database, at: Instant) -> dict[str, Account]:
    """Fence all drivers that use the database, and return the accounts of its jobs, which no driver can change from then on.

    The next launches of the jobs are ordered at the same time. If the database is not replaced after all, the service launches new drivers.

    Args:
        at: The present time. The workers of drivers that run now are billed until about then.

    Raises:
        Unavailable: The database cannot be written.
    """
    with database.write("restore.fence") as db:
        # The schema may be older than this code, so only columns that every schema has are named.
        # A launch that was submitted but has sent no heartbeat keeps its time, at which the death of an earlier driver was noticed.
        db.execute(
            text(
                "UPDATE launches SET epoch = epoch + 1, state = 'wanted', wanted_at = CASE state WHEN 'running' THEN :at ELSE wanted_at END"
                " WHERE state IN ('submitted', 'running')"
            ),
            {"at": at},
        )
        return _accounts(db)


def _led_by(db: Connection, now: Instant) -> str | None:
    at = leadership.clock(db, now)
    lasts = (terms.c.expires_at > at) & (terms.c.expires_at <= at + leadership.LONGEST_NS)
    return db.execute(select(terms.c.holder).where(lasts).limit(1)).scalar()


def _schema(database: Database) -> str:
    with database.read() as db:
        schema = db.execute(text("SELECT current_schema()")).scalar()
    if schema is None:
        raise Unavailable(
            "the PostgreSQL user in TUNER_DATABASE_URL may not use any schema: run GRANT USAGE, CREATE ON SCHEMA public TO that user"
        )
    return str(schema)
