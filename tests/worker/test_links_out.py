"""Test that links which user code leaves in the storage or in a checkpoint lead to nothing outside."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.worker.checkpoints import TRIAL, Checkpoints
from tuner.checkpoints.attempt_logs import Printed, TrialLogs
from tuner.checkpoints.checkpoints import (
    MANIFEST,
    CheckpointDamaged,
    CheckpointId,
    CheckpointMissing,
    CheckpointStore,
)
from tuner.checkpoints.storage import Storage
from tuner.worker.attempt import RunningAttempt
from tuner.worker.publishing import publish, unsafe_reason

SECRET = b"what nobody is to see"
FOUND = CheckpointId(3, 1)
NAMES = [
    "../outside", "../../outside", "../../../../../outside", "a/../../outside", "./../outside", "ABS", "//ABS", "", ".", "..", "a/..",
    "../step_00000002-a1/state.pt", "../../trial_00001/step_00000003-a1/state.pt", "a/../../../../../outside", "\u0000", "state.pt/..",
    "../" * 40 + "ABS", "a/b/../../../outside",
]  # fmt: skip


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_bytes(SECRET)
    return tmp_path / "outside"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a complete checkpoint."""
    checkpoints = Checkpoints(
        str(tmp_path / "storage"), tmp_path, lambda _: {"state.pt": b"state", "inner/more.pt": b"more"}
    )
    checkpoints.publish(3)
    return Path(checkpoints.root, FOUND.name)


def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "storage"), "default", "job_1")


def name_file(folder: Path, name: str) -> None:
    """Add to the manifest a file with the size and digest of the one outside."""
    manifest = json.loads((folder / MANIFEST).read_text())
    described = {"path": name, "bytes": len(SECRET), "sha256": hashlib.sha256(SECRET).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps({**manifest, "files": [*manifest["files"], described]}))


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_manifest_that_names_a_file_outside_is_rejected(
    tmp_path: Path, folder: Path, outside: Path, name: str
) -> None:
    name_file(folder, name.replace("ABS", str(outside).lstrip("/") if name != "ABS" else str(outside)))
    with pytest.raises((CheckpointDamaged, ValueError)):
        store(tmp_path).fetch(TRIAL, FOUND, tmp_path / "here")


def _instead(path: str, target: str) -> Callable[[Path, Path], None]:
    def plant(folder: Path, outside: Path) -> None:
        place, to = folder / path, target.replace("ABS", str(outside))
        if place.exists():
            place.rename(outside.with_name("moved"))
        place.symlink_to(to)
        if path != MANIFEST:
            name_file(folder, path)

    return plant


def _whole_elsewhere(folder: Path, outside: Path) -> None:
    folder.rename(outside.with_name("elsewhere"))
    folder.symlink_to(outside.with_name("elsewhere"))


def _folder_within(folder: Path, outside: Path) -> None:
    (folder / "inner").rename(outside.with_name("inner"))
    (folder / "inner").symlink_to(outside.with_name("inner"))


def _trial_elsewhere(folder: Path, outside: Path) -> None:
    folder.parent.rename(outside.with_name("trial"))
    folder.parent.symlink_to(outside.with_name("trial"))


LINKS = {
    "a file": _instead("extra.pt", "ABS"),
    "a file, by a way that climbs": _instead("extra.pt", "../../../../../outside"),
    "the state": _instead("state.pt", "ABS"),
    "a link to a link": _instead("inner/link", "../inner/../../../../../../outside"),
    "the manifest": _instead(MANIFEST, "ABS"),
    "a folder within": _folder_within,
    "the checkpoint": _whole_elsewhere,
    "the trial": _trial_elsewhere,
}


@pytest.mark.parametrize("name", LINKS)
def test_link_out_of_the_storage_is_not_followed(
    tmp_path: Path, folder: Path, outside: Path, name: str
) -> None:
    assert store(tmp_path).fetch(TRIAL, FOUND, tmp_path / "here") == tmp_path / "here"
    LINKS[name](folder, outside)
    with pytest.raises((CheckpointDamaged, CheckpointMissing)):
        store(tmp_path).fetch(TRIAL, FOUND, tmp_path / "here")


def test_file_that_the_manifest_does_not_name_is_not_fetched(
    tmp_path: Path, folder: Path, outside: Path
) -> None:
    """A warm start stores all fetched files in another job, and a mirror uploads them."""
    (folder / "planted.pt").symlink_to(outside)
    (folder / "planted").symlink_to(outside.parent)
    fetched = store(tmp_path).fetch(TRIAL, FOUND, tmp_path / "here")
    files = {path.relative_to(fetched).as_posix() for path in fetched.rglob("*") if not path.is_dir()}
    assert files == {"state.pt", "inner/more.pt"}


def test_job_folder_linked_to_another_disk_is_read(tmp_path: Path, folder: Path) -> None:
    job = folder.parents[1]
    job.rename(tmp_path / "other-disk")
    job.symlink_to(tmp_path / "other-disk")
    assert (store(tmp_path).fetch(TRIAL, FOUND, tmp_path / "here") / "state.pt").read_bytes() == b"state"


