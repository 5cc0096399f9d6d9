"""Test a worker whose machine is about to be preempted, with real children, a real fork server, and a notice on
the node's board.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.driving import NODE, SECOND, Driver, parsed
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.notices.notice import Notice
from tuner.domain.time import Instant
from tuner.driver.messages import end_of
from tuner.worker.supervisor import Supervisor

EVERY_STEP = {"checkpoint_interval_ns": 0}


class Node:
    """Post notices as the node's watcher does."""

    def __init__(self, board: NodeBoard) -> None:
        self.board = board
        self.posted: set[tuple[str, str]] = set()

    def goes(self, left_s: float, *, name: str = "aws/instance-action", node: str = NODE) -> None:
        deadline = Instant(time.time_ns() + round(left_s * SECOND))
        self.board.announce(node, Notice(name, deadline, "goes"))
        self.posted.add((node, name))

    def stays(self) -> None:
        for notice in self.posted:
            self.board.withdraw(*notice)


@pytest.fixture
def node(node_board: NodeBoard) -> Iterator[Node]:
    cluster_node = Node(node_board)
    yield cluster_node
    cluster_node.stays()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that gated steps wait for."""
    return tmp_path / "gate"


def gated(first: int, gate: Path) -> dict[str, Any]:
    """Return a configuration whose steps wait for the gate from step `first` on."""
    return {"gated": first, "gate": str(gate)}


def await_notice(driver: Driver, is_it: bool = True) -> None:
    driver.until(lambda result: result["leaving"] == is_it)


def trains(driver: Driver) -> None:
    driver.until(lambda result: "train" in result["meter"])


@pytest.mark.parametrize("step", [1, 3])
def test_notice_finishes_and_saves_the_step_in_progress_without_driver_request(
    drive: Any, node: Node, gate: Path, step: int
) -> None:
    driver = drive()
    driver.begin(target_step=9, config=gated(step, gate))
    driver.until(lambda result: "train" in result["meter"] and len(driver.reports) == step - 1)
    node.goes(1000)
    await_notice(driver)
    gate.touch()
    ended = driver.until_state("preempted")
    assert ended["saved_step"] == driver.reports[-1]["step"] == step
    assert parsed(ended).has_notice
    assert ended["error"]["message"] == "goes"
    node.stays()
    driver.run_to(9, restore=step)  # on another machine
    assert [report["metrics"]["acc"] for report in driver.reports] == [float(n) for n in range(1, 10)]


@pytest.mark.parametrize("left_s", [[1000], [0], [-5], [100_000, 100_000, 1000]], ids=str)
def test_too_short_notice_loses_only_the_step_in_progress(
    drive: Any, node: Node, gate: Path, left_s: list[float]
) -> None:
    """The earliest deadline of several notices counts."""
    driver = drive()
    driver.begin(target_step=9, config=gated(2, gate), lease_s=10_000, **EVERY_STEP)
    driver.reported(1)
    driver.until(lambda result: result["saved_step"] == 1)
    driver.takes(2000)
    for number, seconds in enumerate(left_s):
        if number:
            await_notice(driver)
        node.goes(seconds, name=f"notice {number % 2}")
    ended = driver.until_state("preempted")
    assert [report["step"] for report in driver.reports] == [1]
    assert ended["saved_step"] == 1
    assert ended["error"]["message"] == "goes"


def test_unfinished_first_step_is_abandoned_before_preemption(drive: Any, node: Node) -> None:
    driver = drive()
    driver.begin(target_step=9, config={"step_s": 1000})
    trains(driver)
    node.goes(2)
    ended = driver.until_state("preempted")
    assert ended["saved_step"] is None
    assert driver.reports == []


@pytest.mark.parametrize("case", ["hangs", "restores_for_ever"])
def test_attempt_that_has_not_begun_to_train_is_preempted_immediately(
    drive: Any, node: Node, case: str
) -> None:
    """The notice comes during setup, and while the child restores."""
    driver = drive()
    driver.run_to(1)
    driver.end("pause")
    other = drive(case)
    other.attempt = 1
    other.begin(target_step=9, restore=1)
    kind = "setup" if case == "hangs" else "restore"
    other.until(lambda result: kind in result["meter"] and other.supervisor.processes.pids)
    node.goes(1000)
    ended = other.until_state("preempted")
    assert ended["saved_step"] == 1, "it has what it was to begin with"
    assert "train" not in ended["meter"]


def test_preemption_does_not_wait_for_a_checkpoint_download(
    drive: Any, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches, over = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        fetches.set()
        over.wait()

    monkeypatch.setattr(CheckpointStore, "newest_valid", hang)
    driver = drive()
    driver.begin(restore=1)
    assert fetches.wait(240)
    node.goes(1000)
    assert driver.until_state("preempted")["saved_step"] is None
    over.set()


def test_running_save_is_awaited_if_the_step_cannot_finish(
    drive: Any, node: Node, gate: Path, hanging_save: tuple[threading.Event, threading.Event]
) -> None:
    hangs, goes_on = hanging_save
    driver = drive()
    driver.begin(target_step=9, config=gated(2, gate), lease_s=10_000, **EVERY_STEP)
    driver.reported(1)
    assert hangs.wait(240)
    driver.takes(2000)
    node.goes(1000)
    await_notice(driver)
    goes_on.set()
    assert driver.until_state("preempted")["saved_step"] == 1


def test_running_save_does_not_prevent_the_final_save(
    drive: Any, node: Node, hanging_save: tuple[threading.Event, threading.Event]
) -> None:
    hangs, goes_on = hanging_save
    driver = drive()
    driver.begin(target_step=9, config={"step_s": 0.5}, **EVERY_STEP)
    driver.reported(1)
    assert hangs.wait(240)
    node.goes(1000)
    await_notice(driver)
    goes_on.set()
    ended = driver.until_state("preempted")
    assert ended["saved_step"] == driver.reports[-1]["step"] > 1


def test_hanging_storage_of_artifacts_delays_no_checkpoint(
    drive: Any, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    real = TrialArtifacts.add

    def add(*args: Any, **more: Any) -> Any:
        answers.wait()
        return real(*args, **more)

    monkeypatch.setattr(TrialArtifacts, "add", add)
    driver = drive("reports_artifacts")
    try:
        driver.run_to(1)
        node.goes(20)
        assert driver.until_state("preempted")["saved_step"] == 1
    finally:
        answers.set()


def test_trial_waiting_at_a_rung_is_saved_on_notice(drive: Any, node: Node) -> None:
    driver = drive()
    driver.run_to(1)
    node.goes(1000)
    assert driver.until_state("preempted")["saved_step"] == 1


def test_finish_request_completes_despite_a_notice(drive: Any, node: Node) -> None:
    driver = drive()
    driver.run_to(9, max_step=2)
    driver.order("finish")
    node.goes(1000)
    ended = driver.until_state("finished")
    assert ended["saved_step"] == 2


@pytest.mark.parametrize("case", ["tune_checkpoints", "Steps"])
def test_plain_ray_tune_trainable_is_saved_on_notice_and_resumes(drive: Any, node: Node, case: str) -> None:
    driver = drive(case, "tests.worker.tune_cases")
    driver.run_to(2)
    node.goes(1000)
    assert driver.until_state("preempted")["saved_step"] == 2
    node.stays()
    driver.run_to(4, restore=2)
    assert [report["metrics"]["acc"] for report in driver.reports] == [1, 2, 3, 4]


def test_unsaveable_trial_is_preempted_immediately(drive: Any, node: Node) -> None:
    driver = drive("never_saves_slowly", "tests.worker.tune_cases")
    driver.begin(target_step=99, max_step=99)
    driver.reported(1)
    node.goes(1000)
    assert driver.until_state("preempted")["saved_step"] is None


def test_child_killed_after_a_notice_counts_as_preempted(drive: Any, node: Node) -> None:
    """A machine that shuts down also sends a signal to each of its processes."""
    driver = drive()
    driver.begin(target_step=9, config={"step_s": 1000})
    trains(driver)
    node.goes(1000)
    await_notice(driver)
    os.kill(driver.supervisor.processes.pids[0], signal.SIGTERM)
    ended = driver.until_state("failed")
    assert ended["error"]["kind"] == "killed"
    assert end_of(parsed(ended)) == "preempted"


def test_withdrawn_notice_has_no_effect(drive: Any, node: Node, gate: Path) -> None:
    driver = drive()
    driver.begin(target_step=4, config=gated(2, gate))
    driver.reported(1)
    node.goes(1000)
    await_notice(driver)
    node.stays()
    await_notice(driver, False)
    gate.touch()
    waiting = driver.until_state("waiting")
    assert not waiting["leaving"]
    assert driver.reports[-1]["step"] == 4


def test_training_continues_in_the_middle_of_a_long_step(drive: Any, node: Node, gate: Path) -> None:
    """A notice in the third step, then a pause in the same step, then the end of the lease in the next one."""
    whole = drive("long_steps")
    whole.begin(target_step=5, max_step=5, rungs=[2])
    whole.until_state("waiting")
    whole.end("finish")
    driver = drive("long_steps", storage=f"{whole.storage}-parts")

    def begin(first: int, restore: int | None, reported: int, **more: Any) -> None:
        config = gated(first, gate)
        driver.begin(
            target_step=5,
            config=config,
            max_step=5,
            restore=restore,
            reported_step=reported,
            rungs=[2],
            **more,
        )

    begin(26, None, 0)
    driver.reported(2)
    node.goes(1000)
    ended = driver.until_state("preempted")
    assert ended["part"]["step"] == 2
    assert 0 < ended["part"]["train_ns"] <= ended["meter"]["train"]
    node.stays()
    # The driver knows of no checkpoint, because none was recorded.
    begin(28, None, 2)
    trains(driver)
    carried = driver.supervisor.step()["carried_ns"]
    assert carried > 0
    paused = driver.end("pause")
    assert paused["part"]["step"] == 2
    assert paused["usage"]["restored_bytes"] > 0
    begin(34, 2, 2)
    driver.reported(3)
    # A save seems to take long, so that the child really has long for it, however busy the machine is.
    driver.saves_take(20.0)
    driver.lease_ends_in(30.0)
    assert driver.until_state("waiting")["need_ns"] > 0, "it waits for a longer lease first"
    driver.lease_ends_in(15.0)
    ended = driver.until_state("paused")
    assert ended["part"]["step"] == 3
    assert ended["error"] is None
    gate.touch()
    begin(99, 3, 3)
    driver.until_state("waiting")
    assert [report["metrics"] for report in driver.reports] == [report["metrics"] for report in whole.reports]
    assert [report["metrics"]["rung"] for report in driver.reports] == [0, 0, 0, 0, 0]
    assert driver.reports[0]["metrics"]["total"] == 5


def test_notice_for_another_node_has_no_effect(drive: Any, node: Node) -> None:
    driver = drive()
    node.goes(1, node="another node")
    driver.run_to(2, config={"step_s": 0.5})
    assert driver.reports[-1]["step"] == 2


def test_idle_worker_with_a_notice_refuses_new_attempts(drive: Any, node: Node) -> None:
    """An idle worker, kept from an earlier attempt, refuses the new attempt. This is not a preemption, because the
    machine went away while the worker was idle.
    """
    driver = drive()
    driver.run_to(1)
    driver.end("pause")
    driver.reports.clear()
    node.goes(1000)
    driver.begin(target_step=1)
    ended = driver.until_state("paused")
    assert ended["reports"] == []
    assert ended["leaving"], "so that the worker is given nothing more"
    assert end_of(parsed(ended)) == "paused"
    assert not set(ended["meter"]) & {"train", "restore"}
    with pytest.raises(RuntimeError, match="no attempt"):
        driver.supervisor.step()
    node.stays()
    driver.run_to(1)


def test_worker_started_during_a_notice_reports_preemption(
    node_board: NodeBoard, node: Node, tmp_path: Path
) -> None:
    """This happens on the head, for example, which is never drained."""
    entry = "tests.worker.plain_cases:counts"
    born = Supervisor(entry, notice=lambda: node_board.earliest_notice(NODE))
    try:
        driver = Driver(tmp_path / "storage", entry, born)
        node.goes(1000)
        driver.begin(target_step=1)
        assert driver.until_state("preempted")["reports"] == []
        node.stays()
        driver.run_to(1)
        driver.let_go()
    finally:
        born.close()


def test_stop_request_is_obeyed_during_a_notice(drive: Any, node: Node) -> None:
    driver = drive()
    driver.begin(target_step=9, config={"step_s": 1000})
    trains(driver)
    node.goes(1000)
    assert driver.end("stop")["error"] is None
