"""Back up the database to a file, and restore it."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tuner.checkpoints.checkpoints import CheckpointId, CheckpointStore
from tuner.checkpoints.storage import explained
from tuner.database.database import Database, knows_revision, newest_revision
from tuner.domain.errors import BadFile, Conflict, Unavailable
from tuner.domain.ledger import Account
from tuner.domain.time import NS, Instant, rfc3339, system_now
from tuner.service.leading import ROLE
from tuner.service.sole_use import home_of_one, term_of
from tuner.settings import Settings, release
from tuner.store import copies, restore_corrections
from tuner.store.backup_file import About, digest, pack, unpack
from tuner.store.restore_corrections import CheckpointKey, RestoredRows
from tuner.store.restore_corrections import PausedJob as PausedJob


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A description of a backup that was just written."""

    file: str
    bytes: int
    kind: str  #: The kind of database, `sqlite` or `postgresql`.
    revision: str  #: Schema revision of the database.
    version: str  #: Version of tuner that made the backup.
    taken_at: str  #: Changes after this time may be missing.
    jobs: int  #: Number of jobs in the backup.
    sha256: str  #: Digest of the copy of the database in the backup.


def backup(settings: Settings, file: Path, *, now: Callable[[], Instant] = system_now) -> BackedUp:
    """Write a backup of the database to a file that only its owner can read. If the backup fails, no file is left.

    Raises:
        Conflict: The file exists, or the database is empty or newer than this version of tuner.
        BadFile: The file cannot be written, or the database is damaged.
        Unavailable: The database does not answer.
    """
    file = file.expanduser().absolute()
    exists = f"{file} already exists, and a backup is never overwritten: name another file"
    if file.exists():
        raise Conflict(exists)
    database = Database(settings.database_url)
    try:
        revision, taken_at = database.revision(), now()
        if revision is None:
            raise Conflict(
                "the database is empty: there is nothing to back up; check TUNER_HOME and TUNER_DATABASE_URL"
            )
        if not knows_revision(revision):
            raise Conflict(
                f"the database is at revision {revision}, newer than this version of tuner: back up the database with the newer version of tuner"
            )
        with _folder_next_to(file) as folder:
            copy = folder / "copy"
            copies.copy_database(database, copy)
            about = About(
                tuner=release(),
                revision=revision,
                kind=copies.kind_of(database),
                taken_at=taken_at,
                jobs=copies.jobs_in(database, copy),
                size_bytes=copy.stat().st_size,
                sha256=digest(copy),
            )
            pack(copy, about, folder / "packed")
            # Another backup may have written the file meanwhile. A hard link would refuse that too, but not all file systems have links.
            try:
                file.touch(exist_ok=False)
            except FileExistsError:
                raise Conflict(exists) from None
            try:
                (folder / "packed").rename(file)
            except BaseException:
                file.unlink(missing_ok=True)
                raise
        _sync(file.parent)
    finally:
        database.dispose()
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
def _folder_next_to(file: Path) -> Iterator[Path]:
    """Yield a temporary folder next to the file and remove it afterwards.

    The folder is on the same disk as the file, so that the finished backup can be renamed to the file atomically.

    Raises:
        BadFile: The folder cannot be created, or the code of the `with` block cannot write a file.
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


NAME = "`tuner restore`"
AT_ONCE = 16  # Number of parallel requests to the storage.
# A backup may be dated this far in the future, because the clock of the machine that made it may be fast.
FUTURE_NS = 5 * 60 * NS


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    database: str  #: URL of the restored database without passwords.
    taken_at: str  #: When the backup was made.
    version: str  #: Version of tuner that made the backup.
    revision_before: str  #: Schema revision of the backup.
    revision: str  #: Schema revision of the restored database.
    jobs: int  #: Number of jobs in the restored database.
    paused: tuple[PausedJob, ...]
    #: Jobs that had ended or were being cancelled, and whose spend after the backup is not known. The rest of their budgets was subtracted.
    lowered: tuple[str, ...]
    gone: tuple[str, ...]  #: Jobs of the replaced database that the backup does not have.
    missing: tuple[str, ...]  #: Checkpoints that the backup names and the storage does not have.
    #: The storage, if it has none of the trials' checkpoints, so that TUNER_STORAGE may be wrong; otherwise None.
    empty_storage: str | None
    #: Why the storage could not be searched for checkpoints; None if the search succeeded.
    storage_fault: str | None
    kept: str | None  #: Path of a copy of the replaced database if that database was damaged; otherwise None.


def restore(
    settings: Settings,
    file: Path,
    *,
    replace: bool,
    nothing_spent: bool = False,
    now: Callable[[], Instant] = system_now,
) -> Restored:
    """Replace the database with a backup. If BadFile or Conflict is raised, the database is unchanged.

    No service can lead meanwhile. Otherwise it would launch drivers, and what they spend would be missing from the restored accounts.
    With SQLite, the lock on TUNER_HOME prevents this, and with PostgreSQL a term of the restore.

    Args:
        replace: Whether a database that has jobs or shared budgets may be replaced.
        nothing_spent: Whether the operator knows that no job has spent money since the backup. It counts only for jobs that cannot be read
            from the replaced database.

    Raises:
        BadFile: The file is not a complete and unaltered backup, or is dated in the future.
        Conflict: The backup is of another kind of database or of a newer version of tuner, a service uses the database, or
            the database has jobs or shared budgets and `replace` is false.
        Unavailable: The database does not answer.
    """
    if not settings.database_url_file:
        settings.make_home()
    with home_of_one(settings, NAME):
        return _restore(settings, file, replace, nothing_spent, now)


def _restore(
    settings: Settings, file: Path, replace: bool, nothing_spent: bool, now: Callable[[], Instant]
) -> Restored:
    database = Database(settings.database_url, failpoint=settings.failpoint)
    try:
        with tempfile.TemporaryDirectory(prefix="tuner-restore-") as name:
            copy = Path(name) / "copy"
            about = unpack(file.expanduser(), copy)
            _refuse_unfit(about, database, now())
            before = copies.contents(database, now())
            if before.led_by is not None:
                raise Conflict(
                    f"a service or command uses this database: {before.led_by}; "
                    "stop it and all other services, and wait for ten seconds"
                )
            if not (before.empty or replace):
                raise Conflict(
                    "the database has jobs or shared budgets: back it up first, and then replace it with --replace"
                )
            accounts = before.accounts
            rows, kept = _put(database, copy, about, accounts, nothing_spent, now(), settings.failpoint)
        missing, fault = _missing(settings, rows.checkpoints)
        paused = {job.id for job in rows.paused}
        gone = [key for key in missing if key.job in paused and _has_later(settings, key)]
        with database.write("restore.checkpoints") as db:
            restore_corrections.forget(db, gone)
    finally:
        database.dispose()
    return Restored(
        database.address,
        rfc3339(about.taken_at),
        about.tuner,
        about.revision,
        newest_revision(),
        len(rows.jobs),
        rows.paused,
        rows.lowered,
        tuple(sorted(before.accounts.keys() - rows.jobs)),
        tuple(f"{key.job} {key.trial} step {key.step}" for key in missing),
        settings.storage if missing and len(missing) == len(rows.checkpoints) and not gone else None,
        fault,
        None if kept is None else str(kept),
    )


def _refuse_unfit(about: About, database: Database, now: Instant) -> None:
    kind = copies.kind_of(database)
    if about.kind != kind:
        raise Conflict(
            f"the file is a backup of {about.kind}, but TUNER_DATABASE_URL names {kind}: give a backup of the same kind of database"
        )
    if not knows_revision(about.revision):
        raise Conflict(
            f"the backup was made by tuner {about.tuner} at revision {about.revision}, but this version only knows revisions up to "
            f"{newest_revision()}: restore the backup with that version or a newer one"
        )
    if about.taken_at > now + FUTURE_NS:
        raise BadFile(
            f"the time of the backup, {rfc3339(about.taken_at)}, is in the future: correct this machine's clock, or use another backup"
        )


def _refuse_altered(copy: Path) -> None:
    """Raise BadFile if the SQLite database in a backup has a negative balance, or a trigger or view that tuner did not create.

    The digest in the backup does not reveal such a change, because anybody who alters a backup can compute a new digest.
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
    replaced: Mapping[str, Account],
    nothing_spent: bool,
    now: Instant,
    failpoint: str,
) -> tuple[RestoredRows, Path | None]:
    """Replace the database with the backup, and correct the accounts for what jobs spent after the backup.

    With SQLite, the accounts are corrected before the backup replaces the database. With PostgreSQL, they are corrected
    after the backup is loaded. No old driver can write in between, because loading also fences old drivers.

    Args:
        replaced: The accounts of the replaced database, by job. They are read again after old drivers are fenced there.
        nothing_spent: As for `restore`.

    Returns:
        The contents of the restored database, and the path of a copy of the replaced database. The path is None if the
        replaced database was not damaged.
    """
    if about.kind == "postgresql":
        # Without accounts, the replaced database has no job that a service could launch, or a restore of it was interrupted.
        with term_of(database, NAME) if replaced else nullcontext() as term:
            replaced = _fenced(database, replaced, now)
            if term is not None:
                term.check()
            copies.put(database, copy, at=now)
        # The accounts are not correct yet, so no service can begin a term.
        return _correct(database, about, replaced, nothing_spent, now), None
    _refuse_altered(copy)
    replaced = _fenced(database, replaced, now)
    staged = Database(f"sqlite:///{copy}", failpoint=failpoint)
    try:
        rows = _correct(staged, about, replaced, nothing_spent, now)
    finally:
        staged.dispose()
    return rows, copies.put(database, copy, at=now)


