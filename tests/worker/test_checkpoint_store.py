"""Test checkpoints in a folder that many machines mount, and in S3 with the real client: damaged, with delayed listings, on a full disk,
and with uploads that end at any point.
"""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.checkpoints import TRIAL, Checkpoints
from tests.worker.object_storage import Bucket
from tuner.checkpoints import storage
from tuner.checkpoints.checkpoints import MANIFEST, CheckpointId, CheckpointUnfit
from tuner.checkpoints.storage import PARTIAL

ROOT = Path(__file__).parents[2]
FIRST, SECOND = CheckpointId(1, 1), CheckpointId(2, 1)


@pytest.fixture
def in_folder(tmp_path: Path) -> Checkpoints:
    return Checkpoints(str(tmp_path / "storage"), tmp_path)


@pytest.fixture
def in_bucket(bucket: Bucket, tmp_path: Path) -> Checkpoints:
    return Checkpoints(bucket.url, tmp_path)


@pytest.fixture(params=["in_folder", "in_bucket"])
def checkpoints(request: pytest.FixtureRequest) -> Checkpoints:
    requested_checkpoints: Checkpoints = request.getfixturevalue(request.param)
    return requested_checkpoints


def test_stored_checkpoints_are_read_back(checkpoints: Checkpoints) -> None:
    checkpoints.publish(1, 2, 10)
    assert [stored.step for stored in checkpoints.store.ids(TRIAL)] == [10, 2, 1]
    assert [checkpoints.newest(at_most) for at_most in (10, 9, 0)] == [10, 2, None]


