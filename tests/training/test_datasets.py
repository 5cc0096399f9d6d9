"""Datasets: what is downloaded, counted, shared between processes, removed and refused. The server is on the loopback interface."""

import fcntl
import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

from tests.data_server import DataServer, data_server
from tuner.training import datasets
from tuner.training.datasets import DatasetCache, DatasetRefused, dataset

FORK = multiprocessing.get_context("fork")
MIB = 1 << 20


@pytest.fixture
def server() -> Iterator[DataServer]:
    with data_server() as serving:
        yield serving


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a cache and a log of the test's own. Return the log."""
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNER_READ_LOG", str(path))
    yield path
    release()


def release() -> None:
    """Forget the datasets of this process, as if it had ended."""
    datasets._locked.clear()
    while datasets._locks:
        datasets._unlock(datasets._locks.pop())


def bytes_of(log: Path) -> tuple[int, int]:
    lines = [line.split() for line in log.read_text().splitlines()]
    return sum(int(line[0]) for line in lines), sum(int(line[1]) for line in lines)


def in_process(work: Callable[[], Any]) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=work)
    process.start()
    return process


def test_file_is_downloaded_once_and_again_when_it_changes(server: DataServer, log: Path) -> None:
    threads = {thread.name for thread in threading.enumerate()}
    path = dataset(server.url())
    assert (path.name, path.read_bytes()) == ("data.csv", b"the data")
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert dataset(server.url()) == path
    assert (server.downloads, bytes_of(log)) == (1, (8, 0))
    release()
    assert dataset(server.url()) == path
    assert (server.downloads, bytes_of(log)) == (1, (8, 0))
    release()
    server.content, server.etag = b"new data!", "2"
    assert dataset(server.url()).read_bytes() == b"new data!"
    assert bytes_of(log) == (17, 0)
    # A process with threads could not be forked for the trials of a worker.
    assert {thread.name for thread in threading.enumerate()} == threads


def test_server_without_a_stamp_is_asked_for_the_data_by_each_process(server: DataServer) -> None:
    server.etag = ""
    dataset(server.url())
    release()
    server.content = b"the date"
    assert dataset(server.url()).read_bytes() == b"the date"


def test_one_process_downloads_and_others_wait(server: DataServer) -> None:
    server.may_end.clear()
    processes = [in_process(lambda: dataset(server.url())) for _ in range(3)]
    assert server.half_sent.wait(30)
    server.may_end.set()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert server.downloads == 1


def test_process_reports_that_it_waits_only_while_the_download_makes_progress(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = os.O_RDWR | os.O_CREAT
    its, ours = os.open(tmp_path / "lock", flags), os.open(tmp_path / "lock", flags)
    assert datasets._try_lock(its, fcntl.LOCK_EX)
    looks = iter(["stalls", "grows", "stalls", "stalls", "ends"])

    def sleep(_: float) -> None:
        match next(looks):
            case "grows":
                os.utime(its, ns=(1, 1))
            case "ends":
                datasets._unlock(its)

    monkeypatch.setattr(time, "sleep", sleep)
    datasets._wait_for_download(ours)
    assert log.read_text() == "0 0 1\n"
    datasets._unlock(ours)


def test_killed_download_leaves_no_partial_entry(server: DataServer, tmp_path: Path) -> None:
    server.may_end.clear()
    process = in_process(lambda: dataset(server.url()))
    assert server.half_sent.wait(30)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(30)
    server.may_end.set()
    assert dataset(server.url()).read_bytes() == b"the data"
    assert not list(tmp_path.glob("cache/*/*/partial"))
    assert server.downloads == 2


def test_failed_download_is_not_kept(server: DataServer, tmp_path: Path) -> None:
    server.content = bytes(2 * MIB)
    server.sends_size = False
    cache = DatasetCache(tmp_path / "cache", MIB)
    with pytest.raises(DatasetRefused, match="the cache may have only 1048576"):
        cache.get(server.url(), {})
    assert not [entry for entry in (tmp_path / "cache").glob("*/*") if entry.is_dir()]
    server.content = b"small"
    assert cache.get(server.url(), {}).read_bytes() == b"small"


@pytest.fixture
def memory() -> Iterator[Any]:
    made = fsspec.filesystem("memory")
    yield made
    made.store.clear()
    made.pseudo_dirs[:] = [""]


def test_folder_keeps_its_names(memory: Any, tmp_path: Path, log: Path) -> None:
    for name in ("a.csv", "deeper/ü b.csv", "deeper/empty"):
        memory.pipe_file(f"/set/{name}", name.encode() * (name != "deeper/empty"))
    folder = dataset("memory://set")
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "a.csv",
        "deeper/empty",
        "deeper/ü b.csv",
    ]
    assert (folder / "deeper/ü b.csv").read_text() == "deeper/ü b.csv"
    assert bytes_of(log) == (5 + 15, 0)
    with pytest.raises(FileNotFoundError):
        dataset("memory://nothing")


