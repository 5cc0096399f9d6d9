"""Packages unpacked on this machine, one folder each by their digest, which all processes of this user share.

A folder appears whole, is for reading, and is compared with the package, file by file, each time that somebody begins to use it: user
code of this user could write there (SECURITY.md).
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

KEPT_S = 7 * 86_400.0  # after the last process began to use it


class Opened:
    """A package's folder, there until this is closed or its process ends."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path, self._lock = path, lock

    def close(self) -> None:
        self._lock.close()


def opened(package: Stored, shelf: Path | None = None) -> Opened:
    """Raises PackageLost, BadFile, OSError and what the storage does. `shelf` is the folder of folders; this user's own on this
    machine where none is given."""
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
    """Raises PermissionError where others could put something there."""
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
    """Leaves one that is what it should be as it is."""
    # It was within its limits when it was uploaded, and is the same.
    meant = archive.read(data, most_bytes=archive.MAX_RATIO * len(data) + archive.ALWAYS_BYTES)
    if folder.exists() and _files(folder) == meant.digests:
        return
    mine = f"{os.getpid()}.{threading.get_ident()}"
    beside, before = (folder.with_name(f".{kind}-{folder.name}.{mine}") for kind in ("new", "old"))
    wipe(beside)
    beside.mkdir(mode=0o700)
    try:
        archive.read(data, most_bytes=meant.size_bytes, into=beside)
        for path in [*beside.rglob("*"), beside]:
            path.chmod(0o500 if path.is_dir() else 0o400)
        if os.path.lexists(folder):
            folder.rename(before)
        beside.rename(folder)
    finally:
        wipe(beside)
        wipe(before)


def _files(folder: Path) -> dict[str, str]:
    """Digests by name. What is neither a file nor a folder is told of by no digest."""
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
    """Removes those that nobody has begun to use for long, and nobody uses."""
    for used in shelf.glob("*.used"):
        if time.time() - used.stat().st_mtime < KEPT_S:
            continue
        with used.open("ab") as file, _alone(used.with_suffix(".made")):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            wipe(used.with_suffix(""))
