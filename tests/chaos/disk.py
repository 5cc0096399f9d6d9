"""A small disk that can be full: a file system of its own where this process may mount one, else a limit on its writers' files."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

SIZE_MB = 512


class Disk:
    """`writers`: the processes whose files cannot grow while the disk is full, where it is not mounted."""

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
                    # In small pieces, so that the last ones take what is left.
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
            # Those that have come meanwhile have inherited it.
            with suppress(psutil.Error, OSError):
                process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._limited.clear()

    def remove(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=True)
            self.is_mounted = False
        with suppress(OSError):
            os.rmdir(self.folder)