def _fenced(database: Database, replaced: Mapping[str, Account], now: Instant) -> Mapping[str, Account]:
    """Fence the drivers that use the database that is to be replaced, and return its accounts from then on.

    A driver that still ran could otherwise spend more after the accounts were read. If the accounts could not be read, return `replaced`
    unchanged, and also if a damaged SQLite database can be read but not written.
    """
    if not replaced:
        return replaced
    try:
        return copies.fence(database, now)
    except Unavailable:
        if not database.is_sqlite:
            raise
        return replaced


def _correct(
    database: Database, about: About, replaced: Mapping[str, Account], nothing_spent: bool, now: Instant
) -> RestoredRows:
    database.migrate()
    with database.write("restore.accounts") as db:
        return restore_corrections.close(
            db,
            taken_at=about.taken_at,
            at=now,
            role=ROLE,
            replaced=replaced,
            nothing_spent=nothing_spent,
        )


def _missing(settings: Settings, keys: Sequence[CheckpointKey]) -> tuple[list[CheckpointKey], str | None]:
    """Return the checkpoints in `keys` that the storage does not have, and None.

    If the storage cannot be searched, return an empty list, and the reason as a text.
    """
    stores = {key.job: CheckpointStore(settings.storage, key.project, key.job) for key in keys}

    def is_there(key: CheckpointKey) -> bool:
        return stores[key.job].has(key.trial, CheckpointId(key.step, key.attempt))

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            exists = list(pool.map(is_there, keys))
    except Exception as error:  # every storage backend raises its own error types
        return [], f"{settings.storage}: {explained(error)}"
    return [key for key, has in zip(keys, exists, strict=True) if not has], None


def _has_later(settings: Settings, missing: CheckpointKey) -> bool:
    """Return whether the storage has a later checkpoint of the same trial than the missing checkpoint.

    If so, retention removed the missing checkpoint after the backup, and `restore` can remove it from the database. If not,
    the settings may name the wrong storage. `restore` then keeps the missing checkpoint in the database, and a trial that
    resumes from this checkpoint reports the fault.
    """
    try:
        stored = CheckpointStore(settings.storage, missing.project, missing.job).ids(missing.trial)
    except Exception:
        # Every storage backend raises its own error types. If the answer is unknown, the checkpoint stays recorded.
        return False
    return any(checkpoint.step > missing.step for checkpoint in stored)
