"""Directories of a process on its own machine, which the next such process removes where their owner was killed."""

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import IO

LOCK = ".owner"


class Scratch:
    """A new empty directory `path`, locked by this process as long as it lives."""

    def __init__(self, kind: str) -> None:
        prefix = f"tuner-{kind}-"
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            if _abandoned(left):
                shutil.rmtree(left, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock: IO[bytes] = (self.path / LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _abandoned(folder: Path) -> bool:
    """One without a lock is just being made."""
    with contextlib.suppress(OSError), (folder / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