@pytest.mark.parametrize(
    "facts",
    [
        {"blob_id": "{}", "lfs": None, "xet_hash": None, "last_commit": None},  # hf://
        {"blob_id": "one", "lfs": None, "xet_hash": "{}"},
        {"sha": "{}", "mode": "100644"},  # github://
    ],
)
def test_hash_of_the_content_names_its_version(
    memory: Any, monkeypatch: pytest.MonkeyPatch, log: Path, facts: dict[str, Any]
) -> None:
    version = "1"

    def info(self: Any, path: str, **_: Any) -> dict[str, Any]:
        hashes = {name: value and value.format(version) for name, value in facts.items()}
        return {"name": path, "size": 7, "type": "file", **hashes}

    memory.pipe("/a", b"content")
    monkeypatch.setattr(type(memory), "info", info)
    for _ in range(2):
        assert dataset("memory://a").read_bytes() == b"content"
        release()
    assert bytes_of(log) == (7, 0)
    memory.pipe("/a", b"changed")
    version = "2"
    assert dataset("memory://a").read_bytes() == b"changed"


def test_file_system_without_event_loop_gets_only_the_options_of_the_call(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/a", b"content")
    options: list[dict[str, Any]] = []
    begin = type(memory).__init__

    def note(self: Any, **given: Any) -> None:
        options.append(given)
        begin(self)

    monkeypatch.setattr(type(memory), "__init__", note)
    assert dataset("memory://a", key="x").read_bytes() == b"content"
    assert options == [{"key": "x"}]


def test_entries_unused_for_longest_are_removed_unless_a_process_uses_them(
    memory: Any, tmp_path: Path
) -> None:
    cache = DatasetCache(tmp_path / "cache", 25)
    for name in "abcd":
        memory.pipe_file(f"/{name}", bytes(10))
    paths = {name: cache.get(f"memory://{name}", {}) for name in "ab"}
    with pytest.raises(DatasetRefused, match="other trials use 20 of the 25 bytes"):
        cache.get("memory://c", {})
    release()
    cache.get("memory://a", {})
    release()
    paths["c"] = cache.get("memory://c", {})  # b is the oldest
    assert [name for name, path in paths.items() if path.exists()] == ["a", "c"]
    paths["d"] = cache.get("memory://d", {})  # c is in use
    assert [name for name, path in paths.items() if path.exists()] == ["c", "d"]


def test_files_of_killed_processes_are_removed_to_make_room(memory: Any, tmp_path: Path) -> None:
    cache = DatasetCache(tmp_path / "cache", 15)
    (root,) = tmp_path.glob("cache/*")
    (root / ".removed-before/data").mkdir(parents=True)
    for left in ("partial", "nothing"):
        (root / left / "partial").mkdir(parents=True)
    (root / "partial/size").write_text("10")
    (root / "partial/lock").touch()
    memory.pipe_file("/a", bytes(10))
    cache.get("memory://a", {})
    assert {path.name for path in root.iterdir() if path.is_dir()} - {"nothing"} == {
        datasets._source_at(memory, "/a", "memory://a", {}).key
    }


def test_entry_that_was_made_again_meanwhile_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the entry after its lock was opened, and a third one uses a new entry of the same name."""
    cache, entry = DatasetCache(tmp_path, 10), tmp_path / "entry"
    os.close(datasets._opened(entry))
    real = datasets._try_lock

    def late(lock: int, how: int) -> bool:
        cache._remove(entry)
        os.close(datasets._opened(entry))
        return real(lock, how)

    monkeypatch.setattr(datasets, "_try_lock", late)
    assert not cache._evict(entry)
    assert entry.exists()
    monkeypatch.undo()
    assert cache._evict(entry)
    assert not entry.exists()


@pytest.mark.extended
def test_many_processes_that_are_killed_never_see_wrong_data_or_exceed_the_limit(
    memory: Any, tmp_path: Path
) -> None:
    cache = DatasetCache(tmp_path / "cache", 350_000)
    contents = {name: name.encode() * 100_000 for name in "abcde"}
    for name, content in contents.items():
        memory.pipe_file(f"/{name}", content)

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(60):
            name = random.choice("abcde")
            try:
                path = cache.get(f"memory://{name}", {})
            except DatasetRefused:  # the other processes use what is there
                continue
            assert path.read_bytes() == contents[name]
            if random.random() < 0.8:
                release()

    random, killed = Random(1), 0
    processes = [in_process(lambda seed=seed: work(seed)) for seed in range(24)]
    while any(process.is_alive() for process in processes):
        assert sum(datasets._noted_size(entry) for entry in tmp_path.glob("cache/*/[!.]*")) <= 350_000
        if killed < 12 and random.random() < 0.1:
            random.choice(processes).kill()
            killed += 1
        time.sleep(0.02)
    assert {process.exitcode for process in processes} <= {0, -signal.SIGKILL}
    for name, content in contents.items():
        assert cache.get(f"memory://{name}", {}).read_bytes() == content
        release()


def test_damaged_entry_is_downloaded_again(memory: Any) -> None:
    memory.pipe_file("/a", b"content")
    path = dataset("memory://a")
    path.chmod(0o600)
    path.write_bytes(b"con")
    in_use = datasets._locks.pop()
    release()
    # another process uses it, and would have to be waited for
    assert dataset("memory://a").read_bytes() == b"con"
    datasets._unlock(in_use)
    release()
    assert dataset("memory://a").read_bytes() == b"content"


class HostileFiles:
    """A file system that lists a name as an object storage may."""

    def __init__(self, name: str) -> None:
        self.name = name

    def info(self, path: str) -> dict[str, Any]:
        return {"type": "directory"}

    def find(self, path: str, detail: bool) -> dict[str, Any]:
        return {self.name: {"type": "file", "size": 1, "ETag": "1"}}


@pytest.mark.parametrize("name", ["set/../../x", "set//x", "/etc/x", "set/..", "set/./x", "set/a\0b"])
def test_names_that_lead_out_of_the_folder_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_file_system", lambda *_: (HostileFiles(name), "set"))
    with pytest.raises(DatasetRefused, match="rename or remove the file"):
        dataset("s3://set")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://h/a/b.tar.gz?x=/../c", "b.tar.gz"),
        ("http://h/..", "data"),
        ("http://h/", "data"),
        ("s3://h/a%2F..%2Fb c", "a_2F.._2Fb_c"),
        (f"http://h/{'x' * 300}.npz", f"{'x' * 96}.npz"),
    ],
)
def test_local_name_of_a_file_is_safe_and_keeps_its_suffix(url: str, name: str) -> None:
    assert datasets._file_name(url) == name


def test_local_paths_are_returned_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").touch()
    assert dataset(f"file://{tmp_path}/a b") == dataset(tmp_path / "a b") == tmp_path / "a b"
    monkeypatch.chdir(tmp_path)
    assert dataset("a b") == tmp_path / "a b"
    with pytest.raises(FileNotFoundError):
        dataset("nothing")


@pytest.mark.parametrize(
    ("url", "what"), [("zip://a::http://h/b.zip", "has '::'"), ("no://x", "no:// is not")]
)
def test_unusable_urls_are_refused(url: str, what: str) -> None:
    with pytest.raises(DatasetRefused, match=what):
        dataset(url)


def test_cache_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"tuner-datasets-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(DatasetRefused, match="belongs to another user"):
        DatasetCache(tmp_path, 1)


def test_command_gets_paths_in_its_environment_and_keeps_the_data(
    server: DataServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = "fcntl.flock(open(glob.glob(sys.argv[1] + '/*/*/lock')[0]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    script = f'cat $DATA; {sys.executable} -c "import fcntl, glob, sys; {lock}" {tmp_path}/cache'
    process = in_process(lambda: datasets.main([f"DATA={server.url()}", "sh", "-c", script]))
    process.join(30)
    printed = capfd.readouterr()
    assert printed.out == "the data"
    assert "BlockingIOError" in printed.err
    with pytest.raises(SystemExit, match="usage"):
        datasets.main(["sh"])
