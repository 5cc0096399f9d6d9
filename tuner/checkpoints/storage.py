"""Read and write shared storage through fsspec: a folder, or object storage such as `s3://…`. Advise users about storage errors."""

import contextlib
import errno
import importlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlencode

import fsspec

PROBES = ".probes"
PARTIAL = ".partial-"  # begins the name of a directory that is not complete yet
# Few tries per request, because the callers retry and limit the total time. By default botocore would try each
# request five times and s3fs each of those five times, so a storage that accepts connections and never
# answers would hold up a save for half an hour.
S3_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 30, "retries": {"total_max_attempts": 1}}
S3_TRIES = 2
# Errors of a local folder that do not go away within minutes. Similar errors of a cloud may be temporary.
LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR}
# Storage classes whose files can be read at once. Others, such as S3's GLACIER, would have to be restored for hours first.
STORAGE_CLASSES = {
    "s3": ("STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"),
    "gs": ("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"),
    "abfs": ("Hot", "Cool", "Cold"),
}
GS_CLASS = (
    "storage_class"  # our name for the storage class; `Storage` adds it to gcsfs's table of file properties
)
MAX_TAGS = 10  # how many tags a file may have at S3 and Azure
# The kind of object storage by the scheme of its URL.
_KIND = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs"}
# A tag that S3, Google Cloud Storage and Azure all allow.
_TAG = re.compile(r"([A-Za-z0-9 +\-./:_]{1,128})=([A-Za-z0-9 +\-./:_]{0,256})")


