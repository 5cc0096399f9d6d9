"""Unpacked packages on this machine, in one folder per digest. All processes of this user share them.

A folder is created atomically and is read-only. Each time a process opens it, its files are compared with the package, because user
code of the same user could have changed them (see SECURITY.md).
"""

import fcntl
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tuner.engine.packages import archive
from tuner.engine.packages.stored import Stored
from tuner.engine.scratch import wipe

KEPT_S = 7 * 86_400.0  # how long a folder is kept after it was last opened


class Opened:
    """An open package. Its folder is not deleted until this is closed or the process ends."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path, self._lock = path, lock

    def close(self) -> None:
        self._lock.close()


def opened(package: Stored, shelf: Path | None = None) -> Opened:
    """Fetch a package, unpack it if needed, and return its folder. Also delete old folders that are not in use.

    Args:
        package: The package in storage.
        shelf: The folder that contains the folders of all packages. None means this user's folder on this machine.

    Raises:
        PackageLost: The package is missing in storage or was changed there.
        BadFile: The package is not allowed.
        OSError: The folder cannot be written, or is not owned by this user alone.
        Exception: Any error of the storage.
    """
    data = package.get()
    shelf = shelf or Path(tempfile.gettempdir(), f"tuner-packages-{os.getuid()}")
    _check_own(shelf)
    folder = shelf / package.digest
    with _alone(shelf / f"{package.digest}.made"):
        in_use = (shelf / f"{package.digest}.used").open("ab")
        fcntl.flock(in_use, fcntl.LOCK_SH)
        os.utime(in_use.fileno())
        try:
            _make(data, folder)
        except BaseException:
            in_use.close()
            raise
    _tidy(shelf)
    return Opened(folder, in_use)


def _check_own(shelf: Path) -> None:
    """Create the folder if needed. Raise PermissionError if other users could write to it."""
    shelf.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = shelf.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(
            f"{shelf} has to be a folder of this user in which nobody else may write: remove it"
        )


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(data: bytes, folder: Path) -> None:
    """Unpack a package into a folder, atomically. Leave the folder unchanged if its files already match the package."""
    # The digest shows that this is the package that was checked against its size limit when it was uploaded.
    meant = archive.read_archive(data, most_bytes=archive.MAX_RATIO * len(data) + archive.ALWAYS_BYTES)
    if folder.exists() and _digests(folder) == meant.digests:
        return
    mine = f"{os.getpid()}.{threading.get_ident()}"
    beside, before = (folder.with_name(f".{kind}-{folder.name}.{mine}") for kind in ("new", "old"))
    wipe(beside)
    beside.mkdir(mode=0o700)
    try:
        archive.read_archive(data, most_bytes=meant.size_bytes, into=beside)
        for path in [*beside.rglob("*"), beside]:
            path.chmod(0o500 if path.is_dir() else 0o400)
        if os.path.lexists(folder):
            folder.rename(before)
        beside.rename(folder)
    finally:
        wipe(beside)
        wipe(before)


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file by its name. For a link or special file, return a text that equals no digest."""
    found = {}
    for parent, names, others in os.walk(folder):
        linked = [name for name in names if os.path.islink(os.path.join(parent, name))]
        for path in (Path(parent, name) for name in [*others, *linked]):
            plain = stat.S_ISREG(path.lstat().st_mode)
            found[path.relative_to(folder).as_posix()] = _digest(path) if plain else "no file"
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tidy(shelf: Path) -> None:
    """Delete folders that were not opened for `KEPT_S` and are not in use."""
    for used in shelf.glob("*.used"):
        if time.time() - used.stat().st_mtime < KEPT_S:
            continue
        with used.open("ab") as file, _alone(used.with_suffix(".made")):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            wipe(used.with_suffix(""))
