"""Test storage that fails or hangs, and children that die while they save: each costs only its own attempt."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.waiting import until
from tests.worker.driving import LEASE_S, SECOND
from tuner.checkpoints.checkpoints import CheckpointStore, Published
from tuner.checkpoints.storage import PARTIAL
from tuner.driver.messages import Progress
from tuner.worker import publishing
from tuner.worker.server_handle import ForkServer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "WAITS_S", (0.01,) * 4)


def test_unexpected_storage_error_fails_the_attempt_and_is_named(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Published:
        raise RuntimeError("the bucket is gone")

    monkeypatch.setattr(CheckpointStore, "publish", refuse)
    driver = drive("counts")
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "storage"
    assert "the bucket is gone" in failed["error"]["message"]
    trouble = Progress.parse(failed).trouble
    assert trouble is not None
    assert trouble.is_storage_failure


def test_temporary_storage_errors_only_delay_the_trial(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = [OSError("busy"), RuntimeError("still busy")]
    read, write = CheckpointStore.newest_valid, CheckpointStore.publish

    def faltering(work: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if troubles:
                raise troubles.pop()
            return work(*args, **more)

        return call

    monkeypatch.setattr(CheckpointStore, "publish", faltering(write))
    monkeypatch.setattr(CheckpointStore, "newest_valid", faltering(read))
    driver = drive("counts")
    save(driver, until=2, restore=None)
    assert not troubles
    troubles += [OSError("busy")]
    save(driver, until=3, restore=2)
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 3]


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
        driver.begin(until=1 if restore is None else 2, restore=restore)
        driver.until_state("waiting")
        driver.order("pause")
        paused = driver.until_state("paused")
        assert SECOND // 5 <= paused["outage_ns"] <= paused["meter"][kind]
        assert Progress.parse(paused).outage_ns == paused["outage_ns"]


def test_storage_that_cannot_be_read_fails_the_attempt(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("the bucket is gone")

    monkeypatch.setattr(CheckpointStore, "newest_valid", refuse)
    driver = drive("counts")
    driver.begin(restore=1)
    assert "the bucket is gone" in driver.until_state("failed")["error"]["message"]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let the first publication hang until the end of the test. The event is set when it does."""
    hangs, over = threading.Event(), threading.Event()
    real = CheckpointStore.publish

    def publish(self: CheckpointStore, *args: Any) -> Published:
        if not hangs.is_set():
            hangs.set()
            over.wait()
        return real(self, *args)

    monkeypatch.setattr(CheckpointStore, "publish", publish)
    yield hangs
    over.set()
    for thread in threading.enumerate():
        if thread.name == "publisher":
            thread.join()


def test_attempt_with_a_hanging_save_can_be_stopped_and_the_next_saves(
    drive: Any, hanging: threading.Event
) -> None:
    driver = drive("counts")
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    assert driver.supervisor.step()["state"] == "running"
    assert hanging.wait(240)
    driver.order("stop")
    driver.until_state("stopped")
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    assert driver.until_state("paused")["saved_step"] == 1


def test_hanging_save_ends_with_the_lease(drive: Any, hanging: threading.Event) -> None:
    driver = drive("counts")
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    assert hanging.wait(240)
    lease_ns = driver.lease_ends_in(1)
    ended = driver.until_state("paused")
    assert ended["error"]["kind"] == "lease"
    assert ended["saved_step"] is None
    assert sum(ended["meter"].values()) == lease_ns


def save(driver: Any, *, until: int, restore: int | None) -> None:
    driver.begin(until=until, restore=restore, keep=1)
    driver.until_state("waiting")
    driver.order("pause")
    assert driver.until_state("paused")["saved_step"] == until


def test_unrecorded_checkpoint_replaces_no_recorded_checkpoint(drive: Any, tmp_path: Path) -> None:
    """The driver died while step 4 was being saved, and the next driver continues from step 2."""
    driver, folder = drive("counts"), tmp_path / "storage/default/job_1/trial_00000"
    save(driver, until=2, restore=None)
    save(driver, until=4, restore=2)
    save(driver, until=3, restore=2)
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 3, 4, 3]
    assert sorted(path.name for path in folder.iterdir()) == ["step_00000002-a1", "step_00000003-a3"]


def test_partial_checkpoint_is_removed_by_the_next_complete_save(drive: Any, tmp_path: Path) -> None:
    driver, folder = drive("counts"), tmp_path / "storage/default/job_1/trial_00000"
    driver.attempt = 3
    for name in (
        f"{PARTIAL}step_00000001-a1.77",
        "step_00000001-a2",
        f"{PARTIAL}step_00000009-a9.77",
        "step_00000009-a9",
    ):
        (folder / name).mkdir(parents=True)
    save(driver, until=2, restore=None)
    left = sorted(path.name for path in folder.iterdir())
    assert left == [f"{PARTIAL}step_00000009-a9.77", "step_00000002-a4", "step_00000009-a9"], (
        "a later attempt's stays"
    )


def test_child_that_dies_while_saving_for_a_pause_ends_attempt(drive: Any) -> None:
    driver = drive("dies_saving")
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    failed = driver.until_state("failed")
    assert failed["error"]["kind"] == "killed"
    assert sum(failed["meter"].values()) < LEASE_S * SECOND


def test_failed_fork_leaves_no_descriptor_open(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive("counts")
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("stop")
    driver.until_state("stopped")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("out of processes")

    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(ForkServer, "fork", refuse)
        for _ in range(3):
            driver.begin(until=1)
            assert "out of processes" in driver.until_state("failed")["error"]["message"]
    until(lambda: open_descriptors() <= before)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