def upload_options(url: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options with which fsspec uploads a file of a checkpoint: its storage class and its tags.

    Args:
        url: The URL of the storage.
        environ: The environment variables, of which `TUNER_STORAGE_CLASS` and `TUNER_STORAGE_TAGS` are read. A service sets both for its
            drivers and workers.

    Raises:
        ValueError: The class or the tags are not valid for this storage. The message names the variable.
    """
    kind = _kind(url)
    wanted, tags = environ.get("TUNER_STORAGE_CLASS", ""), _tags(environ.get("TUNER_STORAGE_TAGS", ""))
    for name in [*(["TUNER_STORAGE_CLASS"] if wanted else []), *(["TUNER_STORAGE_TAGS"] if tags else [])]:
        if not kind:
            raise ValueError(
                f"{name} works with s3://, gs:// and abfs:// only; leave it out for other storage"
            )
    if wanted and wanted not in STORAGE_CLASSES[kind]:
        raise ValueError(f"TUNER_STORAGE_CLASS: {wanted!r} is not one of {', '.join(STORAGE_CLASSES[kind])}")
    options: dict[str, Any]
    if kind == "s3":
        options = {"StorageClass": wanted, "Tagging": urlencode(tags)}
    elif kind == "gs":
        options = {"fixed_key_metadata": wanted and {GS_CLASS: wanted}, "metadata": tags}
    else:
        options = {"standard_blob_tier": wanted, "tags": tags}
    return {name: value for name, value in options.items() if value}


def _kind(url: str) -> str:
    return _KIND.get(url.partition("://")[0], "")


def _tags(text: str) -> dict[str, str]:
    tags = {}
    for item in filter(None, map(str.strip, text.split(","))):
        match = _TAG.fullmatch(item)
        if match is None:
            raise ValueError(
                f"TUNER_STORAGE_TAGS: {item!r} is not a tag; write for example kind=checkpoint,team=vision"
            )
        tags[match[1]] = match[2]
    if len(tags) > MAX_TAGS:
        raise ValueError(f"TUNER_STORAGE_TAGS: lists {len(tags)} tags; a file may have at most {MAX_TAGS}")
    return tags


class Storage:
    """Reads and writes directories of files under one root, which is given as a URL.

    When a directory is stored, a file that the caller chooses is written after all others. A reader that first checks for this file
    sees the whole directory or nothing.
    """

    def __init__(self, url: str) -> None:
        self._fs: Any
        # The options for uploading checkpoints. Read them from the environment only if the URL is that of an object storage: a worker that
        # uses a local folder for the restore self-test also has the variables of its service's storage.
        self._upload = upload_options(url, os.environ) if _kind(url) else {}
        options: dict[str, Any] = {"use_listings_cache": False}
        if url.startswith(("s3://", "s3a://")):
            options |= {"config_kwargs": S3_TIMEOUTS}
        self._fs, root = fsspec.core.url_to_fs(url, **options)
        if "fixed_key_metadata" in self._upload:
            # gcsfs sends only the file properties that are listed in its own table. Add the storage class, which the table lacks.
            core = importlib.import_module("gcsfs.core")
            core.SUPPORTED_FIXED_KEY_METADATA[GS_CLASS] = "storageClass"
        self._root = str(root).rstrip("/")
        protocols = self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)
        self.is_local = "file" in protocols
        if "s3" in protocols:
            self._fs.retries = S3_TRIES

    def path(self, *parts: str) -> str:
        return "/".join((self._root, *parts))

    def is_lasting(self, error: Exception) -> bool:
        """Return True if an error will probably last for minutes, because a local folder is full, refuses access or does not exist.

        Errors of remote storage are never considered lasting.
        """
        if not self.is_local or not isinstance(error, OSError):
            return False
        return error.errno in LASTING or not Path(self._root).is_dir()

    def names(self, *parts: str) -> list[str]:
        """Return the names of the files and directories in a directory, sorted, or an empty list if the directory does not exist."""
        try:
            paths = self._fs.ls(self.path(*parts), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in paths)

    def read(self, *parts: str) -> bytes:
        """Return the bytes of a file. Raise FileNotFoundError if the file does not exist."""
        if self.is_local:
            with self._opened(*parts) as file:
                return file.read()
        return bytes(self._fs.cat_file(self.path(*parts)))

    def read_range(self, start: int, stop: int, *parts: str) -> bytes:
        """Return the bytes of a file from `start` up to `stop`, or fewer if the file is shorter.

        Raise FileNotFoundError if the file does not exist.
        """
        if self.is_local:
            with self._opened(*parts) as file:
                file.seek(start)
                return file.read(max(0, stop - start))
        return bytes(self._fs.cat_file(self.path(*parts), start=start, end=stop))

    def size(self, *parts: str) -> int:
        """Return the size of a file in bytes. Raise FileNotFoundError if the file does not exist."""
        if self.is_local:
            with self._opened(*parts) as file:
                return os.fstat(file.fileno()).st_size
        return int(self._fs.info(self.path(*parts))["size"])

    def used_bytes(self, *parts: str) -> int:
        """Return how many bytes all files in a directory and its subdirectories have, or 0 if the directory does not exist.

        Links are not followed, because user code could place links to large files of others.
        """
        if not self.is_local:
            try:
                return int(self._fs.du(self.path(*parts), total=True))
            except FileNotFoundError:
                return 0
        total = 0
        for folder, _, names in os.walk(self.path(*parts)):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # a worker has just removed it
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

    def _check_inside(self, path: str, *parts: str) -> None:
        """Raise FileNotFoundError if the resolved path of `parts` is not in the directory `parts[0]/parts[1]`.

        User code can write to the same folder as the service, so it could place links to files of others there. It cannot
        choose the first two parts, so an operator may replace these two directories by links, for example to another disk.
        """
        own = os.path.realpath(self.path(*parts[:2]))
        if path != own and not path.startswith(f"{own}{os.sep}"):
            raise FileNotFoundError(
                errno.ENOENT, f"a symbolic link in this path leads out of {own}", self.path(*parts)
            )

    @contextlib.contextmanager
    def _opened(self, *parts: str) -> Iterator[BinaryIO]:
        """Open a file of local storage for reading.

        The checks are repeated on the open file, because user code can replace a file or a directory by a link at any time.

        Raises:
            FileNotFoundError: The file does not exist, is not a regular file, or is outside the directory `parts[0]/parts[1]`.
        """
        real = os.path.realpath(self.path(*parts))
        self._check_inside(real, *parts)
        with os.fdopen(_open_regular(real), "rb") as file:
            opened = f"/proc/self/fd/{file.fileno()}"
            if os.path.exists(opened):  # on Linux
                self._check_inside(os.path.realpath(opened), *parts)
            yield file

    def put_directory(
        self, source: Path, last: tuple[str, bytes], *parts: str, without: Collection[str] = ()
    ) -> None:
        """Store the files of `source`, then the file `last`, which marks the directory as complete.

        On success `source` is removed. If this raises an error, `source` is unchanged and the call can be repeated.

        Args:
            source: The directory with the files.
            last: Name and content of the last file.
            parts: The path of the new directory.
            without: Files that are stored elsewhere and skipped here. Remote storage only.
        """
        name, data = last
        if self.is_local:
            _put_local(source, Path(self.path(*parts)), name, data)
        else:
            target = self.path(*parts)
            for file in sorted(file for file in source.rglob("*") if file.is_file()):
                path = file.relative_to(source).as_posix()
                if path not in without:
                    self._fs.put_file(str(file), f"{target}/{path}", **self._upload)
                    self._check_size(f"{target}/{path}", file.stat().st_size)
            self._fs.pipe_file(f"{target}/{name}", data, **self._upload)
            self._check_size(f"{target}/{name}", len(data))
        shutil.rmtree(source, ignore_errors=True)

    def put_file(self, data: bytes, *parts: str, durably: bool = False) -> None:
        """Write a file, replacing an existing one. A reader sees either the old or the new content.

        With `durably`, the file is on the disk, or remote storage has confirmed its size, when this returns.
        """
        if not self.is_local:
            self._fs.pipe_file(self.path(*parts), data)
            if durably:
                self._check_size(self.path(*parts), len(data))
            return
        target = Path(self.path(*parts))
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{PARTIAL}{target.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            partial.write_bytes(data)
            if durably:
                _sync(partial)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        if durably:
            for folder in (target.parent, target.parent.parent):
                _sync(folder)

    def put_files(self, files: Mapping[str, bytes], *parts: str) -> None:
        """Write several files of one directory in parallel. `files` maps their names to their contents."""
        targets = {self.path(*parts, name): data for name, data in files.items()}
        self._fs.pipe(targets, **self._upload)
        for target, data in targets.items():
            self._check_size(target, len(data))

    def read_files(self, names: Sequence[str], *parts: str) -> dict[str, bytes]:
        """Read several files of one directory in parallel, and return their contents by name.

        Raise FileNotFoundError if a file is missing.
        """
        paths = {self.path(*parts, name): name for name in names}
        return {paths[path]: bytes(data) for path, data in self._fs.cat(list(paths)).items()}

    def probe(self, name: str) -> None:
        """Write a small file, read it back and remove it. Raise the storage's own error if one of these fails."""
        if self.is_local:
            self._fs.makedirs(self.path(PROBES), exist_ok=True)
        self.put_files({name: name.encode()}, PROBES)
        if self.read(PROBES, name) != name.encode():
            raise OSError(f"{self.path(PROBES, name)} did not return the content that was written to it")
        self._fs.rm_file(self.path(PROBES, name))

    def _check_size(self, target: str, given: int) -> None:
        """Raise OSError if the stored file `target` does not have `given` bytes, the size of the data that was written to it."""
        stored = int(self._fs.info(target)["size"])
        if stored != given:
            raise OSError(f"{target} has {stored} of the {given} bytes that were written")

    def get_files(self, files: Sequence[str], into: Path, *parts: str) -> None:
        """Copy the given files of a stored directory to the directory `into` of this machine.

        Nothing else of the stored directory is copied: user code can write to local storage, and could have placed links there.

        Raises:
            FileNotFoundError: A file is missing. In local storage also: it is not a regular file, or a link leads out of the storage.
        """
        for name in files:
            target = into / name
            if not self.is_local:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(self.path(*parts, name), str(target))
                continue
            with self._opened(*parts, name) as file:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)

    def remove(self, *parts: str, first: str = "") -> None:
        """Remove a directory. A missing directory is not an error.

        If `first` is given, the file of this name is removed before all others. Name the file that marks the directory as complete, so
        that a directory whose removal was interrupted does not look complete.
        """
        for path in ([self.path(*parts, first)] if first else []) + [self.path(*parts)]:
            try:
                self._fs.rm(path, recursive=True)
            except FileNotFoundError:
                continue


