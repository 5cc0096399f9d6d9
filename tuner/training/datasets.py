"""Data that trainables read: fetch a remote file or folder once for all trials of a machine, and count the bytes that were read.

A cache is a directory with one entry, itself a directory, for each version of a dataset. An entry contains:

- `lock`: its file lock. A process that reads the entry holds it shared until the process ends. A process that downloads or removes the
  entry holds it exclusively. The kernel releases the locks of a process that is killed. The file's modification time is the time of the
  last use, or the time at which bytes of the download last arrived.
- `size`: the bytes that count towards the limit of the cache, from the beginning of the download on.
- `partial`: an unfinished download. The next process that wants the entry removes what a killed process has left.
- `data`: the complete content.

The locks work between processes and containers of one machine, on its own disk. The caches of fsspec are not used, because they have
neither locks between processes nor a limit of their size. Run as a program, this module starts a command with
datasets: see `main`.
"""

import contextlib
import errno
import fcntl
import hashlib
import inspect
import itertools
import json
import multiprocessing
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

CACHE_DIR, CACHE_GIB = "TUNER_CACHE_DIR", "TUNER_CACHE_GIB"
READ_LOG = "TUNER_READ_LOG"  # the file of the supervisor that counts the bytes
VARIABLES = (CACHE_DIR, CACHE_GIB, READ_LOG)
DEFAULT_GIB = 20
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})
# What file systems call the facts about a file that change with its content, in lower case and without dashes and underscores. The last
# four are of the Hugging Face Hub and of Git.
STAMPS = frozenset(
    "etag contentmd5 md5hash crc32c digest generation lastmodified updated mtime modified created blobid xethash sha oid".split()  # noqa: SIM905
)
AT_ONCE = 16  # how many files of a folder are downloaded at once
LOG_EVERY_S = 0.5  # seconds between two lines in the log; if a process is killed, the bytes after its last line are not counted
WAIT_S = 0.2  # time between two checks whether another process has finished its download
HTTP_SILENCE_S = 60
CREDENTIALS = (
    "A trial has the credentials of its machine's role, and those that the operator passes with TUNER_PASS_ENV. "
    "For a public bucket, call dataset(url, anon=True)"
)
_locked: dict[str, Path] = {}  # the datasets of this process. It holds their locks until it ends.
_locks: list[int] = []


class DatasetRefused(ValueError):
    """A dataset cannot be fetched: its URL or the name of a file is not valid, or it is too large for the cache of the machine."""


def dataset(url: str | os.PathLike[str], **options: Any) -> Path:
    """Return the path of a local copy of a remote file or folder. Do not change the copy, because other trials read it, too.

    The copy is in a cache of the machine, `TUNER_CACHE_DIR`, and stays there at least until the process ends. The first process downloads the
    data, and others wait for it. Each process asks the server whether the data has changed since the download. If so, the data is downloaded
    again. Further calls in the same process return the same path.

    Args:
        url: `s3://`, `gs://`, `az://`, `http://` and other URLs of fsspec. The path of a local file or folder is returned unchanged.
        options: Options of the file system, such as `anon=True` for a public bucket of S3.

    Raises:
        DatasetRefused: The URL cannot be used, a file's name leads out of the folder, or the cache has no room for the data.
        FileNotFoundError: The file does not exist, or the folder is empty.
        ImportError: The package for this kind of URL, such as s3fs, is not installed.
    """
    text = os.fspath(url)
    scheme, is_url, rest = text.partition("://")
    if not is_url or scheme in ("file", "local"):
        path = Path(rest if is_url else text)
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return path.absolute()
    key = json.dumps([text, options], sort_keys=True, default=repr)
    if key not in _locked:
        try:
            _locked[key] = DatasetCache.from_env(os.environ).get(text, options)
        finally:
            _log(0)
    return _locked[key]


