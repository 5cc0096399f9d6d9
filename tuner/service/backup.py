"""Back up the database to a file, and restore it."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuner.checkpoints.checkpoints import CheckpointStore, Found
from tuner.checkpoints.storage import explained
from tuner.database.database import Database, knows_revision, newest_revision
from tuner.domain.errors import BadFile, Conflict
from tuner.domain.ledger import Account
from tuner.domain.time import NS, Instant, rfc3339
from tuner.service.bootstrap import system_now
from tuner.service.leading import ROLE
from tuner.settings import Settings, release
from tuner.store import copies, restore_corrections
from tuner.store.backup_file import About, digest, pack, unpack
from tuner.store.restore_corrections import Books, Checkpoint, Paused


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


AT_ONCE = 16  # number of parallel requests to the storage
FUTURE_NS = 5 * 60 * NS  # tolerance for a wrong clock of the machine that made the backup


@dataclass(frozen=True, slots=True)
class PausedJob:
    """A job that had not ended when the backup was made. The restore pauses it."""

    id: str
    name: str
    state_before: str
    settled_usd: float  #: Held in the ledger when the backup was made. The restore posts it as spent.
    #: Spent after the backup. If `exact`, it is posted as lost. Otherwise it is an upper bound, by which the budget is reduced.
    since_usd: float
    exact: bool  #: Whether `since_usd` was read from the replaced database.


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    taken_at: str  #: When the backup was made.
    version: str  #: Version of tuner that made the backup.
    revision_before: str
    revision: str
    jobs: int
    paused: tuple[PausedJob, ...]
    gone: tuple[str, ...]  #: Jobs of the replaced database that the backup does not have.
    missing: tuple[str, ...]  #: Checkpoints that the backup names and the storage does not have.
    storage_fault: str | None  #: Why the storage could not be searched for checkpoints; None if it was.
    kept: str | None  #: Where the replaced database was moved if it was damaged; otherwise None.


def restore(
    settings: Settings, file: Path, *, replace: bool, now: Callable[[], Instant] = system_now
) -> Restored:
    """Replace the database with a backup. If BadFile or Conflict is raised, nothing was changed.

    Args:
        replace: Whether a database that has jobs or shared budgets may be replaced.

    Raises:
        BadFile: The file is not a complete backup.
        Conflict: The backup does not fit this database, a service uses the database, or the database has jobs or shared
            budgets and `replace` is false.
        Unavailable: The database does not answer.
    """
    if not settings.database_url_file:
        settings.make_home()
    database = Database(settings.database_url, failpoint=settings.failpoint)
    try:
        with tempfile.TemporaryDirectory(prefix="tuner-restore-") as name:
            copy = Path(name) / "copy"
            about = unpack(file.expanduser(), copy)
            _refuse_unfit(about, database)
            _refuse_future(about, now())
            before = copies.there(database, now())
            if before.led_by is not None:
                raise Conflict(
                    f"a service works on this database: {before.led_by}; stop all services first, and wait for three seconds"
                )
            if not (before.empty or replace):
                raise Conflict(
                    "the database has jobs, or budgets above them: --replace puts the backup in their place; make a backup of them before"
                )
            known = None if before.empty or not before.readable else before.accounts
            books, kept = _put(database, copy, about, known, now(), settings.failpoint)
        missing, fault = _missing(settings, books.checkpoints)
        paused = {one.id for one in books.paused}
        gone = [one for one in missing if one.job in paused and _went_on(settings, one)]
        with database.write("restore.checkpoints") as db:
            restore_corrections.forget(db, gone)
    finally:
        database.dispose()
    return Restored(
        rfc3339(about.taken_at),
        about.tuner,
        about.revision,
        newest_revision(),
        len(books.jobs),
        tuple(_told(one) for one in books.paused),
        tuple(sorted((known or {}).keys() - books.jobs)),
        tuple(f"{one.job} {one.trial} step {one.step}" for one in missing),
        fault,
        None if kept is None else str(kept),
    )


def _refuse_unfit(about: About, database: Database) -> None:
    kind = copies.kind_of(database)
    if about.kind != kind:
        raise Conflict(
            f"it is a backup of {about.kind}, and TUNER_DATABASE_URL names {kind}: give one of the same kind"
        )
    if not knows_revision(about.revision):
        raise Conflict(
            f"it was made by tuner {about.tuner} at revision {about.revision}, and this version knows none after "
            f"{newest_revision()}: restore it with that version or a newer one"
        )


def _refuse_future(about: About, now: Instant) -> None:
    if about.taken_at > now + FUTURE_NS:
        raise BadFile(
            f"it says that it was made at {rfc3339(about.taken_at)}, which is in the future: set this machine's clock right, or take "
            "another backup"
        )


def _refuse_altered(copy: Path) -> None:
    """Raise BadFile if a SQLite copy has code or balances that tuner cannot have written.

    The backup's seal (a digest) does not prove this, because anybody who alters a backup can compute a new
    seal.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-restore-") as name:
        fresh = Path(name) / "fresh"
        database = Database(f"sqlite:///{fresh}")
        try:
            database.migrate()
        finally:
            database.dispose()
        copies.refuse_foreign_code(copy, copies.triggers_and_views(fresh))
    copies.refuse_negative_balances(copy)


def _put(
    database: Database,
    copy: Path,
    about: About,
    known: Mapping[str, Account] | None,
    now: Instant,
    failpoint: str,
) -> tuple[Books, Path | None]:
    """Replace the database by the backup. Return its corrected content, and where a damaged database was moved.

    With SQLite the money is corrected before the backup becomes the database. With PostgreSQL old drivers are fenced
    when the backup is loaded, and the money is corrected right after that.
    """
    if about.kind == "postgresql":
        copies.put(database, copy, at=now)
        return _made_right(database, about, known, now), None
    _refuse_altered(copy)
    staged = Database(f"sqlite:///{copy}", failpoint=failpoint)
    try:
        books = _made_right(staged, about, known, now)
    finally:
        staged.dispose()
    return books, copies.put(database, copy, at=now)


def _made_right(database: Database, about: About, known: Mapping[str, Account] | None, now: Instant) -> Books:
    database.migrate()
    with database.write("restore.books") as db:
        return restore_corrections.close(db, taken_at=about.taken_at, at=now, role=ROLE, replaced=known)


def _missing(settings: Settings, named: Sequence[Checkpoint]) -> tuple[list[Checkpoint], str | None]:
    """Return the checkpoints that the storage does not have. If that cannot be determined, return none and the reason."""
    stores = {one.job: CheckpointStore(settings.storage, one.project, one.job) for one in named}

    def is_there(one: Checkpoint) -> bool:
        return stores[one.job].has(one.trial, Found(one.step, one.attempt))

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(is_there, named))
    except Exception as error:  # every storage backend raises its own error types
        return [], f"{settings.storage}: {explained(error)}"
    return [one for one, has in zip(named, found, strict=True) if not has], None


def _went_on(settings: Settings, missing: Checkpoint) -> bool:
    """Return whether the storage has a later checkpoint of the same trial.

    If it has, retention removed the missing one. If not, this may be the wrong storage. The missing checkpoint then
    stays in the database, and a trial that resumes from it reports the fault.
    """
    try:
        found = CheckpointStore(settings.storage, missing.project, missing.job).found(missing.trial)
    except Exception:
        # every storage backend raises its own error types; in doubt the checkpoint stays recorded
        return False
    return any(one.step > missing.step for one in found)


def _told(one: Paused) -> PausedJob:
    return PausedJob(one.id, one.name, one.state, one.settled.usd.usd, one.since.usd.usd, one.exactly)