def _open_regular(path: str) -> int:
    """Return a descriptor of a regular file. Raise FileNotFoundError if the path is a link or anything else."""
    try:
        # O_NONBLOCK, because a plain open of a FIFO waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a socket
            raise FileNotFoundError(errno.ENOENT, "this path is not a regular file", path) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "this path is not a regular file", path)
    return handle


def is_corrupt(error: Exception) -> bool:
    """Return whether a storage client reports that the content it received differs from the stored content.

    Such errors are botocore's FlexibleChecksumError and gcsfs's ChecksumError. They are recognized by their names, because
    neither library needs to be installed.
    """
    return any("Checksum" in type(cause).__name__ for cause in (error, error.__cause__))


def _put_local(source: Path, target: Path, last: str, data: bytes) -> None:
    """Write and sync all files, then rename the directory into place, so that a reader sees nothing or everything."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f"{PARTIAL}{target.name}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for file in (file for file in source.rglob("*") if file.is_file()):
            _link_or_copy(_resolved(file, source), partial / file.relative_to(source))
        (partial / last).write_bytes(data)
        for path in [*partial.rglob("*"), partial]:
            _sync(path)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        _sync(target.parent)
    except BaseException:
        # Remove the incomplete copy, which may have filled the disk.
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _resolved(file: Path, folder: Path) -> str:
    """Return the path of a file of `folder` without symbolic links, because a hard link to a symbolic link would not have its content.

    Raises:
        FileNotFoundError: The file is outside `folder`. User code may have placed a link to a file of others after links were checked.
    """
    own, real = os.path.realpath(folder), os.path.realpath(file)
    if not real.startswith(f"{own}{os.sep}"):
        raise FileNotFoundError(errno.ENOENT, f"a symbolic link in this path leads out of {own}", str(file))
    return real


def _link_or_copy(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # the source is on another file system, or the file system has no hard links
        shutil.copyfile(source, target)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if (
            error.errno != errno.EINVAL
        ):  # EINVAL: this file system cannot sync directories, which is not an error
            raise
    finally:
        os.close(handle)


FULL = (
    "the storage is full: free space there, set checkpoint.keep lower, or set TUNER_STORAGE to another place"
)
REFUSED = "the storage refuses access: the workers must be allowed to list, read, write and delete there; check their credentials"
NOWHERE = "the path does not exist: create the bucket or folder that TUNER_STORAGE names, and mount a folder on every worker"
SILENT = "the storage does not answer: check its address, and that the workers can reach it over the network"
BUSY = "the storage is overloaded or out of order: resume the job when the storage works again, or set TUNER_STORAGE to another place"

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_WORDS = ("quota", "insufficientstorage", "insufficientcapacity", "storagefull", "no space left")
_SILENT_WORDS = ("timeout", "timed out", "connect", "cannot resolve", "endpoint url")


def explained(error: BaseException) -> str:
    """Return the error as text, with advice on what to do about it if there is any."""
    text = f"{type(error).__name__}: {error}"
    advice = _advice(error)
    return f"{text} ({advice})" if advice else text


def _advice(error: BaseException) -> str:
    """Return advice on what a user can do about an error of the storage, or an empty text if there is none.

    The error's cause is searched too, because a cloud's client wraps the service's error code.
    """
    text = f"{error!r} {error.__cause__!r}".lower()
    if getattr(error, "errno", None) in _FULL_ERRNOS or any(word in text for word in _FULL_WORDS):
        return FULL
    if isinstance(error, PermissionError):
        return REFUSED
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NOWHERE
    if isinstance(error, TimeoutError | ConnectionError) or any(word in text for word in _SILENT_WORDS):
        return SILENT
    return BUSY if isinstance(error, OSError) else ""
