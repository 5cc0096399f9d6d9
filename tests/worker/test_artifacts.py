"""Artifacts of a trial: what is stored and listed, with storage that refuses and user code that leaves links."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.waiting import until
from tuner.checkpoints.artifacts import ArtifactDamaged, ArtifactsFull, TrialArtifacts
from tuner.checkpoints.storage import Storage
from tuner.training.artifacts import ArtifactFolder, ArtifactRefused, folder_of, stage
from tuner.worker import publishing, replies
from tuner.worker.publishing import staged_artifacts

TRIAL = ("default", "job_1", "trial_00000")


@pytest.fixture
def stored(tmp_path: Path) -> TrialArtifacts:
    return TrialArtifacts(str(tmp_path / "storage"), *TRIAL)


def add(stored: TrialArtifacts, attempt: int, step: int, **files: bytes) -> None:
    stored.add(attempt, step, files, at_ns=5, max_files=3, max_bytes=20)


def steps(stored: TrialArtifacts) -> dict[str, int]:
    return {name: artifact.step for name, artifact in stored.list().items()}


def test_newest_file_of_a_name_is_kept_across_attempts(stored: TrialArtifacts, tmp_path: Path) -> None:
    assert stored.list() == {}
    add(stored, 1, 1, a=b"one", b=b"two")
    add(stored, 1, 2, a=b"three")
    add(stored, 2, 2, c=b"four")
    assert steps(stored) == {"a": 2, "b": 1, "c": 2}
    assert stored.read(stored.list()["a"]) == b"three"
    names = {path.name for path in (tmp_path / "storage").rglob("*") if path.is_file()}
    assert names == {"a1.json", "a2.json", "a1-s2-a", "a1-s1-b", "a2-s2-c"}


def test_files_beyond_the_limits_of_the_trial_are_not_stored(stored: TrialArtifacts) -> None:
    add(stored, 1, 1, a=b"1" * 15)
    for too_many in ({"b": b"1" * 6}, {"b": b"", "c": b"", "d": b""}):
        with pytest.raises(ArtifactsFull, match="its limits are 3 artifacts and 20 bytes"):
            add(stored, 2, 2, **too_many)
    add(stored, 2, 2, a=b"1" * 20)
    assert steps(stored) == {"a": 2}


@pytest.mark.parametrize("refused", ["a1-s2-a", "a1-s2-b", "a1.json"])
def test_file_is_listed_only_if_all_of_its_report_is_stored(
    stored: TrialArtifacts, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    add(stored, 1, 1, a=b"old")
    real = Storage.put_file

    def put_file(self: Storage, data: bytes, *parts: str, **more: Any) -> None:
        if parts[-1] == refused:
            raise OSError("the storage refuses")
        real(self, data, *parts, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "put_file", put_file)
        with pytest.raises(OSError, match="refuses"):
            add(stored, 1, 2, a=b"new", b=b"more")
    assert steps(stored) == {"a": 1}
    assert stored.read(stored.list()["a"]) == b"old"
    add(stored, 1, 2, a=b"new", b=b"more")
    assert steps(stored) == {"a": 2, "b": 2}


def test_index_and_files_that_were_changed_are_refused(stored: TrialArtifacts, tmp_path: Path) -> None:
    add(stored, 1, 1, a=b"content")
    folder = tmp_path.joinpath("storage", *TRIAL, "artifacts")
    artifact = stored.list()["a"]
    index = (folder / "a1.json").read_text()
    for old, new in (
        ("a1-s1-a", "../../a"),
        (artifact.sha256, "0"),
        ('"version": 1', '"version": 2'),
        ("artifacts", "x"),
    ):
        (folder / "a1.json").write_text(index.replace(old, new))
        with pytest.raises(ArtifactDamaged):
            stored.list()
    for content in (b"CONTENT", b"more content"):
        (folder / "a1-s1-a").write_bytes(content)
        with pytest.raises(ArtifactDamaged, match="damaged"):
            stored.read(artifact)
    (folder / "a1-s1-a").unlink()
    with pytest.raises(ArtifactDamaged, match="missing"):
        stored.read(artifact)


def test_links_and_special_files_in_the_staging_directory_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secrets"
    secret.mkdir()
    (secret / "a").write_bytes(b"what nobody is to see")
    staging = tmp_path / "staging"
    for made in ("link", "hidden", "missing", "folder"):
        folder = folder_of(staging, 1)
        folder.mkdir(parents=True)
        if made == "link":
            (folder / "a").symlink_to(secret / "a")
        elif made == "hidden":
            folder.rmdir()
            folder.symlink_to(secret)
        elif made == "folder":
            (folder / "a").mkdir()
        with pytest.raises(ArtifactRefused):
            staged_artifacts(staging, 1, ["a"])
        folder.unlink() if folder.is_symlink() else None
    assert (secret / "a").exists()
    stage(staging, 2, {"a": b"mine"})
    assert staged_artifacts(staging, 2, ["a"]) == {"a": b"mine"}
    assert not folder_of(staging, 2).exists()


def test_files_of_a_directory_are_found_when_they_are_new_or_have_changed(tmp_path: Path) -> None:
    folder = ArtifactFolder(tmp_path / "figures")
    assert folder.changed() == {}
    (tmp_path / "figures" / "inner").mkdir(parents=True)
    for name in ("b", "a", ".unfinished"):
        (tmp_path / "figures" / name).write_text("1")
    (tmp_path / "figures" / "link").symlink_to("/etc/passwd")
    assert list(folder.changed()) == ["a", "b"]
    assert folder.changed() == {}
    (tmp_path / "figures" / "b").write_text("longer")
    (tmp_path / "figures" / ".unfinished").rename(tmp_path / "figures" / "c")
    assert folder.changed() == {name: tmp_path / "figures" / name for name in ("b", "c")}


def test_attempt_stores_what_it_reports_and_continues_if_the_storage_refuses(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drive("reports_artifacts")
    driver.run_to(2)
    paused = driver.end("pause")
    stored = TrialArtifacts(str(tmp_path / "storage"), *TRIAL)
    assert steps(stored) == {"table.csv": 2, "first.txt": 1}
    assert paused["usage"]["artifact_bytes"] == 2 * len("step 1")
    monkeypatch.setattr(publishing, "WAITS_S", ())
    monkeypatch.setattr(TrialArtifacts, "list", _refuse)
    driver.run_to(3, restore=2)
    driver.end("pause")
    monkeypatch.undo()
    assert steps(stored) == {"table.csv": 2, "first.txt": 1}
    driver.begin(target_step=4, restore=3, config={"leaves_link": str(tmp_path)})
    failed = driver.until_state("failed")
    message = failed["error"]["message"]
    assert "an artifact was refused: the directory for the step's artifacts is a link" in message
    driver.begin(target_step=2, artifact_room=9, config={"evades": 2})
    failed = driver.until_state("failed")
    assert "of which 9 were left for this attempt" in failed["error"]["message"]
    assert steps(stored) == {"table.csv": 2, "first.txt": 1, "large": 1}


@pytest.mark.parametrize("fails", [False, True], ids=["hangs", "fails"])
def test_training_continues_while_artifacts_cannot_be_stored(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(replies, "ARTIFACTS_WAIT_NS", 10**15 if fails else 0)
    monkeypatch.setattr(publishing, "WAITS_S", ())
    answers, calls, real = threading.Event(), [], TrialArtifacts.add

    def add(*args: Any, **more: Any) -> Any:
        calls.append(args)
        if not fails or len(calls) > 1:
            answers.wait()
        if fails and len(calls) == 1:
            raise OSError("the storage refuses")
        return real(*args, **more)

    monkeypatch.setattr(TrialArtifacts, "add", add)
    driver = drive("reports_artifacts")
    stored = TrialArtifacts(str(tmp_path / "storage"), *TRIAL)
    try:
        driver.run_to(8)
        assert stored.list() == {}
        attempt = driver.supervisor.attempt
        assert attempt.drops_artifacts
        until(lambda: not folder_of(attempt.staging, 8).exists())
    finally:
        answers.set()
    driver.until(lambda _: attempt.unstored == 0)
    assert not attempt.drops_artifacts
    driver.order("continue", target_step=9, lease_ns=0)
    driver.until_state("waiting")
    driver.until(lambda _: steps(stored)["table.csv"] == 9)


def test_replaced_file_that_cannot_be_deleted_is_not_listed(
    stored: TrialArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(stored, 1, 1, a=b"old")
    monkeypatch.setattr(Storage, "remove", _refuse)
    add(stored, 1, 2, a=b"new")
    assert stored.read(stored.list()["a"]) == b"new"


def _refuse(*_: object) -> None:
    raise OSError("the storage refuses")
