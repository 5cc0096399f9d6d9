"""`tuner backup`: copy the database into one file while jobs run."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.domain.errors import BadFile, Conflict
from tuner.domain.time import Instant, rfc3339
from tuner.service.bootstrap import system_now
from tuner.settings import Settings, release
from tuner.store import copies
from tuner.store.backup_file import About, digest, pack
from tuner.store.database import Database, knows_revision


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A backup that was made."""

    file: str
    bytes: int
    kind: str
    revision: str
    version: str
    taken_at: str  #: Changes after this time may be missing.
    jobs: int
    sha256: str


def backup(settings: Settings, file: Path, *, now: Callable[[], Instant] = system_now) -> BackedUp:
    """Write a backup, readable only by its owner. On any error no file is left.

    Raises:
        Conflict: The file exists, or the database is empty or newer than this version of tuner.
        BadFile: The file cannot be written, or the database is damaged.
        Unavailable: The database does not answer.
    """
    file = file.expanduser().absolute()
    if file.exists():
        raise Conflict(f"{file} is there already, and a backup is never overwritten: name another file")
    database = Database(settings.database_url)
    try:
        revision, taken_at = database.revision(), now()
        if revision is None:
            raise Conflict(
                "the database is empty: there is nothing to back up; is TUNER_HOME, or TUNER_DATABASE_URL, right?"
            )
        if not knows_revision(revision):
            raise Conflict(
                f"the database is at revision {revision}, newer than this version of tuner: back it up with that one"
            )
        with _beside(file) as folder:
            copy = folder / "copy"
            copies.take(database, copy)
            about = About(
                tuner=release(),
                revision=revision,
                kind=copies.kind_of(database),
                taken_at=taken_at,
                jobs=copies.jobs_in(database),
                size_bytes=copy.stat().st_size,
                sha256=digest(copy),
            )
            pack(copy, about, folder / "packed")
            (folder / "packed").rename(file)
        _sync(file.parent)
    finally:
        database.dispose()
    return described(file, about)


def described(file: Path, about: About) -> BackedUp:
    return BackedUp(
        str(file),
        file.stat().st_size,
        about.kind,
        about.revision,
        about.tuner,
        rfc3339(about.taken_at),
        about.jobs,
        about.sha256,
    )


@contextmanager
def _beside(file: Path) -> Iterator[Path]:
    """Create a temporary folder next to the file, on the same disk.

    Raises:
        BadFile: The folder cannot be created, or a write into it fails.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{file.name}.", dir=file.parent))
    except OSError as error:
        raise BadFile(f"nothing can be written to {file.parent}: {error.strerror}") from error
    try:
        yield folder
    except OSError as error:
        raise BadFile(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
