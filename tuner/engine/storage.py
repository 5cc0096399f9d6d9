"""Shared storage by URL, through fsspec: a folder, `s3://…`, `gs://…`."""

import errno
import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec

PROBES = ".probes"
PARTIAL = ".partial-"  # begins the name of a directory that is not complete yet
# Whoever calls tries again, and knows for how long. Left alone, botocore would try each request five times, s3fs each of
# those five times, and a storage that takes connections and never answers would hold a save for half an hour.
S3_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30, "retries": {"total_max_attempts": 1}}
S3_TRIES = 2
# What a local folder says for long. In a cloud much the same is said in passing.
LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}


class Storage:
    """Directories of files under one root. A directory appears whole or not at all, as far as its last file is looked for."""

    def __init__(self, url: str) -> None:
        self._fs: Any
        options: dict[str, Any] = {"use_listings_cache": False}
        if url.startswith(("s3://", "s3a://")):
            options |= {"config_kwargs": S3_TIMEOUTS}
        self._fs, root = fsspec.core.url_to_fs(url, **options)
        self._root = str(root).rstrip("/")
        protocols = self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)
        self.is_local = "file" in protocols
        if "s3" in protocols:
            self._fs.retries = S3_TRIES

    def path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def stays_so(self, error: Exception) -> bool:
        """Of a folder that is full, refuses access or is not there: trying again for minutes would not help."""
        if not self.is_local or not isinstance(error, OSError):
            return False
        return error.errno in LASTING or not Path(self._root).is_dir()

    def names(self, *parts: str) -> list[str]:
        """Names in a directory, sorted; none where there is no such directory."""
        try:
            found = self._fs.ls(self.path(*parts), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)

    def read(self, *parts: str) -> bytes:
        """Raises FileNotFoundError."""
        self._check_inside(*parts)
        return bytes(self._fs.cat_file(self.path(*parts)))

    def read_range(self, start: int, stop: int, *parts: str) -> bytes:
        """Return the bytes of a file from `start` up to `stop`; fewer if the file ends before. Raises FileNotFoundError."""
        self._check_inside(*parts)
        return bytes(self._fs.cat_file(self.path(*parts), start=start, end=stop))

    def size(self, *parts: str) -> int:
        """Return the size of a file in bytes. Raises FileNotFoundError."""
        self._check_inside(*parts)
        return int(self._fs.info(self.path(*parts))["size"])

    def _check_inside(self, *parts: str) -> None:
        """User code writes to a folder as the service does, and could leave links there to what others may read. The first two parts,
        which it does not choose, may be links to another disk. Raises FileNotFoundError."""
        if self.is_local:
            own, found = (os.path.realpath(self.path(*some)) for some in (parts[:2], parts))
            if found != own and not found.startswith(f"{own}{os.sep}"):
                raise FileNotFoundError(errno.ENOENT, "leads out of the storage", self.path(*parts))

    def put_directory(
        self, source: Path, last: tuple[str, bytes], *parts: str, without: Collection[str] = ()
    ) -> None:
        """Puts the files of `source` but those that are stored elsewhere, then the file `last`, whose presence says that the
        others are complete. `source` is gone afterwards, and untouched where this raises: it can be tried again."""
        name, data = last
        if self.is_local:
            _put_local(source, Path(self.path(*parts)), name, data)
        else:
            target = self.path(*parts)
            for file in sorted(file for file in source.rglob("*") if file.is_file()):
                path = file.relative_to(source).as_posix()
                if path not in without:
                    self._fs.put_file(str(file), f"{target}/{path}")
                    self._check_size(f"{target}/{path}", file.stat().st_size)
            self._fs.pipe_file(f"{target}/{name}", data)
            self._check_size(f"{target}/{name}", len(data))
        shutil.rmtree(source, ignore_errors=True)

    def put_file(self, data: bytes, *parts: str, durably: bool = False) -> None:
        """In the place of the one before, if there is one: who reads sees one or the other. `durably`: it is on the disk when this
        returns, and a cloud has taken all of it."""
        if not self.is_local:
            self._fs.pipe_file(self.path(*parts), data)
            if durably:
                self._check_size(self.path(*parts), len(data))
            return
        target = Path(self.path(*parts))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"{PARTIAL}{target.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            beside.write_bytes(data)
            if durably:
                _sync(beside)
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        if durably:
            for folder in (target.parent, target.parent.parent):
                _sync(folder)

    def put_files(self, files: Mapping[str, bytes], *parts: str) -> None:
        """At once, by their names in a directory."""
        targets = {self.path(*parts, name): data for name, data in files.items()}
        self._fs.pipe(targets)
        for target, data in targets.items():
            self._check_size(target, len(data))

    def read_files(self, names: Sequence[str], *parts: str) -> dict[str, bytes]:
        """At once, by their names in a directory. Raises FileNotFoundError."""
        paths = {self.path(*parts, name): name for name in names}
        return {paths[path]: bytes(data) for path, data in self._fs.cat(list(paths)).items()}

    def probe(self, name: str) -> None:
        """Writes a small file, reads it back and removes it. Raises what the storage does."""
        if self.is_local:
            self._fs.makedirs(self.path(PROBES), exist_ok=True)
        self.put_files({name: name.encode()}, PROBES)
        if self.read(PROBES, name) != name.encode():
            raise OSError(f"{self.path(PROBES, name)} is not what was written")
        self._fs.rm_file(self.path(PROBES, name))

    def _check_size(self, target: str, given: int) -> None:
        """Raises OSError where the storage took less, or more, than it was given."""
        stored = int(self._fs.info(target)["size"])
        if stored != given:
            raise OSError(f"{target} has {stored} bytes, of {given} that were written")

    def get_directory(self, files: list[str], into: Path, *parts: str) -> Path:
        """The directory's files on this machine: where they lie already, or copied into `into`. Raises FileNotFoundError."""
        if self.is_local:
            for name in files:
                self._check_inside(*parts, name)
            return Path(self.path(*parts))
        for name in files:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(self.path(*parts, name), str(into / name))
        return into

    def remove(self, *parts: str, first: str = "") -> None:
        """Removes a directory, the file `first` before the others; what is not there is no error."""
        for path in ([self.path(*parts, first)] if first else []) + [self.path(*parts)]:
            try:
                self._fs.rm(path, recursive=True)
            except FileNotFoundError:
                continue


def is_corrupt(error: Exception) -> bool:
    """Whether a cloud's client says that what it was given is not what was stored (botocore's FlexibleChecksumError, gcsfs's
    ChecksumError: neither need be installed)."""
    return any("Checksum" in type(one).__name__ for one in (error, error.__cause__))


def _put_local(source: Path, target: Path, last: str, data: bytes) -> None:
    """Synced, then renamed into place: a reader sees nothing or everything."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f"{PARTIAL}{target.name}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        for file in (file for file in source.rglob("*") if file.is_file()):
            _link_or_copy(file, beside / file.relative_to(source))
        (beside / last).write_bytes(data)
        for path in [*beside.rglob("*"), beside]:
            _sync(path)
        shutil.rmtree(target, ignore_errors=True)
        beside.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)  # a full disk should not stay so for what cannot be used
        raise


def _link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # on another file system, or one without links
        shutil.copyfile(source, target)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a file system says that cannot sync a folder
            raise
    finally:
        os.close(handle)