class DatasetCache:
    """The cache of datasets on the disk of one machine. Several processes may use it at once."""

    def __init__(self, parent: Path, limit_bytes: int) -> None:
        """Use the cache in the directory `parent`, and create it if needed. It may use `limit_bytes` of the disk.

        Only this user may own the cache, because other users could change the data.

        Raises:
            DatasetRefused: The directory of the cache belongs to another user.
        """
        self._root, self._limit_bytes = parent / f"tuner-datasets-{os.getuid()}", limit_bytes
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.is_symlink() or self._root.stat().st_uid != os.getuid():
            raise DatasetRefused(
                f"{self._root} belongs to another user; remove it, or set {CACHE_DIR} to another directory"
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "DatasetCache":
        """Use the cache that `TUNER_CACHE_DIR` and `TUNER_CACHE_GIB` describe.

        By default the cache is in the directory for temporary files and may use 20 GiB.
        """
        gib = environ.get(CACHE_GIB) or str(DEFAULT_GIB)
        if not gib.isdecimal():
            raise DatasetRefused(f"{CACHE_GIB} must be a whole number of GiB, not {gib!r}")
        return cls(Path(environ.get(CACHE_DIR) or tempfile.gettempdir()).absolute(), int(gib) << 30)

    def get(self, url: str, options: Mapping[str, Any]) -> Path:
        """Return the path of the data at `url`, downloaded if needed. The data stays in the cache while this process lives. See `dataset`."""
        with _source(url, options) as source:
            entry = self._root / source.key
            while True:
                lock = _opened(entry)
                try:
                    # Only a process that finds the entry unused checks whether it is complete. The check needs the exclusive lock, for which
                    # another process would have to wait until all processes that use the entry have ended.
                    is_first = _try_lock(lock, fcntl.LOCK_EX)
                    if is_first and _is_lock_of(lock, entry) and not _is_complete(entry):
                        self._download(source, entry, lock)
                    _wait_for_download(lock)
                except BaseException:
                    _unlock(lock)
                    raise
                data = entry / "data"
                if _is_lock_of(lock, entry) and data.is_dir():
                    break
                _unlock(lock)  # try again: the other process's download has failed, or the entry was removed
            os.utime(lock)
            _locks.append(lock)
            return data if source.is_folder else data / next(iter(source.files))

    def _download(self, source: "Source", entry: Path, lock: int) -> None:
        """Download into an entry whose exclusive lock this process holds. If the download fails, remove the entry."""
        partial, data = entry / "partial", entry / "data"
        try:
            for left in (partial, data):
                shutil.rmtree(left, ignore_errors=True)
            self._reserve(entry, source.size)
            transfer = Transfer(source, lock, lambda size: self._reserve(entry, size))
            transfer.fetch(partial)
            for file in partial.rglob("*"):
                if file.is_file():
                    file.chmod(0o444)
            self._reserve(entry, _bytes_in(partial))
            partial.rename(data)
        except BaseException:
            self._remove(entry)
            raise

    def _reserve(self, entry: Path, size: int) -> None:
        """Record the size of an entry, after removing least recently used entries until the cache has room for it.

        Raises:
            DatasetRefused: The entry is larger than the whole cache, or the other entries are in use and leave too little room.
        """
        if size > self._limit_bytes:
            raise DatasetRefused(
                f"the dataset has at least {size} bytes, but the cache may have only {self._limit_bytes} bytes; have the operator raise "
                f"{CACHE_GIB}, or read less data"
            )
        lock = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in self._root.glob(".removed-*"):  # a process was killed while it removed this entry
                shutil.rmtree(left, ignore_errors=True)
            others = [other for other in self._root.iterdir() if _is_entry(other) and other != entry]
            sizes = {other: _noted_size(other) for other in others}
            for other in sorted(others, key=_last_use):
                if sum(sizes.values()) + size <= self._limit_bytes:
                    break
                if self._evict(other):
                    del sizes[other]
            in_use = sum(sizes.values())
            if in_use + size > self._limit_bytes:
                raise DatasetRefused(
                    f"the dataset has at least {size} bytes, and other trials use {in_use} of the {self._limit_bytes} bytes of the cache; "
                    f"have the operator raise {CACHE_GIB}, or run fewer trials with other data at once"
                )
            (entry / "size").write_text(str(size))
        finally:
            _unlock(lock)

    def _evict(self, entry: Path) -> bool:
        """Remove an entry unless a process uses it. Return whether it is gone."""
        try:
            lock = os.open(entry / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return not entry.exists()  # if it exists, another process is just creating it
        try:
            is_unused = _try_lock(lock, fcntl.LOCK_EX) and _is_lock_of(lock, entry)
            if is_unused:
                self._remove(entry)
            return is_unused
        finally:
            _unlock(lock)

    def _remove(self, entry: Path) -> None:
        gone = self._root / f".removed-{secrets.token_hex(8)}"
        entry.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _is_entry(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _opened(entry: Path) -> int:
    """Open the lock file of an entry, and return its descriptor. Create the entry if it does not exist."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(entry, 0o700)
        with contextlib.suppress(
            FileNotFoundError
        ):  # try again if another process has just removed the entry
            return os.open(entry / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _wait_for_download(lock: int) -> None:
    """Take the shared lock of an entry. If another process downloads the entry, wait for the end of the download.

    While the download makes progress, log lines show the supervisor why this process waits. If the download stalls, no line is
    written, so that each waiting trial soon counts as hanging and does not cost money until its budget is spent.
    """
    seen_ns = os.fstat(lock).st_mtime_ns
    while not _try_lock(lock, fcntl.LOCK_SH):
        time.sleep(WAIT_S)
        before_ns, seen_ns = seen_ns, os.fstat(lock).st_mtime_ns
        if seen_ns != before_ns:
            _log(0, waits=_is_waited_for())


def _try_lock(lock: int, how: int) -> bool:
    """Take the lock in the mode `how` without waiting. Return False if another process holds a lock that excludes it."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(lock: int) -> None:
    # Closing the descriptor would not release the lock if a process that was forked meanwhile has the descriptor too.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _is_lock_of(lock: int, entry: Path) -> bool:
    """Return whether `lock` is still the lock file of the entry.

    Return False if the entry was removed after this process opened the file and before it took the lock.
    """
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), (entry / "lock").stat())
    return False


def _is_complete(entry: Path) -> bool:
    """Return whether an entry has all of its bytes. After a crash of the machine, files may be shorter than they were."""
    data = entry / "data"
    return data.is_dir() and _bytes_in(data) == _noted_size(entry)


def _noted_size(entry: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((entry / "size").read_text())
    return 0


def _last_use(entry: Path) -> int:
    with contextlib.suppress(OSError):
        return (entry / "lock").stat().st_mtime_ns
    return 0


def _bytes_in(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


# Remote files


@dataclass(frozen=True)
class Source:
    """One version of a remote file or folder."""

    file_system: Any  #: The file system object of fsspec.
    files: Mapping[str, str]  #: The remote path of each file, by its path in the local copy.
    is_folder: bool
    size: int  #: The total size in bytes. A file whose server does not send its size counts as 0.
    key: str  #: The name of the cache entry: a hash of the URL, the options and the version of the content.
    from_bucket: bool  #: Whether the source is in the object storage of a cloud.


@contextlib.contextmanager
def _source(url: str, options: Mapping[str, Any]) -> Iterator[Source]:
    """Yield the files at a URL. At the end of the block, all connections are closed and all their threads have ended.

    fsspec's own event loop is not used, because its threads would remain. A worker forks its trials from a process that may have prepared
    datasets, and such a process cannot be forked while other threads run.
    """
    import asyncio  # imported here, because a worker imports this module only for its constants

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dataset", daemon=True)
    thread.start()
    file_system: Any = None
    try:
        try:
            file_system, path = _file_system(url, dict(options), loop)
            source = _source_at(file_system, path, url, options)
        except (DatasetRefused, ImportError, FileNotFoundError):
            raise
        except Exception as error:
            error.add_note(f"The dataset is {url.partition('?')[0]}. {CREDENTIALS}.")
            raise
        yield source
    finally:
        asyncio.run_coroutine_threadsafe(_end_connections(file_system), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _file_system(url: str, options: dict[str, Any], loop: object) -> tuple[Any, str]:
    import fsspec

    if "::" in url:
        raise DatasetRefused(f"{url.partition('?')[0]!r} has '::'; give the URL of one file or folder")
    scheme = url.partition("://")[0]
    if scheme in ("http", "https"):
        import aiohttp

        # By default a download may take five minutes, and the proxies of the environment are ignored.
        limits = aiohttp.ClientTimeout(total=None, sock_connect=HTTP_SILENCE_S, sock_read=HTTP_SILENCE_S)
        options.setdefault("client_kwargs", {"timeout": limits, "trust_env": True})
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ValueError as error:
        raise DatasetRefused(f"{scheme}:// is not a URL scheme that fsspec supports: {error}") from error
    if kind.async_impl:  # other file systems, such as sftp, pass these options to a client that refuses them
        options |= {"loop": loop, "use_listings_cache": False}
    file_system, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options)
    return file_system, str(path)


async def _end_connections(file_system: Any) -> None:
    import asyncio

    for name in (
        "_session",
        "_s3",
        "service_client",
    ):  # the names of the connection in http and gcsfs, in s3fs, and in adlfs
        connection = getattr(file_system, name, None)
        with contextlib.suppress(Exception):
            closing = connection.close() if connection is not None else None
            if inspect.isawaitable(closing):
                await closing
    await asyncio.get_running_loop().shutdown_default_executor()


def _source_at(file_system: Any, path: str, url: str, options: Mapping[str, Any]) -> Source:
    about = file_system.info(path)
    is_folder = about["type"] == "directory"
    if is_folder:
        root = f"{path.rstrip('/')}/"
        listed = {
            name: info
            for name, info in file_system.find(path, detail=True).items()
            if info["type"] == "file" and not name.endswith("/")
        }
        if not listed:
            raise FileNotFoundError(errno.ENOENT, "the folder has no files", url)
        files = {_checked(name.removeprefix(root)): name for name in listed}
    else:
        listed = {path: about}
        files = {_file_name(url): path}
    stamps = {name: _stamp(info) for name, info in listed.items()}
    # Without a stamp it is not known whether the data has changed, so each process downloads it.
    version = sorted(stamps.items()) if all(stamps.values()) else secrets.token_hex()
    named = json.dumps([url, options, version], sort_keys=True, default=repr)
    size = sum(int(info.get("size") or 0) for info in listed.values())
    key = hashlib.sha256(named.encode()).hexdigest()[:40]
    return Source(file_system, files, is_folder, size, key, url.partition("://")[0] in BUCKETS)


def _stamp(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts about a file that change with its content. Return nothing if its server sends none."""
    facts = ((re.sub("[-_]", "", name).lower(), str(value)) for name, value in info.items() if value)
    stamp = sorted(fact for fact in facts if fact[0] in STAMPS)
    return [*stamp, ("size", str(info.get("size")))] if stamp else []


def _file_name(url: str) -> str:
    """Return the name for the local copy of a file: the end of the URL, with its suffix, in characters that are safe."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", Path(urlsplit(url).path).name).lstrip(".")[-100:] or "data"


def _checked(name: str) -> str:
    """Return `name`, the path of a file in a remote folder, if a local copy can have it.

    Raises:
        DatasetRefused: The path would lead out of the folder, or no local file can have it.
    """
    if any(part in ("", ".", "..") or "\0" in part for part in name.split("/")):
        raise DatasetRefused(
            f"the remote folder has a file with the name {name!r:.120}, which a local file cannot have; rename or remove the file"
        )
    return name


class Transfer:
    """Download one source, log how many bytes were read for the worker's supervisor, and check that the data fits into the cache."""

    def __init__(self, source: Source, lock: int, reserve: Callable[[int], None]) -> None:
        """Prepare the download of a source.

        Args:
            source: What to download.
            lock: The open lock file of the entry. Its modification time shows waiting processes that bytes arrive.
            reserve: Called with the new size in bytes if the data turns out to be larger than known before. It raises if the cache has
                no room.
        """
        self._source, self._lock, self._reserve = source, lock, reserve
        self._waits = _is_waited_for()
        self._counting = threading.Lock()
        self._reserved, self._read, self._logged, self._logged_at = source.size, 0, 0, 0.0

    def fetch(self, folder: Path) -> None:
        """Download the files into a new folder. If a file fails, begin no further ones, and raise its error."""
        for parent in {(folder / name).parent for name in self._source.files}:
            parent.mkdir(parents=True, exist_ok=True)
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                downloads = [
                    pool.submit(self._fetch_file, remote, folder / name)
                    for name, remote in self._source.files.items()
                ]
                try:
                    for download in downloads:
                        download.result()
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        finally:
            self._log()

    def _fetch_file(self, remote: str, local: Path) -> None:
        import fsspec

        counted = 0

        def count(size: int | None, value: int, **_: Any) -> None:
            nonlocal counted
            more, counted = max(0, value - counted), max(value, counted)
            self._add(more)

        callback = fsspec.callbacks.Callback(hooks={"bytes": count})
        self._source.file_system.get_file(remote, str(local), callback=callback)
        size = local.stat().st_size
        count(size, size)  # some file systems never call the callback

    def _add(self, count: int) -> None:
        with self._counting:
            self._read += count
            if time.monotonic() - self._logged_at >= LOG_EVERY_S:
                self._log()
            if self._read > self._reserved:
                self._reserved = (
                    self._read + self._read // 8
                )  # reserve ahead, because reserving for every block would be slow
                self._reserve(self._reserved)

    def _log(self) -> None:
        more, self._logged, self._logged_at = self._read - self._logged, self._read, time.monotonic()
        if more:
            os.utime(self._lock)
        _log(more, from_bucket=self._source.from_bucket, waits=self._waits)


def _log(count: int, *, from_bucket: bool = False, waits: bool = False) -> None:
    """Add a line to the log of the worker's supervisor.

    The line has three numbers: the bytes that were read, how many of them came from a bucket, and 1 if training waits for more (otherwise
    0). A process that finds all data in the cache also writes a line, so that it is known to have read zero bytes.
    """
    with contextlib.suppress(OSError, KeyError):
        log = os.open(os.environ[READ_LOG], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(log, f"{count} {count if from_bucket else 0} {int(waits)}\n".encode())
        finally:
            os.close(log)


def _is_waited_for() -> bool:
    """Return whether training waits for this download, which is so only if the main thread of the main process downloads."""
    is_main_process = multiprocessing.parent_process() is None
    return is_main_process and threading.current_thread() is threading.main_thread()


def main(words: list[str]) -> NoReturn:
    """Run `NAME=URL ... PROGRAM [ARGUMENT ...]`: the program, with the path of each dataset in an environment variable.

    The program replaces this process and keeps the locks, so the data stays in the cache until it ends.
    """
    given = list(itertools.takewhile(re.compile(r"[A-Za-z_]\w*=.").match, words))
    program = words[len(given) :]
    if not given or not program:
        sys.exit("usage: python -m tuner.training.datasets NAME=URL ... PROGRAM [ARGUMENT ...]")
    for text in given:
        name, _, url = text.partition("=")
        os.environ[name] = str(dataset(url))
    for lock in _locks:
        os.set_inheritable(lock, True)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