def test_log_that_is_a_link_is_ignored(tmp_path: Path, outside: Path) -> None:
    logs = TrialLogs(str(tmp_path / "storage"), "default", "job_1", TRIAL)
    logs.write(1, Printed(5, b"words", b"", complete=True))
    place = tmp_path / "storage/default/job_1" / TRIAL / "logs"
    real = (place / "a1.log").read_bytes()
    assert logs.read(1) is not None
    outside.write_bytes(real)
    (place / "a2.log").symlink_to(outside)
    assert logs.read(2) is None


# Paths that user code claims to have saved

CLAIMS = [
    "", "/", "..", "../other", "../../..", "/etc", "/proc/self", "/tmp", ".", "step/../..", "step/../../other", "link-out", "link-up",
]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=repr)
def test_checkpoint_path_outside_its_directory_is_refused(tmp_path: Path, claim: str) -> None:
    staging = tmp_path / "staging/trial_00000-a1"
    (staging / "step").mkdir(parents=True)
    (tmp_path / "staging/other").mkdir()
    (staging / "link-out").symlink_to("/etc")
    (staging / "link-up").symlink_to("..")
    assert unsafe_reason(staging / "step", staging) == ""
    assert "is not in the directory for checkpoints" in unsafe_reason(staging / claim, staging)


TARGETS = [
    "/etc/passwd",
    "/proc/self/environ",
    "../../../outside",
    "..",
    "../other-step/state.pt",
    "/",
    "nowhere/../../x",
    "/nowhere",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", ["state.pt", "inner/deep/state.pt"])
def test_link_out_of_a_checkpoint_is_refused(tmp_path: Path, target: str, place: str) -> None:
    step = tmp_path / "staging/step"
    (step / place).parent.mkdir(parents=True)
    (step / "real").write_text("state")
    (step / "fine").symlink_to("real")
    assert unsafe_reason(step, tmp_path / "staging") == ""
    (step / place).symlink_to(target if target.startswith("/") else "../" * place.count("/") + target)
    assert os.path.islink(step / place)
    assert f"{place} is a link to a file outside the checkpoint" in unsafe_reason(step, tmp_path / "staging")


@pytest.mark.parametrize("is_absolute", [True, False])
def test_link_to_a_file_of_its_checkpoint_is_stored_as_a_file(tmp_path: Path, is_absolute: bool) -> None:
    step = tmp_path / "staging/step"
    (step / "inner").mkdir(parents=True)
    (step / "epoch_3.pt").write_bytes(b"state")
    (step / "inner/best.pt").symlink_to(step / "epoch_3.pt" if is_absolute else "../epoch_3.pt")
    assert unsafe_reason(step, tmp_path / "staging") == ""
    store(tmp_path).publish(TRIAL, 1, 3, step)
    fetched = store(tmp_path).fetch(TRIAL, FOUND, tmp_path / "here")
    assert (fetched / "inner/best.pt").read_bytes() == b"state"


def test_link_that_is_placed_after_the_check_of_a_checkpoint_is_not_stored(
    tmp_path: Path, outside: Path
) -> None:
    step = tmp_path / "staging/step"
    step.mkdir(parents=True)
    (step / "state.pt").symlink_to(outside)
    with pytest.raises(FileNotFoundError, match="leads out of"):
        Storage(str(tmp_path / "storage")).put_directory(step, (MANIFEST, b"{}"), "job_1", "step")
    assert list((tmp_path / "storage").rglob("*.pt")) == []


def test_save_whose_path_cannot_be_examined_fails_with_a_reason(tmp_path: Path) -> None:
    """The publisher must return, because the attempt waits for the outcome of its save."""
    attempt = cast(RunningAttempt, SimpleNamespace(trial=TRIAL, staging=tmp_path))
    published, failure = publish(store(tmp_path), attempt, 1, tmp_path / "a\0b", frozenset())
    assert published is None
    assert failure is not None
    assert "null" in failure["message"]


@pytest.mark.parametrize("place", ["file", "directory"])
def test_link_that_is_placed_after_the_check_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """User code runs while the service reads, so it can replace a file or its directory just before it is opened."""
    inner, elsewhere = tmp_path / "storage" / "a" / "b" / "inner", tmp_path / "elsewhere"
    for folder, content in ((inner, b"own"), (elsewhere, SECRET)):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(content)
    storage = Storage(str(tmp_path / "storage"))
    assert storage.read("a", "b", "inner", "file") == b"own"
    assert storage.read_range(1, 9, "a", "b", "inner", "file") == b"wn"
    assert storage.size("a", "b", "inner", "file") == 3
    really = os.path.realpath

    def realpath(path: str) -> str:
        resolved = really(path)
        if resolved == str(inner / "file"):
            target = inner / "file" if place == "file" else inner
            target.rename(tmp_path / "moved")
            target.symlink_to(elsewhere / "file" if place == "file" else elsewhere)
        return resolved

    monkeypatch.setattr(os.path, "realpath", realpath)
    with pytest.raises(FileNotFoundError):
        storage.read("a", "b", "inner", "file")


def test_fifo_in_the_storage_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / "b" / "file")
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a plain open waits for a writer"))
    with pytest.raises(FileNotFoundError, match="not a regular file"):
        Storage(str(tmp_path)).read("a", "b", "file")
