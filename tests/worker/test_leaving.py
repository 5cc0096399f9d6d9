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

from tests.worker.driving import NODE, SECOND, Driver
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.notices.notice import Notice
from tuner.domain.time import Instant
from tuner.driver.messages import Progress, end_of
from tuner.worker.supervisor import Supervisor

EVERY_STEP = {"checkpoint_interval_ns": 0}


class Node:
    """Post notices as the node's watcher does."""

    def __init__(self, board: NodeBoard) -> None:
        self.board = board
        self.posted: set[tuple[str, str]] = set()

    def goes(self, left_s: float, *, name: str = "aws/instance-action", node: str = NODE) -> None:
        deadline = Instant(time.time_ns() + round(left_s * SECOND))
        self.board.announce(node, Notice("aws", "terminate", name, deadline, "goes"))
        self.posted.add((node, name))

    def stays(self) -> None:
        for notice in self.posted:
            self.board.withdraw(*notice)


@pytest.fixture
def node(node_board: NodeBoard) -> Iterator[Node]:
    found = Node(node_board)
    yield found
    found.stays()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that gated steps wait for."""
    return tmp_path / "gate"


def gated(first: int, gate: Path) -> dict[str, Any]:
    """Return a configuration whose steps wait for the gate from step `first` on."""
    return {"gated": first, "gate": str(gate)}


def durable(driver: Driver, step: int) -> None:
    driver.until(lambda result: (result["saved_step"] or 0) >= step)


def leaving(driver: Driver, is_it: bool = True) -> None:
    driver.until(lambda result: result["leaving"] == is_it)


def trains(driver: Driver) -> None:
    driver.until(lambda result: "train" in result["meter"])


def test_the_step_in_progress_is_finished_and_saved_without_a_word_of_the_driver(
    drive: Any, node: Node, gate: Path
) -> None:
    driver = drive()
    driver.begin(until=9, config=gated(3, gate))
    driver.reported(2)
    node.goes(1000)
    leaving(driver)
    gate.touch()
    ended = driver.until_state("preempted")
    last = driver.reports[-1]["step"]
    assert last == 3, "it leaves after the step in progress"
    assert ended["saved_step"] == last
    assert Progress.parse(ended).leaving
    assert ended["error"]["message"] == "goes"
    node.stays()
    driver.begin(until=9, restore=last)  # on another machine
    driver.until_state("waiting")
    assert [report["metrics"]["acc"] for report in driver.reports] == [float(n) for n in range(1, 10)]


@pytest.mark.parametrize("left_s", [1000, 0, -5])
def test_a_notice_that_is_too_short_for_the_step_costs_the_step_in_progress_and_no_more(
    drive: Any, node: Node, gate: Path, left_s: float
) -> None:
    driver = drive()
    driver.begin(until=9, config=gated(2, gate), lease_s=10_000, **EVERY_STEP)
    driver.reported(1)
    durable(driver, 1)
    driver.takes(2000)
    node.goes(left_s)
    ended = driver.until_state("preempted")
    assert [report["step"] for report in driver.reports] == [1]
    assert ended["saved_step"] == 1
    assert ended["error"]["message"] == "goes"


def test_the_first_step_may_take_what_is_left_as_nobody_knows_how_long_it_takes(
    drive: Any, node: Node, gate: Path
) -> None:
    driver = drive()
    driver.begin(until=9, config=gated(1, gate))
    trains(driver)
    node.goes(1000)
    leaving(driver)
    gate.touch()
    assert driver.until_state("preempted")["saved_step"] == 1


def test_a_first_step_that_does_not_end_is_given_up_before_the_machine_goes(drive: Any, node: Node) -> None:
    driver = drive()
    driver.begin(until=9, config={"step_s": 1000})
    trains(driver)
    node.goes(2)
    ended = driver.until_state("preempted")
    assert ended["saved_step"] is None
    assert driver.reports == []


@pytest.mark.parametrize("case", ["hangs", "restores_for_ever"])
def test_what_has_not_begun_to_train_leaves_at_once(drive: Any, node: Node, case: str) -> None:
    """The notice comes during setup, and while the child restores."""
    driver = drive()
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    driver.until_state("paused")
    other = drive(case)
    other.attempt = 1
    other.begin(until=9, restore=1)
    kind = "setup" if case == "hangs" else "restore"
    other.until(lambda result: kind in result["meter"] and other.supervisor.pid)
    node.goes(1000)
    ended = other.until_state("preempted")
    assert ended["saved_step"] == 1, "it has what it was to begin with"
    assert "train" not in ended["meter"]


def test_a_checkpoint_that_is_being_fetched_is_not_waited_for(
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


@pytest.fixture
def slow_storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Let publications hang, beginning with the first. The first event is set when one hangs; setting the
    second releases them.
    """
    hangs, goes_on = threading.Event(), threading.Event()
    real = CheckpointStore.publish

    def publish(self: CheckpointStore, *args: Any) -> Any:
        hangs.set()
        goes_on.wait()
        return real(self, *args)

    monkeypatch.setattr(CheckpointStore, "publish", publish)
    yield hangs, goes_on
    goes_on.set()


def test_a_save_under_way_is_waited_for_where_the_step_cannot_be_finished(
    drive: Any, node: Node, gate: Path, slow_storage: tuple[threading.Event, threading.Event]
) -> None:
    hangs, goes_on = slow_storage
    driver = drive()
    driver.begin(until=9, config=gated(2, gate), lease_s=10_000, **EVERY_STEP)
    driver.reported(1)
    assert hangs.wait(240)
    driver.takes(2000)
    node.goes(1000)
    leaving(driver)
    goes_on.set()
    assert driver.until_state("preempted")["saved_step"] == 1