def test_stored_checkpoint_stays_intact_when_user_code_changes_the_fetched_files(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.publish(1)
    fetched = checkpoints.store.fetch(TRIAL, FIRST, tmp_path / "fetched")
    with (fetched / "state.pt").open("r+b") as file:
        file.write(b"other")
    shutil.rmtree(fetched / "shards")
    assert checkpoints.newest() == 1


def test_manifest_is_uploaded_last(in_bucket: Checkpoints, bucket: Bucket) -> None:
    in_bucket.publish(1)
    puts = [asked for asked in bucket.proxy.asked if asked.startswith("PUT") and "step_" in asked]
    assert ["MANIFEST.json" in asked for asked in puts] == [False, False, True]


def flip(data: bytes) -> bytes:
    """Flip a bit."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Checkpoints], None]:
    return lambda stored: stored.change(SECOND, name, change)


def removed(name: str) -> Callable[[Checkpoints], None]:
    return lambda stored: stored.fs.rm(stored.path(SECOND, name), recursive=True)


def rewritten(**changes: Any) -> Callable[[Checkpoints], None]:
    return changed(MANIFEST, lambda data: json.dumps({**json.loads(data), **changes}).encode())


def with_path(path: object) -> Callable[[Checkpoints], None]:
    """Change the path of the first file in the manifest."""

    def change(data: bytes) -> bytes:
        manifest = json.loads(data)
        manifest["files"][0]["path"] = path
        return json.dumps(manifest).encode()

    return changed(MANIFEST, change)


def is_folder(name: str) -> Callable[[Checkpoints], None]:
    """Replace a file by a folder."""

    def change(stored: Checkpoints) -> None:
        removed(name)(stored)
        stored.fs.makedirs(stored.path(SECOND, name))
        stored.fs.pipe_file(f"{stored.path(SECOND, name)}/inner", b"x")

    return change


def of_the_first(stored: Checkpoints) -> None:
    """Replace the checkpoint of step 2 by the files and manifest of step 1."""
    for name in (*stored.contents(1), MANIFEST):
        stored.fs.cp_file(stored.path(FIRST, name), stored.path(SECOND, name))


# Damage that only reading all the data reveals. A flipped bit in the manifest may be in a digest.
UNSEEN: dict[str, Callable[[Checkpoints], None]] = {
    "a flipped bit": changed("state.pt", flip),
    "a flipped bit in a shard": changed("shards/0.bin", flip),
    "a flipped bit in the manifest": changed(MANIFEST, flip),
    "a missing shard": removed("shards/0.bin"),
    "missing shards": removed("shards"),
    "a folder in place of a file": is_folder("state.pt"),
    "a cut file": changed("state.pt", lambda data: data[:-1]),
}
SEEN: dict[str, Callable[[Checkpoints], None]] = {
    "a cut manifest": changed(MANIFEST, lambda data: data[:-1]),
    "an empty manifest": changed(MANIFEST, lambda _: b""),
    "a manifest that is a list": changed(MANIFEST, lambda _: b"[1, 2]"),
    "a manifest that is a folder": is_folder(MANIFEST),
    "no manifest": removed(MANIFEST),
    "a newer version": rewritten(version=3),
    "another trial's": rewritten(trial="trial_00001"),
    "another job's": rewritten(job="job_2"),
    "another step's": rewritten(step=1),
    "another checkpoint": of_the_first,
    "no files": rewritten(files=[]),
    "files of no kind": rewritten(files=["state.pt"]),
    "files elsewhere": with_path("/etc/hostname"),
    "files above": with_path("../step_00000001-a1/state.pt"),
    "the folder as a file": with_path("."),
    **{f"the path {path!r}": with_path(path) for path in (1, None, ["x"], {"a": 1})},
}


# Damage that depends on how a storage lists and reads files. The gate tries only this in a bucket, because the same code checks all else.
BY_STORAGE = (
    "missing shards",
    "a folder in place of a file",
    "a cut file",
    "a manifest that is a folder",
    "no manifest",
)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(
            place, name, marks=[] if place == "in_folder" or name in BY_STORAGE else pytest.mark.extended
        )
        for place in ("in_folder", "in_bucket")
        for name in UNSEEN | SEEN
    ],
)
def test_damaged_checkpoint_is_skipped_for_the_previous_one(
    request: pytest.FixtureRequest, place: str, name: str
) -> None:
    checkpoints: Checkpoints = request.getfixturevalue(place)
    damage = (UNSEEN | SEEN)[name]
    checkpoints.publish(1, 2)
    assert checkpoints.newest() == 2
    damage(checkpoints)
    assert checkpoints.newest() == 1
    assert checkpoints.newest(last_try=True) == 1


@pytest.mark.parametrize("damage", SEEN.values(), ids=SEEN.keys())
def test_damaged_checkpoint_does_not_count_when_pruning(
    in_folder: Checkpoints, damage: Callable[[Checkpoints], None]
) -> None:
    """Only damage that the manifest reveals counts, because pruning does not read all the data again."""
    in_folder.publish(1, 2)
    damage(in_folder)
    in_folder.publish(3)
    in_folder.store.prune(TRIAL, 1, newest=3, keep=2)
    assert in_folder.names() == ["step_00000001-a1", "step_00000003-a1"]


def test_newest_part_of_a_step_is_kept_until_a_later_step_is_saved(in_folder: Checkpoints) -> None:
    store = in_folder.store

    def save(step: int, part: int) -> None:
        store.publish(TRIAL, 1, step, in_folder.stage(step), part=part, part_ns=100 * step + part)
        store.prune(TRIAL, 1, newest=step, keep=1)

    def newest(first: int, last: int, attempt: int = 2) -> tuple[int, int] | None:
        newest_part = store.newest_part(
            TRIAL, in_folder.work / "here", attempt=attempt, first=first, last=last
        )
        return None if newest_part is None else (newest_part.step, newest_part.trained_ns)

    in_folder.publish(2)
    for part in (1, 2):
        save(2, part)
    assert in_folder.names() == ["step_00000002-a1", "step_00000002-a1-part2"]
    assert [newest(0, 2), newest(2, 3), newest(0, 1), newest(3, 9)] == [(2, 202), (2, 202), None, None]
    assert newest(0, 2, attempt=1) is None, "a restored backup lacks the attempt that saved it"
    assert in_folder.newest(2) == 2, "only a whole step has metrics"
    in_folder.publish(3)
    store.prune(TRIAL, 1, newest=3, keep=1, protect=frozenset({2}))
    assert "step_00000002-a1-part2" in in_folder.names(), "the driver has not recorded step 3 yet"
    store.prune(TRIAL, 1, newest=3, keep=1)
    assert in_folder.names() == ["step_00000003-a1"]
    save(3, 3)
    in_folder.change(CheckpointId(3, 1, 3), "state.pt", lambda data: data[:-1])
    assert newest(0, 9) is None


def test_newly_saved_part_is_kept_next_to_a_later_part_of_an_earlier_attempt(
    in_folder: Checkpoints,
) -> None:
    """An attempt that lost its driver trained on to step 5, and the next one began again at step 3."""
    store = in_folder.store
    in_folder.publish(3)
    store.publish(TRIAL, 1, 5, in_folder.stage(5), part=1, part_ns=1)
    store.publish(TRIAL, 2, 3, in_folder.stage(3), part=1, part_ns=1)
    store.prune(TRIAL, 2, newest=3, keep=1)
    assert in_folder.names() == ["step_00000003-a1", "step_00000003-a2-part1"]


def test_empty_or_missing_source_is_not_published(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """A save that hung may continue after its attempt, when its files are gone."""
    for source in (checkpoints.stage(1, {}), tmp_path / "gone"):
        with pytest.raises(CheckpointUnfit):
            checkpoints.store.publish(TRIAL, 1, 1, source)
    assert not checkpoints.fs.exists(checkpoints.root)


def test_stale_listing_hides_and_prunes_no_known_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS, for example, caches the listing of a folder for up to a minute."""
    checkpoints.publish(1, 2)
    for listed in ([FIRST.name], []):
        with monkeypatch.context() as stale:
            stale.setattr(storage.Storage, "names", lambda *_, listed=listed: listed)
            assert checkpoints.newest(2, expected=SECOND) == 2
            checkpoints.store.prune(TRIAL, 1, newest=2, keep=1)
        assert checkpoints.newest(2) == 2


def test_expected_checkpoint_is_preferred_over_others_of_its_step(checkpoints: Checkpoints) -> None:
    """Checkpoints of later attempts may belong to another configuration if the database was restored from a
    backup.
    """
    checkpoints.publish(2)
    other = checkpoints.stage(2, {"state.pt": b"another"})
    checkpoints.store.publish(TRIAL, 3, 2, other)
    assert checkpoints.newest(2, expected=SECOND) == 2
    for expected in (None, CheckpointId(2, 2)):
        newest = checkpoints.store.newest_valid(
            TRIAL, checkpoints.work / "here", at_most=2, expected=expected
        )
        assert newest is not None
        assert (newest[1] / "state.pt").read_bytes() == b"another"


# Folders


def test_folder_on_another_file_system_gets_copies(
    in_folder: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    source = in_folder.stage(1)
    in_folder.store.publish(TRIAL, 1, 1, source)
    assert in_folder.newest() == 1
    assert not source.exists()


def test_file_system_without_folder_sync_is_supported(
    in_folder: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    in_folder.publish(1)
    assert in_folder.newest() == 1


def test_failed_publication_can_be_repeated(in_folder: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of the publication may fail."""
    source, fails_at = in_folder.stage(1), 0
    real, seen = storage._sync, 0

    def sync(path: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == fails_at:
            raise OSError(errno.EIO, "Input/output error")
        real(path)

    monkeypatch.setattr(storage, "_sync", sync)
    while source.exists():
        fails_at, seen = fails_at + 1, 0
        try:
            in_folder.store.publish(TRIAL, 1, 1, source)
        except OSError:
            assert source.exists()
    assert fails_at > 4
    assert in_folder.newest() == 1


def test_partial_checkpoint_folder_is_never_listed(in_folder: Checkpoints) -> None:
    Path(in_folder.root, f"{PARTIAL}step_00000007-a1.77").mkdir(parents=True)
    in_folder.stage(7).rename(Path(in_folder.root, f"{PARTIAL}step_00000007-a1.78"))
    assert in_folder.store.ids(TRIAL) == []


FILLS_UP = """
import os, sys
from pathlib import Path
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.checkpoints.storage import explained
mount, folder = Path(sys.argv[1]), Path(sys.argv[2])
store = CheckpointStore(str(mount), "default", "job_1")
for step in range(1, 9):
    source = folder / str(step)
    source.mkdir()
    (source / "state.pt").write_bytes(os.urandom(300_000))
    try:
        store.publish("trial_00000", 1, step, source)
    except OSError as error:
        print(step, store.newest_valid("trial_00000", folder / "here", at_most=99)[0], explained(error))
        store.prune("trial_00000", 1, newest=step - 1, keep=1)
        print(store.publish("trial_00000", 1, step, source).step)
        break
"""


def test_full_disk_keeps_last_checkpoint_and_recovers_after_pruning(tmp_path: Path) -> None:
    """Use a real file system of 1 MiB, in its own mount namespace."""
    (tmp_path / "mount").mkdir()
    mounted = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}/mount && exec "
    command = " ".join(
        f"'{word}'" for word in (sys.executable, "-c", FILLS_UP, str(tmp_path / "mount"), str(tmp_path))
    )
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, f"{mounted} true"], check=False).returncode
    ):
        pytest.skip("this machine lets nobody mount a file system of their own")
    done = subprocess.run([*unshare, mounted + command], cwd=ROOT, capture_output=True, text=True, check=True)
    printed, again = done.stdout.splitlines()
    assert printed.startswith("4 3 OSError: [Errno 28]"), printed
    assert storage.FULL in printed
    assert again == "4"


# Object storage

DIES_UPLOADING = """
import sys
from pathlib import Path
from tuner.checkpoints import chunks
from tuner.checkpoints.checkpoints import CheckpointStore
url, folder = sys.argv[1:]
chunks.CHUNK_BYTES = 1 << 16
source = Path(folder)
source.mkdir()
with (source / "state.pt").open("wb") as file:
    file.write(b"weights" * (6 << 12))
    file.truncate(120 << 12)
CheckpointStore(url, "default", "job_1").publish("trial_00000", 1, 3, source)
"""


def test_killed_upload_keeps_old_checkpoint_and_its_chunks_are_pruned(
    in_bucket: Checkpoints, bucket: Bucket, tmp_path: Path
) -> None:
    in_bucket.publish(2)
    bucket.proxy.fault("hang", "PUT", "MANIFEST")
    command = [sys.executable, "-c", DIES_UPLOADING, bucket.url, str(tmp_path / "large")]
    uploader = subprocess.Popen(command, env={**os.environ, **bucket.environment})
    try:
        assert bucket.proxy.asks(f"PUT /{in_bucket.path(CheckpointId(3, 1), MANIFEST)}")
    finally:
        uploader.kill()
        uploader.wait()
    assert 0 < len(bucket.chunks()) < 7, "those that hold the same are stored once"
    assert in_bucket.newest(3) == 2
    in_bucket.store.prune(TRIAL, 0, newest=2, keep=2)
    assert bucket.chunks(), "they may be those of a later attempt"
    in_bucket.publish(3, attempt=2)
    in_bucket.store.prune(TRIAL, 2, newest=3, keep=2)
    assert bucket.chunks() == []
    assert in_bucket.newest(3) == 3


def test_newest_durable_checkpoint_survives_storage_failure_at_any_request(
    in_bucket: Checkpoints, bucket: Bucket, pytestconfig: pytest.Config
) -> None:
    """Three checkpoints are saved and older ones removed. The storage fails before the first request, then before
    the second, and so on. The gate lets it fail before every fifth request only.
    """
    proxy, durable, requests, before = bucket.proxy, 0, 0, 0
    while durable < 3:
        durable, proxy.dies_after = 0, requests
        proxy.asked.clear()
        with contextlib.suppress(Exception):  # any kind of exception that the client raises
            for step in (1, 2, 3):
                in_bucket.publish(step, attempt=1 + requests)
                durable = step
                in_bucket.store.prune(TRIAL, 1 + requests, newest=step, keep=1)
        proxy.dies_after = None
        newest = in_bucket.newest(3) or 0
        assert newest >= (durable or before)
        requests, before = requests + (1 if pytestconfig.option.all else 5), newest
    assert requests > 20
    in_bucket.store.prune(TRIAL, requests, newest=3, keep=1)
    assert {name.partition("-")[0] for name in in_bucket.names()} == {"step_00000003"}
