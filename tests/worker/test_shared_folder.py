"""Test checkpoints in a folder that many machines mount: full, with delayed listings, on another file system,
and damaged.
"""

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

from tuner.checkpoints import storage
from tuner.checkpoints.checkpoints import MANIFEST, CheckpointStore, Found
from tuner.checkpoints.storage import PARTIAL
from tuner.worker import publishing

ROOT = Path(__file__).parents[2]
TRIAL = "trial_00000"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WAITS_S", (0.01,) * 6)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "storage"), "default", "job_1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the trial."""
    return tmp_path / "storage/default/job_1" / TRIAL


def staged(tmp_path: Path, step: int) -> Path:
    source = tmp_path / f"staged-{step}"
    (source / "shards").mkdir(parents=True)
    (source / "state.pt").write_text(f"step-{step}")
    (source / "shards/0.bin").write_text("shard")
    return source


def publish(store: CheckpointStore, tmp_path: Path, *steps: int) -> None:
    for step in steps:
        store.publish(TRIAL, 1, step, staged(tmp_path, step))


def newest(store: CheckpointStore, tmp_path: Path, at_most: int = 9) -> int | None:
    found = store.newest_valid(TRIAL, tmp_path / "here", at_most=at_most)
    if found is None:
        return None
    assert (found[1] / "state.pt").read_text() == f"step-{found[0]}"
    return found[0]


def rewritten(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**manifest, **changes}))

    return change


def of_the_first(folder: Path) -> None:
    """Replace the checkpoint of step 2 by the files and manifest of step 1."""
    shutil.rmtree(folder)
    shutil.copytree(folder.parent / "step_00000001-a1", folder)


def flip(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return change


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped byte": flip("state.pt"),
    "a flipped byte in a shard": flip("shards/0.bin"),
    "a flipped byte in the manifest": flip(MANIFEST),
    "a missing shard": lambda folder: (folder / "shards/0.bin").unlink(),
    "missing shards": lambda folder: shutil.rmtree(folder / "shards"),
    "a folder in place of a file": lambda folder: (
        (folder / "state.pt").unlink(),
        (folder / "state.pt").mkdir(),
    ),
    "a cut file": cut("state.pt"),
    "a cut manifest": cut(MANIFEST),
    "an empty manifest": lambda folder: (folder / MANIFEST).write_text(""),
    "a manifest that is a list": lambda folder: (folder / MANIFEST).write_text("[1, 2]"),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "a newer version": rewritten(version=3),
    "another trial's": rewritten(trial="trial_00001"),
    "another job's": rewritten(job="job_2"),
    "another step's": rewritten(step=1),
    "another checkpoint": of_the_first,
    "no files": rewritten(files=[]),
    "files of no kind": rewritten(files=["state.pt"]),
    "files elsewhere": rewritten(files=[{"path": "/etc/hostname", "bytes": 1, "sha256": ""}]),
    "files above": rewritten(files=[{"path": "../step_00000001-a1/state.pt", "bytes": 6, "sha256": ""}]),
    "the folder as a file": rewritten(files=[{"path": ".", "bytes": 1, "sha256": ""}]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_checkpoint_is_skipped_for_the_previous_one(
    store: CheckpointStore, tmp_path: Path, folder: Path, damage: Callable[[Path], object]
) -> None:
    publish(store, tmp_path, 1, 2)
    assert newest(store, tmp_path) == 2
    damage(folder / "step_00000002-a1")
    assert newest(store, tmp_path) == 1


UNSEEN = {
    "a flipped byte",
    "a flipped byte in a shard",
    "a flipped byte in the manifest",  # which may be a digit of a digest
    "a missing shard",
    "missing shards",
    "a folder in place of a file",
    "a cut file",
}
SEEN = {name: damage for name, damage in DAMAGES.items() if name not in UNSEEN}


@pytest.mark.parametrize("damage", SEEN.values(), ids=SEEN.keys())
def test_damaged_checkpoint_does_not_count_when_pruning(
    store: CheckpointStore, tmp_path: Path, folder: Path, damage: Callable[[Path], object]
) -> None:
    """Only damage that the manifest reveals counts, because pruning does not read all the data again."""
    publish(store, tmp_path, 1, 2)
    damage(folder / "step_00000002-a1")
    publish(store, tmp_path, 3)
    store.prune(TRIAL, 1, newest=3, keep=2)
    shutil.rmtree(folder / "step_00000003-a1")
    assert newest(store, tmp_path) == 1


# Each error with its advice and the number of tries. Errors that a wait cannot resolve are retried less often.
TAKES_NO_MORE = [
    (errno.ENOSPC, "make room", 4),
    (errno.EDQUOT, "make room", 4),
    (errno.EACCES, "credentials", 4),
    (errno.EIO, "trouble", 7),
    (errno.ESTALE, "trouble", 7),
]


@pytest.mark.parametrize(("number", "advice", "tries"), TAKES_NO_MORE)
def test_unwritable_folder_fails_the_attempt_with_advice(
    drive: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, number: int, advice: str, tries: int
) -> None:
    tried: list[int] = []

    def refuse(*_: object) -> None:
        tried.append(number)
        raise OSError(number, os.strerror(number))

    driver = drive("counts")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_link_or_copy", refuse)
        driver.begin(until=1)
        driver.until_state("waiting")
        driver.order("pause")
        failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "storage"
    assert advice in failed["error"]["message"]
    assert len(tried) == tries
    assert list(folder.iterdir()) == [], "what cannot be used does not fill the disk"
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    assert driver.until_state("paused")["saved_step"] == 1


def test_folder_on_another_file_system_gets_copies(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    publish(store, tmp_path, 1)
    assert newest(store, tmp_path) == 1
    assert not (tmp_path / "staged-1").exists()


def test_file_system_without_folder_sync_is_supported(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    publish(store, tmp_path, 1)
    assert newest(store, tmp_path) == 1


def test_failed_publication_can_be_repeated(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of the publication may fail."""
    source, fails_at = staged(tmp_path, 1), 0
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
            store.publish(TRIAL, 1, 1, source)
        except OSError:
            assert source.exists()
    assert fails_at > 4
    assert newest(store, tmp_path) == 1


