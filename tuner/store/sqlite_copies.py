"""Copy a SQLite database while others write to it, or replace one by a copy, with SQLite's online backup."""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path

from tuner.domain.errors import BadFile, Unavailable

LOCKED_S = 60.0
NOT_A_DATABASE = ("file is not a database", "malformed", "file is encrypted")


def copy(source: Path, to: Path) -> None:
    """Copy the database to the new file `to`, which only its owner can read.

    The copy is one consistent state. Other processes can commit only after all pages are copied.

    Raises:
        BadFile: The copied database is damaged.
        Unavailable: The database cannot be read.
    """
    if not source.is_file():
        raise Unavailable(
            f"there is no database {source}: is TUNER_HOME, or TUNER_DATABASE_URL, what it was?"
        )
    os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    _copy(source, to)
    check(to)


def put_in_place(source: Path, target: Path) -> Path | None:
    """Replace the contents of `target` by those of `source`, in one transaction.

    A process that has `target` open sees either the old or the new contents. If SQLite cannot read `target`, the file
    is first copied to a name next to it and emptied.

    Returns:
        The copy of the damaged file, or None if there was none.

    Raises:
        BadFile: The result is damaged.
        Unavailable: A file cannot be read or written.
    """
    kept = None
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.exists() and not _is_readable(target):
        kept = target.with_name(f"{target.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
        shutil.copyfile(target, kept)
        kept.chmod(0o600)
        # Emptied instead of replaced by a new file, so that a process that has it open sees the new contents.
        os.truncate(target, 0)
        target.with_name(f"{target.name}-journal").unlink(missing_ok=True)
    _copy(source, target)
    check(target)
    return kept


def check(path: Path) -> None:
    """Raise BadFile if the database is damaged."""
    try:
        with closing(sqlite3.connect(path, timeout=LOCKED_S)) as db:
            said = [row[0] for row in db.execute("PRAGMA integrity_check(3)")]
            said += [
                f"{row[0]} names a row of {row[2]} that is missing"
                for row in db.execute("PRAGMA foreign_key_check")
            ]
    except sqlite3.DatabaseError as error:
        said = [str(error)]
    if said != ["ok"]:
        raise BadFile(f"{path} is damaged: {'; '.join(one for one in said[:3] if one != 'ok')}")


def refuse_foreign_code(path: Path, known: Collection[tuple[str, str, str]]) -> None:
    """Raise BadFile if the database has a trigger or view that is not among `known`.

    Somebody may have added it to the backup, and its SQL would run whenever the service uses the table.

    Args:
        known: Type, name and SQL text of each trigger and view of a database of this version.
    """
    for found in triggers_and_views(path):
        if found not in known:
            raise BadFile(
                f"the backup has a {found[0]} {found[1][:100]!r} that tuner did not make: it was altered"
            )


def refuse_negative_balances(path: Path) -> None:
    """Raise BadFile if an account has a negative limit, or a negative amount posted or held."""
    try:
        with closing(_open(path)) as db:
            names = [row[1] for row in db.execute("PRAGMA table_info(accounts)")]
            amounts = [name for name in names if name.startswith(("posted_", "held_", "limit_"))]
            below = " OR ".join(f'"{name}" < 0' for name in amounts)
            found = (
                db.execute(f"SELECT job FROM accounts WHERE {below} LIMIT 1").fetchone() if below else None
            )
    except sqlite3.DatabaseError as error:
        raise BadFile(f"{path} is damaged: {error}") from error
    if found is not None:
        raise BadFile(
            f"the backup's account of job {str(found[0])[:100]} has a negative amount: it was altered"
        )


def triggers_and_views(path: Path) -> frozenset[tuple[str, str, str]]:
    """Return type, name and SQL text of each trigger and view. Raise BadFile if the database cannot be read."""
    query = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')"
    try:
        with closing(_open(path)) as db:
            return frozenset((row[0], row[1], row[2] or "") for row in db.execute(query))
    except sqlite3.DatabaseError as error:
        raise BadFile(f"{path} is damaged: {error}") from error


def _copy(source: Path, to: Path) -> None:
    try:
        with closing(_open(source)) as read, closing(_open(to)) as write:
            read.backup(write, progress=_patience(source))
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"{source} cannot be copied to {to}: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=LOCKED_S)


def _patience(source: Path) -> Callable[[int, int, int], None]:
    """Return a progress callback that raises Unavailable after LOCKED_S, because SQLite's backup waits for a lock indefinitely."""
    deadline = time.monotonic() + LOCKED_S

    def step(status: int, _left: int, _pages: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise Unavailable(f"{source} was locked for {LOCKED_S:.0f} s: who writes to it for so long?")

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
