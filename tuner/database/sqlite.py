"""SQLite: which library is used, how a file is opened, and how transactions wait for each other.

SQLite versions before 3.51.3 can corrupt a write-ahead log if several processes write (https://sqlite.org/wal.html#walresetbug). Most
systems have such a version, so the package `pysqlite3` provides a newer one. With an older version, a rollback journal is used
(docs/decisions/0001-sqlite-write-ahead-log.md).
"""

import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    import sqlite3 as sqlite3
else:
    try:
        import pysqlite3.dbapi2 as sqlite3
    except ImportError:  # it has no wheel for this platform
        import sqlite3

OLDEST = (3, 35)  # the first version with RETURNING
LOG_IS_SAFE = sqlite3.sqlite_version_info >= (3, 51, 3)
# A deferred transaction takes its read lock only at its first query, so this query is sent right after BEGIN.
LOOK = "SELECT 1 FROM sqlite_master LIMIT 1"

BUSY_TIMEOUT_S = 30.0
# A thread that has waited this long for the reads of other threads of the process proceeds.
READ_TIMEOUT_S = 1.0
# After waiting n seconds, the next try comes n / 50 s later, but at least 1 ms later.
LOOK_AGAIN_S, SLOWER = 0.001, 50


def retry_while_locked(do: Callable[[], object]) -> sqlite3.Error | None:
    """Run `do`, and repeat it while the SQLite file is locked.

    Returns:
        None if `do` succeeded. Otherwise its error: the file stayed locked for `BUSY_TIMEOUT_S`, or cannot be used at all.
    """
    began = time.monotonic()
    while True:
        try:
            do()
        except sqlite3.Error as error:
            waited_s = time.monotonic() - began
            code = getattr(error, "sqlite_errorcode", 0)  # errors that Python raises by itself have no code
            if code & 0xFF != sqlite3.SQLITE_BUSY or waited_s > BUSY_TIMEOUT_S:
                return error
            time.sleep(max(LOOK_AGAIN_S, waited_s / SLOWER))
        else:
            return None


def file_of(url: URL) -> Path | None:
    """Return the file of a SQLite database, or None for a database in memory and for a URI, which may name anything."""
    name = url.database or ":memory:"
    return None if name == ":memory:" or name.startswith("file:") else Path(name)


def create_private(file: Path) -> None:
    """Create an empty database file that only this user can read, unless the file exists. SQLite's logs get the mode of the file."""
    with suppress(OSError):  # SQLite reports why the file cannot be created
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def hide_from_others(file: Path) -> None:
    """Take all rights to a database file and its logs from other users, if the file belongs to this user.

    Rights of the group are left unchanged, because Kubernetes volumes grant them.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        path = file.with_name(file.name + suffix)
        with suppress(OSError):  # another process may remove a log, and a directory may be read-only
            facts = path.stat()
            if facts.st_uid == os.geteuid() and facts.st_mode & 0o007:
                path.chmod(facts.st_mode & 0o770)


def configure(engine: Engine) -> None:
    """Prepare each connection of the engine, and take the lock of each transaction at its beginning."""
    file = file_of(engine.url)

    @event.listens_for(engine, "do_connect")
    def _before_connect(*_: object) -> None:
        if file is not None:
            create_private(file)

    @event.listens_for(engine, "connect")
    def _on_connect(raw: Any, _record: object) -> None:
        raw.isolation_level = None  # transactions are begun explicitly in _on_begin
        if not LOG_IS_SAFE:
            raw.execute(
                "PRAGMA journal_mode = TRUNCATE"
            )  # faster than DELETE, and ends a log of another version
        for pragma in (
            "synchronous = FULL",
            "foreign_keys = ON",
            "busy_timeout = 0",  # `retry_while_locked` does the waiting
        ):
            raw.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        """Begin a transaction and take the lock that it needs, so that no later statement has to wait for the lock."""
        immediate = connection.get_execution_options().get("write", False)
        for statement in ("BEGIN IMMEDIATE",) if immediate else ("BEGIN", LOOK):
            execute_while_locked(connection, statement)


def use_write_ahead_log(engine: Engine) -> None:
    """Switch a file to a write-ahead log. Do nothing with a version whose log is not safe, or while another process has locked the file."""
    if LOG_IS_SAFE:
        with closing(engine.raw_connection()) as connection, suppress(sqlite3.OperationalError):
            connection.cursor().execute("PRAGMA journal_mode = WAL")


def execute_while_locked(connection: Connection, statement: str) -> None:
    """Execute the statement, and repeat it while the file is locked. Raise DBAPIError if it fails or the file stays locked."""
    raw: Any = connection.connection.driver_connection
    error = retry_while_locked(lambda: raw.execute(statement).fetchone())
    if error is not None:
        raise DBAPIError.instance(statement, (), error, sqlite3.Error, dialect=connection.dialect) from error
