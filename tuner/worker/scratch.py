"""Temporary directories of a process.

If a process is killed, its directory remains. The next process that creates a directory of the same kind removes it.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import IO

from tuner.worker.background import Publisher

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


class AttemptDirectories:
    """The directories of the attempts of one supervisor. Each attempt has one, which exists from its start until its end."""

    def __init__(self, home: Path) -> None:
        """Keep the directories in `home`."""
        self._home, self._numbers, self._remover = home, count(1), Publisher()

    def new(self) -> Path:
        """Return the path of a directory for the next attempt."""
        # A short name, because sockets of user code are in this directory, and the length of their paths is limited.
        return self._home / f"a{next(self._numbers)}"

    def remove(self, directory: Path) -> None:
        """Remove the directory of an attempt that has ended, in a thread, because it may hold millions of files.

        Rename it first: a save that hung and then continues must find all files or none.
        """
        try:
            directory = directory.rename(self._home / f"ended-{time.monotonic_ns()}")
        except FileNotFoundError:  # the attempt has not begun, or user code has removed it
            return
        except OSError:  # user code has made the worker's directory read-only
            pass
        self._remover.submit(wipe, directory)

    def settle(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for directories that are being removed."""
        self._remover.settle(timeout_s)


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
