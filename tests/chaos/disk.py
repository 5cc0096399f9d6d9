"""A small disk that can be filled: a mounted file system if this process may mount one, otherwise a file size
limit on the writers.
"""

import os
import resource
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

SIZE_MB = 512


class Disk:
    """A disk of `size_mb`.

    If it cannot be mounted, the files of the processes that `writers` returns cannot grow while it is full.
    """

    def __init__(
        self, folder: Path, writers: Callable[[], Iterable[psutil.Process]], *, size_mb: int = SIZE_MB
    ) -> None:
        folder.mkdir()
        self.folder, self._writers, self._limited = folder, writers, dict[int, tuple[int, int]]()
        self._ballast = folder / "ballast"
        words = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0755", "chaos", str(folder)]
        try:
            self.is_mounted = subprocess.run(words, capture_output=True, timeout=30).returncode == 0
        except OSError:
            self.is_mounted = False

    def fill(self) -> None:
        if self.is_mounted:
            with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    # Write small pieces, so that the last ones fill the remaining space.
                    file.write(bytes(1 << 16))
            return
        for process in self._writers():
            with suppress(psutil.Error, OSError):
                before = process.rlimit(resource.RLIMIT_FSIZE)
                process.rlimit(resource.RLIMIT_FSIZE, (0, before[1]))
                self._limited[process.pid] = before

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)
        for process in self._writers() if self._limited else ():
            # Processes started in the meantime have inherited the limit.
            with suppress(psutil.Error, OSError):
                process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._limited.clear()

    def remove(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=True)
            self.is_mounted = False
        with suppress(OSError):
            os.rmdir(self.folder)