def test_empty_or_missing_source_is_not_published(
    store: CheckpointStore, tmp_path: Path, folder: Path
) -> None:
    """A save that hung may continue after its attempt, when its files are gone."""
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "gone"):
        with pytest.raises(FileNotFoundError):
            store.publish(TRIAL, 1, 1, source)
    assert not folder.exists()


@pytest.mark.parametrize(("there", "tries"), [(True, 7), (False, 4)])
def test_unmounted_folder_does_not_restart_the_trial(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, tries: int
) -> None:
    """If only the checkpoint is missing, it may still appear, because another machine wrote it."""
    if there:
        (tmp_path / "storage").mkdir()
    looks: list[str] = []
    found = CheckpointStore.found
    monkeypatch.setattr(
        CheckpointStore, "found", lambda store, trial: (looks.append(trial), found(store, trial))[1]
    )
    driver = drive("counts")
    driver.begin(until=6, restore=5, restore_attempt=1)
    failed = driver.until_state("failed")
    assert "mount it on every worker" in failed["error"]["message"]
    assert driver.reports == []
    assert len(looks) == tries + 1, "and a last one for an older checkpoint"


def test_trial_restarts_from_scratch_if_all_checkpoints_are_damaged(drive: Any, folder: Path) -> None:
    driver = drive("counts")
    driver.begin(until=2)
    driver.until_state("waiting")
    driver.order("pause")
    driver.until_state("paused")
    flip("state.pt")(folder / "step_00000002-a1")
    driver.begin(until=2, restore=2, restore_attempt=1)
    assert driver.until_state("waiting")["from_step"] == 0
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 1, 2]


def test_damaged_best_checkpoint_keeps_all_candidates_for_the_best(drive: Any, folder: Path) -> None:
    driver = drive("counts")
    for step in (1, 2, 3):
        driver.begin(until=step, restore=step - 1 or None, restore_attempt=step - 1, keep=9)
        driver.until_state("waiting")
        driver.order("pause")
        driver.until_state("paused")
    flip("state.pt")(folder / "step_00000003-a3")
    driver.begin(until=3, restore=3, restore_attempt=3, keep=1, best=(0.9, 3))
    assert driver.until_state("waiting")["from_step"] == 2
    driver.order("pause")
    driver.until_state("paused")
    assert sorted(path.name for path in folder.iterdir()) == [
        "step_00000001-a1",
        "step_00000002-a2",
        "step_00000003-a4",
    ]


def test_stale_listing_does_not_hide_a_known_checkpoint(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS, for example, caches the listing of a folder for up to a minute."""
    publish(store, tmp_path, 1, 2)
    monkeypatch.setattr(storage.Storage, "names", lambda *_: ["step_00000001-a1"])
    found = store.newest_valid(TRIAL, tmp_path / "here", at_most=2, expected=Found(2, 1))
    assert found is not None
    assert found[0] == 2


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
    said, again = done.stdout.splitlines()
    assert said.startswith("4 3 OSError: [Errno 28]"), said
    assert storage.FULL in said
    assert again == "4"


def test_partial_checkpoint_folder_is_never_listed(
    store: CheckpointStore, tmp_path: Path, folder: Path
) -> None:
    (folder / f"{PARTIAL}step_00000007-a1.77").mkdir(parents=True)
    shutil.copytree(staged(tmp_path, 7), folder / f"{PARTIAL}step_00000007-a1.78")
    assert store.found(TRIAL) == []


def test_expected_checkpoint_is_preferred_over_others_of_its_step(
    store: CheckpointStore, tmp_path: Path
) -> None:
    """Checkpoints of later attempts may belong to another configuration if the database was restored from a
    backup.
    """
    publish(store, tmp_path, 2)
    other = staged(tmp_path, 2)
    (other / "state.pt").write_text("another")
    store.publish(TRIAL, 3, 2, other)
    for expected, text in ((Found(2, 1), "step-2"), (None, "another"), (Found(2, 2), "another")):
        found = store.newest_valid(TRIAL, tmp_path / "here", at_most=2, expected=expected)
        assert found is not None
        assert (found[1] / "state.pt").read_text() == text


@pytest.mark.parametrize("path", [1, None, ["x"], {"a": 1}, "a folder"], ids=str)
def test_a_tampered_manifest_is_skipped_for_the_checkpoint_before(
    store: CheckpointStore, folder: Path, tmp_path: Path, path: object
) -> None:
    publish(store, tmp_path, 1, 2)
    manifest = folder / Found(2, 1).name / MANIFEST
    if path == "a folder":
        manifest.unlink()
        manifest.mkdir()
    else:
        written = json.loads(manifest.read_text())
        written["files"][0]["path"] = path
        manifest.write_text(json.dumps(written))
    assert newest(store, tmp_path) == 1
    found = store.newest_valid(TRIAL, tmp_path / "again", at_most=9, last_try=True)
    assert found is not None
    assert found[0] == 1
