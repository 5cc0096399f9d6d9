"""Shared storage by URL, through fsspec: a folder, `s3://…`, `gs://…`, `memory://…`."""

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec

PARTIAL = ".partial-"  # begins the name of a directory that is not complete yet


class Storage:
    """Directories of files under one root. A directory of the local file system appears whole or not at all."""

    def __init__(self, url: str) -> None:
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._root = str(self._root).rstrip("/")
        self.is_local = "file" in (
            self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)
        )

    def path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def names(self, *parts: str) -> list[str]:
        """Names in a directory, sorted; none where there is no such directory."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self.path(*parts), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)

    def read(self, *parts: str) -> bytes:
        """Raises FileNotFoundError."""
        return bytes(self._fs.cat_file(self.path(*parts)))

    def put_directory(self, source: Path, last: tuple[str, bytes], *parts: str) -> None:
        """Moves the files of `source`, then writes the file `last`, whose presence says that the others are complete."""
        name, data = last
        if self.is_local:
            (source / name).write_bytes(data)
            _put_local(source, Path(self.path(*parts)))
            return
        target = self.path(*parts)
        for file in sorted(file for file in source.rglob("*") if file.is_file()):
            self._fs.put_file(str(file), f"{target}/{file.relative_to(source).as_posix()}")
        self._fs.pipe_file(f"{target}/{name}", data)
        shutil.rmtree(source, ignore_errors=True)

    def get_directory(self, files: list[str], into: Path, *parts: str) -> Path:
        """The directory's files on this machine: where they lie already, or copied into `into`."""
        if self.is_local:
            return Path(self.path(*parts))
        for name in files:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(self.path(*parts, name), str(into / name))
        return into

    def remove(self, *parts: str) -> None:
        """Removes a directory; one that is not there is no error."""
        try:
            self._fs.rm(self.path(*parts), recursive=True)
        except FileNotFoundError:
            return


def _put_local(source: Path, target: Path) -> None:
    """Synced, then renamed into place: a reader sees nothing or everything."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f"{PARTIAL}{target.name}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    shutil.move(source, beside)
    for file in beside.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    shutil.rmtree(target, ignore_errors=True)
    beside.rename(target)
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
