"""Test storage that fails, hangs or holds damaged checkpoints, and children that die while they save: each costs only its own attempt."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.waiting import until
from tests.worker.driving import LEASE_S, SECOND, parsed
from tuner.checkpoints import storage
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.checkpoints.storage import PARTIAL
from tuner.driver.messages import end_of
from tuner.worker import publishing
from tuner.worker.background import Publisher
from tuner.worker.endings import EXIT_GRACE_S
from tuner.worker.server_handle import ForkServer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WAITS_S", (0.01,) * 6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the trial."""
    return tmp_path / "storage/default/job_1/trial_00000"


@pytest.mark.parametrize("operation", ["publish", "newest_valid"])
def test_unexpected_storage_error_fails_the_attempt_and_is_named(
    drive: Any, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("the bucket is gone")

    monkeypatch.setattr(CheckpointStore, operation, refuse)
    driver = drive("counts")
    driver.begin(target_step=1, restore=1 if operation == "newest_valid" else None)
    if operation == "publish":
        driver.until_state("waiting")
        driver.order("pause")
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "storage"
    assert "the bucket is gone" in failed["error"]["message"]
    failure = parsed(failed).failure
    assert failure is not None
    assert failure.is_storage_failure


@pytest.mark.parametrize(
    ("case", "module", "message"),
    [
        (
            "saves_nothing",
            "tests.worker.tune_cases",
            "has no files to store; write the checkpoint's files there",
        ),
        ("saves_outside", "tests.worker.cases", "is not in the directory for checkpoints"),
    ],
)
def test_checkpoint_that_cannot_be_stored_fails_the_trial_and_not_the_storage(
    drive: Any, monkeypatch: pytest.MonkeyPatch, case: str, module: str, message: str
) -> None:
    """It is tried once, because the next try would fail in the same way."""
    monkeypatch.setattr(publishing, "WAITS_S", (10_000.0,) * 6)
    driver = drive(case, module)
    driver.run_to(1)
    failed = driver.end("pause", "failed")
    assert failed["error"]["kind"] == "saving"
    assert message in failed["error"]["message"]
    assert "TUNER_STORAGE" not in failed["error"]["message"]
    assert end_of(parsed(failed)) == "failed"


def test_failed_save_and_failed_deletion_are_logged(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("DeleteObject is not allowed")

    monkeypatch.setattr(CheckpointStore, "prune", refuse)
    driver = drive("fails_to_save")
    driver.run_to(1, metric="acc", mode="max", job_best=0.0)
    driver.order("continue", target_step=2, lease_ns=0)
    driver.until_state("waiting")
    assert driver.end("pause")["saved_step"] == 2
    assert "trial_00000: the trial could not save step 1: FileExistsError" in caplog.text
    assert (
        "older checkpoints could not be deleted: PermissionError: DeleteObject is not allowed" in caplog.text
    )


def test_wait_for_storage_is_reported_as_outage(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker reports it for a restore and for the final save, because nothing else is done meanwhile."""
    monkeypatch.setattr(publishing, "WAITS_S", (0.4,) * 4)
    fails: list[bool] = []

    def once(work: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if fails:
                raise OSError(f"busy {fails.pop()}")
            return work(*args, **more)

        return call

    monkeypatch.setattr(CheckpointStore, "publish", once(CheckpointStore.publish))
    monkeypatch.setattr(CheckpointStore, "newest_valid", once(CheckpointStore.newest_valid))
    driver = drive("counts")
    for restore, kind in ((None, "checkpoint"), (1, "restore")):
        fails.append(True)
        paused = driver.save_at(1 if restore is None else 2, restore=restore)
        assert SECOND // 5 <= paused["outage_ns"] <= paused["meter"][kind]
        assert parsed(paused).outage_ns == paused["outage_ns"]


def test_attempt_with_a_hanging_save_can_be_stopped_and_the_next_saves(
    drive: Any, hanging_save: tuple[threading.Event, threading.Event]
) -> None:
    driver = drive("counts")
    driver.run_to(1)
    driver.order("pause")
    assert driver.supervisor.step()["state"] == "running"
    assert hanging_save[0].wait(240)
    driver.end("stop")
    driver.save_at(1)


def test_hanging_save_ends_with_the_lease(
    drive: Any, hanging_save: tuple[threading.Event, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hanging artifacts get only the time that the save has left of the grace."""
    graces: list[float] = []
    settle = Publisher.settle

    def noted(self: Publisher, timeout_s: float) -> None:
        graces.append(timeout_s)
        settle(self, timeout_s)

    monkeypatch.setattr(Publisher, "settle", noted)
    driver = drive("counts")
    driver.run_to(1)
    driver.order("pause")
    assert hanging_save[0].wait(240)
    driver.supervisor._uploads._artifacts.submit(hanging_save[1].wait)
    lease_ns = driver.lease_ends_in(1)
    ended = driver.until_state("paused")
    assert graces[0] >= EXIT_GRACE_S
    assert graces[1] < EXIT_GRACE_S / 2
    assert ended["error"]["kind"] == "lease"
    assert ended["saved_step"] is None
    assert sum(ended["meter"].values()) == lease_ns


def test_unrecorded_checkpoint_replaces_no_recorded_checkpoint(drive: Any, folder: Path) -> None:
    """The driver died while step 4 was being saved, and the next driver continues from step 2."""
    driver = drive("counts")
    driver.save_at(2, keep=1)
    driver.save_at(4, restore=2, keep=1)
    driver.save_at(3, restore=2, keep=1)
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 3, 4, 3]
    assert sorted(path.name for path in folder.iterdir()) == ["step_00000002-a1", "step_00000003-a3"]


def test_partial_checkpoint_is_removed_by_the_next_complete_save(drive: Any, folder: Path) -> None:
    driver = drive("counts")
    driver.attempt = 3
    for name in (
        f"{PARTIAL}step_00000001-a1.77",
        "step_00000001-a2",
        f"{PARTIAL}step_00000009-a9.77",
        "step_00000009-a9",
    ):
        (folder / name).mkdir(parents=True)
    driver.save_at(2, keep=1)
    left = sorted(path.name for path in folder.iterdir())
    assert left == [f"{PARTIAL}step_00000009-a9.77", "step_00000002-a4", "step_00000009-a9"], (
        "a later attempt's stays"
    )


# Each error with its advice and the number of tries. Errors that a wait cannot resolve are retried less often.
TAKES_NO_MORE = [
    (errno.ENOSPC, "free space", 4),
    (errno.EDQUOT, "free space", 4),
    (errno.EACCES, "credentials", 4),
    (errno.EIO, "out of order", 7),
    (errno.ESTALE, "out of order", 7),
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
        driver.run_to(1)
        failed = driver.end("pause", "failed")
    assert failed["error"]["kind"] == "storage"
    assert advice in failed["error"]["message"]
    assert len(tried) == tries
    assert list(folder.iterdir()) == [], "what cannot be used does not fill the disk"
    driver.save_at(1)


@pytest.mark.parametrize(("there", "tries"), [(True, 7), (False, 4)])
def test_unmounted_folder_does_not_restart_the_trial(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, tries: int
) -> None:
    """If only the checkpoint is missing, it may still appear, because another machine wrote it."""
    if there:
        (tmp_path / "storage").mkdir()
    looks: list[str] = []
    ids = CheckpointStore.ids
    monkeypatch.setattr(
        CheckpointStore, "ids", lambda store, trial: (looks.append(trial), ids(store, trial))[1]
    )
    driver = drive("counts")
    driver.begin(target_step=6, restore=5, restore_attempt=1)
    failed = driver.until_state("failed")
    assert "mount a folder on every worker" in failed["error"]["message"]
    assert driver.reports == []
    assert len(looks) == tries + 1, "and a last one for an older checkpoint"


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def test_trial_restarts_from_scratch_if_all_checkpoints_are_damaged(drive: Any, folder: Path) -> None:
    driver = drive("counts")
    driver.save_at(2)
    damage(folder / "step_00000002-a1/state.pt")
    assert driver.run_to(2, restore=2, restore_attempt=1)["from_step"] == 0
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 1, 2]


def test_damaged_best_checkpoint_keeps_all_candidates_for_the_best(drive: Any, folder: Path) -> None:
    driver = drive("counts")
    for step in (1, 2, 3):
        driver.save_at(step, restore=step - 1 or None, restore_attempt=step - 1, keep=9)
    damage(folder / "step_00000003-a3/state.pt")
    assert driver.run_to(3, restore=3, restore_attempt=3, keep=1, best=(0.9, 3))["from_step"] == 2
    driver.end("pause")
    assert sorted(path.name for path in folder.iterdir()) == [
        "step_00000001-a1",
        "step_00000002-a2",
        "step_00000003-a4",
    ]


def test_child_that_dies_while_saving_for_a_pause_ends_attempt(drive: Any) -> None:
    driver = drive("dies_saving")
    driver.run_to(1)
    failed = driver.end("pause", "failed")
    assert failed["error"]["kind"] == "killed"
    assert sum(failed["meter"].values()) < LEASE_S * SECOND


def test_attempt_whose_last_save_raises_fails_although_user_code_catches_the_error(drive: Any) -> None:
    driver = drive("ignores_errors")
    driver.run_to(2)
    failed = driver.end("pause", "failed")
    assert failed["error"]["type"] == "TypeError"
    assert "deque" in failed["error"]["message"]
    assert "_snapshot" in failed["error"]["traceback"]
    assert [report["step"] for report in driver.reports] == [1, 2]


@pytest.mark.parametrize("case", ["ignores_orders", "asks_after_the_order"])
def test_attempt_that_continues_after_the_order_to_stop_fails(drive: Any, case: str) -> None:
    driver = drive(case)
    driver.run_to(1, config={"saves": False})
    failed = driver.end("pause", "failed")
    assert failed["error"]["kind"] == "protocol"
    assert "continued after it was ordered to stop" in failed["error"]["message"]
    assert [report["step"] for report in driver.reports] == [1]


def test_report_after_the_last_save_is_ignored(
    drive: Any, hanging_save: tuple[threading.Event, threading.Event]
) -> None:
    hangs, goes_on = hanging_save
    driver = drive("ignores_orders")
    driver.run_to(1, config={"saves": True})
    driver.order("pause")
    assert hangs.wait(240)
    until(lambda: driver.supervisor.attempt.messages_since_report == 2)  # the checkpoint and the next report
    goes_on.set()
    paused = driver.until_state("paused")
    assert paused["error"] is None
    assert paused["saved_step"] == 1
    assert [report["step"] for report in driver.reports] == [1]


def test_failed_fork_leaves_no_descriptor_open(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive("counts")
    driver.run_to(1)
    driver.end("stop")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("out of processes")

    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(ForkServer, "fork", refuse)
        for _ in range(3):
            driver.begin(target_step=1)
            assert "out of processes" in driver.until_state("failed")["error"]["message"]
    until(lambda: open_descriptors() <= before)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