def test_a_save_under_way_does_not_keep_the_last_one_from_being_made(
    drive: Any, node: Node, slow_storage: tuple[threading.Event, threading.Event]
) -> None:
    hangs, goes_on = slow_storage
    driver = drive()
    driver.begin(until=9, config={"step_s": 0.5}, **EVERY_STEP)
    driver.reported(1)
    assert hangs.wait(240)
    node.goes(1000)
    leaving(driver)
    goes_on.set()
    ended = driver.until_state("preempted")
    assert ended["saved_step"] == driver.reports[-1]["step"] > 1


def test_who_waits_at_a_rung_for_a_driver_that_says_nothing_is_saved(drive: Any, node: Node) -> None:
    driver = drive()
    driver.begin(until=1)
    driver.until_state("waiting")
    node.goes(1000)
    assert driver.until_state("preempted")["saved_step"] == 1


def test_the_last_step_is_finished_as_it_was_ordered(drive: Any, node: Node) -> None:
    driver = drive()
    driver.begin(until=9, max_step=2)
    driver.until_state("waiting")
    driver.order("finish")
    node.goes(1000)
    ended = driver.until_state("finished")
    assert ended["saved_step"] == 2


def test_what_cannot_be_saved_leaves_at_once(drive: Any, node: Node) -> None:
    driver = drive("never_saves_slowly", "tests.worker.tune_cases")
    driver.begin(until=99, max_step=99)
    driver.reported(1)
    node.goes(1000)
    assert driver.until_state("preempted")["saved_step"] is None


def test_who_is_killed_with_its_machine_is_preempted(drive: Any, node: Node) -> None:
    """A machine that shuts down also sends a signal to each of its processes."""
    driver = drive()
    driver.begin(until=9, config={"step_s": 1000})
    trains(driver)
    node.goes(1000)
    leaving(driver)
    os.kill(driver.supervisor.pid, signal.SIGTERM)
    ended = driver.until_state("failed")
    assert ended["error"]["kind"] == "killed"
    assert end_of(Progress.parse(ended)) == "preempted"


def test_a_withdrawn_notice_is_none(drive: Any, node: Node, gate: Path) -> None:
    driver = drive()
    driver.begin(until=4, config=gated(2, gate))
    driver.reported(1)
    node.goes(1000)
    leaving(driver)
    node.stays()
    leaving(driver, False)
    gate.touch()
    waiting = driver.until_state("waiting")
    assert not waiting["leaving"]
    assert driver.reports[-1]["step"] == 4


def test_a_notice_for_another_node_is_none(drive: Any, node: Node) -> None:
    driver = drive()
    node.goes(1, node="another node")
    driver.begin(until=2, config={"step_s": 0.5})
    driver.until_state("waiting")
    assert driver.reports[-1]["step"] == 2


def test_two_notices_at_once_count_as_the_earlier_one_and_one_brought_forward_as_what_it_says_last(
    drive: Any, node: Node, gate: Path
) -> None:
    driver = drive()
    driver.begin(until=9, config=gated(2, gate), lease_s=10_000, **EVERY_STEP)
    driver.reported(1)
    durable(driver, 1)
    driver.takes(2000)
    node.goes(100_000)
    node.goes(100_000, name="signal/SIGTERM")
    leaving(driver)
    node.goes(1000)
    assert driver.until_state("preempted")["saved_step"] == 1
    assert driver.reports[-1]["step"] == 1


def test_nothing_begins_on_a_machine_that_goes_and_elsewhere_it_does(drive: Any, node: Node) -> None:
    """An idle worker, kept from an earlier attempt, refuses the new attempt. This is not a preemption, because the
    machine went away while the worker was idle.
    """
    driver = drive()
    driver.begin(until=1)
    driver.until_state("waiting")
    driver.order("pause")
    driver.until_state("paused")
    driver.reports.clear()
    node.goes(1000)
    driver.begin(until=1)
    ended = driver.until_state("paused")
    assert ended["reports"] == []
    assert ended["leaving"], "so that the worker is given nothing more"
    assert end_of(Progress.parse(ended)) == "paused"
    assert not set(ended["meter"]) & {"train", "restore"}
    with pytest.raises(RuntimeError, match="no attempt"):
        driver.supervisor.step()
    node.stays()
    driver.begin(until=1)
    driver.until_state("waiting")


def test_a_worker_that_is_born_on_a_machine_that_goes_says_so(
    node_board: NodeBoard, node: Node, tmp_path: Path
) -> None:
    """The head, for example, is never drained."""
    entry = "tests.worker.plain_cases:counts"
    born = Supervisor(entry, notice=lambda: node_board.standing(NODE))
    try:
        driver = Driver(tmp_path / "storage", entry, born)
        node.goes(1000)
        driver.begin(until=1)
        assert driver.until_state("preempted")["reports"] == []
        node.stays()
        driver.begin(until=1)
        driver.until_state("waiting")
        driver.let_go()
    finally:
        born.close()


def test_an_order_to_stop_is_obeyed_on_a_machine_that_goes(drive: Any, node: Node) -> None:
    driver = drive()
    driver.begin(until=9, config={"step_s": 1000})
    trains(driver)
    node.goes(1000)
    driver.order("stop")
    assert driver.until_state("stopped")["error"] is None
