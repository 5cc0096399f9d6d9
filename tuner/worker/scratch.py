"""Temporary directories of a process.

If a process is killed, its directory remains. The next process that creates a directory of the same kind removes it.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

LOCK = ".owner"


class Scratch:
    """A new empty directory `path`, locked by this process until it ends."""

    def __init__(self, kind: str) -> None:
        prefix = f"tuner-{kind}-"
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            if _abandoned(left):
                wipe(left)
        # The directory gets its name only once it is locked, so that another process that starts now does not take it for abandoned.
        unlocked = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
        self._lock: IO[bytes] = (unlocked / LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = unlocked.rename(unlocked.with_name(unlocked.name.removeprefix(".")))

    def close(self) -> None:
        wipe(self.path)
        self._lock.close()


def wipe(folder: Path) -> None:
    """Remove a directory with all its contents, including directories whose permissions user code removed.

    If user code has replaced the directory by a link or a file, only that is removed.
    """
    if folder.is_symlink() or folder.is_file():
        with contextlib.suppress(OSError):
            folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    for parent, names, _ in os.walk(folder):
        for path in (os.path.join(parent, name) for name in names):
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def new_directory(folder: Path, *inner: str) -> Path:
    """Remove the directory `folder` if it exists, and create it. If `inner` is given, create and return that directory within it."""
    wipe(folder)
    made = folder.joinpath(*inner)
    made.mkdir(parents=True)
    return made


def _abandoned(folder: Path) -> bool:
    """Return whether the process that created the directory is gone.

    Return False for a directory without a lock file, because its process may not have created the lock file yet. Return False for a file
    and for a directory of another user, because any user can create one with this name in `/tmp`.
    """
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        # A plain open would wait for a writer if the lock file were a FIFO.
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(lock)
    return False
