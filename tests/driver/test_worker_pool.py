"""Test which attempt each worker gets, and what Tune learns about workers, with the real pool and a fake of Tune's controller."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import ActorID, cloudpickle
from ray.air._internal import usage
from ray.exceptions import RayActorError

from tests.driver.looping import actor_message
from tuner.domain.offer import MARKET_LABEL
from tuner.domain.time import NS
from tuner.driver import ray_machines, worker_pool
from tuner.driver.actuator import Actuator
from tuner.driver.ports import Assignment
from tuner.driver.worker_pool import ASKED_AT_ONCE, STARTS_WITHIN_S, WorkerPool
from tuner.worker import endings
from tuner.worker.orders import WorkerState

SPOT = {"labels": (("market", "spot"),)}


class Loop:
    """A job loop that restarts the trials in `elsewhere` on machines with other labels."""

    def __init__(self, actuator: Actuator) -> None:
        self._actuator = actuator
        self.elsewhere: set[str] = set()
        self.ended: list[Any] = []
        self.late: list[tuple[str, int]] = []  # attempts whose workers must have ended
        self.next: list[Assignment] = []  # what begins once an attempt has ended
        self.cancels: list[str] = []  # the trials that are paused once an attempt has ended
        self.wrong_machine = False
        self.while_lost: Callable[[], object] = lambda: None

    def overdue(self) -> list[tuple[str, int]]:
        return self.late

    def relocate(self, trial: str, attempt: int) -> bool:
        moves = trial in self.elsewhere
        self.elsewhere.discard(trial)
        if moves:
            self._actuator.begin(assignment(trial, attempt + 1, **SPOT))
        return moves

    def node_assigned(self, trial: str, attempt: int, machine: Any) -> int:
        return NS

    def runs(self, trial: str, attempt: int) -> bool:
        return True

    def lost(self, trial: str, attempt: int, reason: str, **more: Any) -> None:
        self.late = [late for late in self.late if late != (trial, attempt)]
        self.ended.append((trial, attempt, more))
        self.while_lost()

    def progress(self, progress: Any) -> None:
        self.ended.append((progress.trial, progress.attempt, progress.state))
        for begun in self.next:
            self._actuator.begin(begun)
        self.next = []
        for trial in self.cancels:
            self._actuator.pause(trial)

    def is_on_wrong_machine(self, trial: str, attempt: int) -> bool:
        return self.wrong_machine


class Tune:
    """The part of Tune's controller that the pool uses. A trial that it stops is no longer live, immediately."""

    def __init__(self) -> None:
        self.live: set[Any] = set()
        self._staged_trials: set[Any] = set()
        self._trial_to_actor: dict[Any, Any] = {}
        self._actor_manager = self._actor_task_events = self
        self.placed: set[Any] = set()
        self.futures: set[str] = set()
        self._tracked_actors_to_task_futures: dict[Any, set[str]] = {}

    def get_futures(self) -> set[str]:
        """Return the workers' calls that are unanswered or whose answer is not yet delivered."""
        return self.futures

    def is_actor_started(self, actor: Any) -> bool:
        """Return whether Ray has a machine for the actor. Its process starts after that."""
        return actor in self.placed

    def stop_trial(self, trial: Any) -> None:
        self.live.discard(trial)

    def _unstage_trial_with_resources(self, trial: Any) -> None:
        self._staged_trials.remove(trial)


class Worker(SimpleNamespace):
    """One of Tune's trials."""

    __hash__ = object.__hash__


SPOT_NODE = {"NodeID": "gone", "Alive": False, "DeathReason": 0, "Labels": {MARKET_LABEL: "spot"}}


class GlobalState:
    """A fake of what Ray knows about actors and draining nodes."""

    def __init__(self, actors: dict[str, Any], draining: dict[str, int] | None = None) -> None:
        self.actor_table = actors.__getitem__
        self._draining = draining or {}

    def get_draining_nodes(self) -> dict[str, int]:
        return self._draining


class Driver:
    def __init__(self, slots: int = 1) -> None:
        self.actuator = Actuator(
            lambda begun: {
                "order": "begin",
                "target_step": None,
                "trial": begun.trial,
                "attempt": begun.attempt,
            },
            lambda: 0,
        )
        self.loop, self.tune, self.now = Loop(self.actuator), Tune(), 0.0
        fakes: Any = (self.loop, self.actuator, SimpleNamespace(assign=lambda *_: None))
        self.pool = WorkerPool(*fakes, clock=lambda: self.now, slots=slots)
        self._orders: dict[str, list[Any]] = {}  # the orders that each worker has received

    def begin(self, *trials: str, **more: Any) -> None:
        for trial in trials:
            self.actuator.begin(assignment(trial, **more))

    def tune_asks(self) -> Any:
        """Ask for the next worker and look for a machine for it, as Tune does."""
        labels = self.pool.to_request()
        if labels is None:
            return None
        name = f"worker {len(self._orders)}"
        self._orders[name] = []
        actor = SimpleNamespace(_actor_id=ActorID.from_random())
        worker = Worker(
            config={"labels": [list(label) for label in labels]},
            trial_id=name,
            temporary_state=SimpleNamespace(ray_actor=actor),
        )
        self.pool.requested(worker)
        self.tune.live.add(worker)
        self.tune._staged_trials.add(worker)
        self.tune._trial_to_actor[worker] = f"the actor of {name}"
        return worker

    def start(self, worker: Any) -> None:
        self.tune._staged_trials.discard(worker)
        self.pool.started(worker)
        self.orders(worker)

    def send(
        self, worker: Any, trial: str, attempt: int = 1, state: WorkerState = "ended", **more: Any
    ) -> bool:
        """Send a worker's message about its attempt. Return whether Tune keeps calling the worker, and call it then."""
        keeps = self.pool.receive(worker, [actor_message(trial, attempt, state, **more)])
        if keeps:
            self.orders(worker)
        return keeps

    def orders(self, worker: Any) -> list[Any]:
        """Return all orders that a worker has received if Tune calls it now."""
        received = self._orders[worker.trial_id]
        for order in self.pool.take_orders(worker.temporary_state.ray_actor):
            received.append((order["order"], order.get("trial"), order.get("attempt")))
        return received

    def turn(self) -> Any:
        return self.pool.turn(self.tune)


def assignment(trial: str, attempt: int = 1, *, not_before_ns: int = 0, labels: Any = None) -> Assignment:
    place: Any = None if labels is None else SimpleNamespace(labels=labels)
    return Assignment(trial, attempt, {}, None, NS, None, not_before_ns, place)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(ray_machines.AssignedMachines, "machine_of", lambda *_: None)
    return Driver()


def test_one_worker_is_requested_for_each_waiting_attempt(driver: Driver) -> None:
    driver.begin("a", "b")
    driver.begin("c", **SPOT)
    labels = [driver.tune_asks().config["labels"] for _ in range(3)]
    assert labels == [[], [], [["market", "spot"]]]
    assert driver.tune_asks() is None


def test_worker_that_starts_gets_the_longest_waiting_attempt_of_its_kind_of_machine(driver: Driver) -> None:
    driver.begin("s", **SPOT)
    driver.begin("b", "a")
    spot, first, second = (driver.tune_asks() for _ in range(3))
    assert driver.turn() is spot
    for worker in (second, first, spot):
        driver.start(worker)
    assert driver.orders(second) == [("begin", "b", 1)]
    assert driver.orders(first) == [("begin", "a", 1)]
    assert driver.orders(spot) == [("begin", "s", 1)]
    assert driver.turn() is None


def test_free_worker_gets_the_next_attempt_without_a_new_trial_of_tune(driver: Driver) -> None:
    driver.begin("a")
    worker = driver.tune_asks()
    driver.start(worker)
    driver.loop.next = [assignment("b")]
    assert driver.send(worker, "a")
    assert driver.orders(worker) == [("begin", "a", 1), ("begin", "b", 1)]
    assert driver.tune_asks() is None
    driver.loop.next = [assignment("c", **SPOT)]
    assert not driver.send(worker, "b"), "no attempt waits for its market and machine type"


def test_orders_wait_for_the_next_call_of_their_worker_and_end_with_its_last_attempt(driver: Driver) -> None:
    driver.begin("a")
    worker = driver.tune_asks()
    driver.start(worker)
    driver.actuator.pause("a")
    assert driver.orders(worker) == [("begin", "a", 1), ("pause", "a", None)]
    driver.actuator.finish("a")
    assert not driver.send(worker, "a")
    assert driver.orders(worker)[2:] == [], "the worker ended the attempt before it could receive the order"


def test_worker_requested_for_an_attempt_that_a_free_one_took_is_cancelled(driver: Driver) -> None:
    driver.begin("a")
    first = driver.tune_asks()
    driver.start(first)
    driver.begin("b")
    second = driver.tune_asks()
    driver.send(first, "a")
    assert driver.orders(first)[-1] == ("begin", "b", 1)
    assert driver.turn() is None
    assert driver.tune.live == {first}
    assert second not in driver.tune._staged_trials


def test_free_worker_does_not_get_an_attempt_that_was_cancelled_meanwhile(driver: Driver) -> None:
    driver.begin("a", "b")
    worker = driver.tune_asks()
    driver.start(worker)
    driver.loop.cancels = ["b"]
    assert not driver.send(worker, "a")
    assert driver.orders(worker) == [("begin", "a", 1)]
    driver.pool.withdraw()
    assert driver.loop.ended[-1] == ("b", 1, "paused")


def test_worker_on_a_wrong_machine_gets_no_other_attempt(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(worker_pool, "kill_worker", killed.append)
    driver.begin("a", "b")
    worker = driver.tune_asks()
    driver.start(worker)
    driver.loop.wrong_machine = True
    assert driver.send(worker, "a", state="stopped"), "Tune would keep it if it was stopped"
    assert killed == [worker.temporary_state.ray_actor]
    assert driver.orders(worker) == [("begin", "a", 1)]


def test_workers_without_a_machine_are_cancelled_first(driver: Driver) -> None:
    driver.begin("a", "b")
    unplaced, placed = driver.tune_asks(), driver.tune_asks()
    driver.tune.placed = {driver.tune._trial_to_actor[placed]}
    driver.actuator.pause("a")
    assert driver.turn() is placed
    assert driver.tune.live == {placed}
    assert unplaced not in driver.tune._staged_trials


def test_worker_that_starts_without_an_attempt_gets_the_next_or_is_stopped(driver: Driver) -> None:
    driver.begin("a")
    worker = driver.tune_asks()
    driver.actuator.stop("a", keep_best=False)
    driver.pool.withdraw()
    assert driver.loop.ended == [("a", 1, "stopped")]
    driver.start(worker)
    assert driver.orders(worker) == []
    assert not driver.pool.receive(worker, [])
    driver.begin("b")
    assert driver.pool.receive(worker, [])
    assert driver.orders(worker) == [("begin", "b", 1)]


def test_worker_of_a_machine_that_leaves_gets_no_attempt_and_is_not_kept(driver: Driver) -> None:
    driver.begin("a", "b")
    worker = driver.tune_asks()
    driver.start(worker)
    assert driver.actuator.room() == 1
    assert driver.send(worker, "a", state="preempted", leaving=True), "Tune would keep it if it was stopped"
    assert driver.actuator.room() == 0
    assert driver.orders(worker) == [("begin", "a", 1)]


def test_relocated_attempt_gets_another_kind_of_worker(driver: Driver) -> None:
    driver.begin("a", "b")
    a, b = driver.tune_asks(), driver.tune_asks()
    driver.loop.elsewhere = {"a"}
    assert driver.turn() is a
    assert driver.tune.live == driver.tune._staged_trials == {a}
    assert b not in driver.tune.live
    spot = driver.tune_asks()
    driver.start(spot)
    assert driver.orders(spot) == [("begin", "a", 2)]


def test_wait_for_a_placed_worker_to_start_is_bounded(driver: Driver) -> None:
    """The wait for a machine may be short. On another machine, the worker would only start again and be given
    up again.
    """
    driver.begin("a")
    worker = driver.tune_asks()
    driver.tune.placed = {driver.tune._trial_to_actor[worker]}
    driver.loop.elsewhere = {"a"}
    for _ in range(3):
        assert driver.turn() is worker
        driver.now += STARTS_WITHIN_S / 3
    assert driver.tune.live == {worker}
    assert driver.turn() is None
    driver.turn()
    assert [waiting.attempt for waiting in driver.actuator.waiting()] == [2]
    assert driver.pool._found_at == {}


def test_waiting_attempts_are_checked_for_relocation_in_batches(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"trial_{number:05}" for number in range(2 * ASKED_AT_ONCE + 1)]
    asked: list[str] = []
    monkeypatch.setattr(driver.loop, "relocate", lambda trial, attempt: bool(asked.append(trial)))
    driver.begin(*names)
    for turn in (names[:ASKED_AT_ONCE], names[ASKED_AT_ONCE : 2 * ASKED_AT_ONCE], names[-1:]):
        del asked[:]
        driver.turn()
        assert asked == turn
    driver.turn()
    assert asked == [*names[-1:], *names[:ASKED_AT_ONCE]]


def test_attempt_stopped_while_waiting_is_reported_as_stopped(driver: Driver) -> None:
    driver.begin("a")
    driver.tune_asks()
    driver.actuator.stop("a", keep_best=False)
    assert driver.turn() is None
    assert driver.loop.ended == [("a", 1, "stopped")]
    assert not driver.tune.live
    assert not driver.tune._staged_trials


def test_death_of_idle_workers_node_counts_as_preemption_of_next_attempt(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The attempt counts as preempted on the node of that worker, and Tune keeps no other idle worker for it."""
    monkeypatch.setattr(ray_machines.ray, "nodes", lambda: [SPOT_NODE])
    monkeypatch.setattr(
        ray_machines, "cluster_state", GlobalState({"actor": {"Address": {"NodeID": "gone"}}})
    )
    driver.begin("a")
    worker = driver.tune_asks()
    worker.pickled_error_file = str(tmp_path / "error.pkl")
    Path(worker.pickled_error_file).write_bytes(cloudpickle.dumps(RayActorError("actor")))
    driver.pool.died(driver.tune, worker)
    assert driver.loop.ended == [("a", 1, {"preempted": True, "node": "gone", "sharers": 1})]
    assert not driver.tune._staged_trials
    assert driver.actuator.waiting() == []


def test_early_worker_failure_is_attributed_to_its_actors_node(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such an error names no actor. It counts as a preemption if the node is being drained."""
    monkeypatch.setattr(ray_machines.ray, "nodes", lambda: [{**SPOT_NODE, "NodeID": "here", "Alive": True}])
    driver.begin("a")
    worker = driver.tune_asks()
    actor = worker.temporary_state.ray_actor._actor_id.hex()
    known = GlobalState({actor: {"Address": {"NodeID": "here"}}}, {"here": 0})
    monkeypatch.setattr(ray_machines, "cluster_state", known)
    worker.pickled_error_file = str(tmp_path / "error.pkl")
    Path(worker.pickled_error_file).write_bytes(cloudpickle.dumps(RuntimeError("in the worker")))
    driver.pool.died(driver.tune, worker)
    assert driver.loop.ended == [("a", 1, {"preempted": True, "node": "here", "sharers": 1})]


def test_death_of_a_worker_ends_the_attempt_that_it_runs_now(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "was_preempted", lambda error, node: False)
    monkeypatch.setattr(worker_pool, "nodes_of", lambda error, actor, several: [])
    driver.begin("a")
    worker = driver.tune_asks()
    worker.pickled_error_file = None
    assert driver.actuator.room() == 0
    driver.start(worker)
    driver.loop.next = [assignment("b"), assignment("c")]
    driver.send(worker, "a")
    assert driver.actuator.room() == 1
    driver.loop.ended.clear()
    driver.loop.while_lost = lambda: rooms.append(driver.actuator.room())
    rooms = list[int]()
    driver.pool.died(driver.tune, worker)
    assert rooms == [driver.actuator.room()] == [0]
    assert driver.loop.ended == [("b", 1, {"preempted": False, "node": "", "sharers": 1})]
    assert [waiting.trial for waiting in driver.actuator.waiting()] == ["c"]


@pytest.mark.parametrize(("lost", "state"), [("gone", "preempted"), ("crashed", "failed")])
def test_attempt_that_lost_a_node_is_preempted_with_it_and_its_worker_gets_no_other(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, lost: str, state: str
) -> None:
    monkeypatch.setattr(worker_pool, "was_preempted", lambda error, node: node == "gone")
    driver.begin("a", "b")
    worker = driver.tune_asks()
    driver.start(worker)
    driver.send(worker, "a", state="running", node="here", others=[(lost, {})])
    error = endings.node_lost(1, "it stopped")
    assert driver.send(worker, "a", state="failed", node="here", error=error, retires=True)
    assert driver.loop.ended[1:] == [("a", 1, state)]
    assert [waiting.trial for waiting in driver.actuator.waiting()] == ["b"]


def test_attempt_is_not_assigned_before_its_start_time(driver: Driver) -> None:
    driver.begin("a", not_before_ns=NS)
    driver.begin("b")
    worker = driver.tune_asks()
    assert driver.tune_asks() is None
    driver.start(worker)
    assert driver.orders(worker) == [("begin", "b", 1)]


def test_ray_tune_has_the_callback_counting_hook_that_the_driver_replaces() -> None:
    """Tune's own way of counting callbacks imports MLflow and others, which takes seconds at the start of each
    job.
    """
    assert "air_usage.tag_callbacks(callbacks)" in inspect.getsource(importlib.import_module("ray.tune.tune"))
    assert callable(usage.tag_callbacks)


def silent_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Run one attempt whose worker is overdue. Return the worker, and the actors that are killed from now on."""
    killed: list[Any] = []
    monkeypatch.setattr(worker_pool, "kill_worker", killed.append)
    driver.begin("a")
    worker = driver.tune_asks()
    driver.start(worker)
    driver.loop.late = [("a", 1)]
    return worker, killed


def listen(driver: Driver, seconds: float) -> None:
    """Let Tune loop four times per second for `seconds` seconds."""
    for _ in range(round(4 * seconds)):
        driver.now += 0.25
        driver.turn()


def test_an_overdue_worker_is_killed_once_and_given_up_if_ray_reports_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, killed = silent_driver(driver, monkeypatch)
    listen(driver, 4)
    assert killed == [], "the driver has not listened for long enough"
    listen(driver, 2)
    assert killed == [worker.temporary_state.ray_actor]
    assert driver.loop.ended == []
    listen(driver, worker_pool.GONE_AFTER_S)
    assert len(killed) == 1
    assert driver.loop.ended == [("a", 1, {"preempted": False, "node": "", "sharers": 1})]
    assert worker not in driver.tune.live


def test_killed_worker_that_ends_its_attempt_meanwhile_gets_no_other(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = silent_driver(driver, monkeypatch)
    listen(driver, 6)
    driver.loop.next = [assignment("b")]
    assert driver.send(worker, "a"), "Tune would keep it for reuse if it was stopped"
    assert driver.pool.receive(worker, [])
    assert driver.orders(worker) == [("begin", "a", 1)]


def test_an_overdue_attempt_that_waits_for_a_worker_keeps_waiting(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.begin("a")
    driver.tune_asks()
    driver.loop.late = [("a", 1)]
    listen(driver, 20)
    assert driver.loop.ended == []
    assert [waiting.trial for waiting in driver.actuator.waiting()] == ["a"]


def test_suspended_driver_does_not_kill_workers_when_it_wakes(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, killed = silent_driver(driver, monkeypatch)
    driver.now += 3600
    listen(driver, 4)
    assert killed == []
    driver.loop.late = []  # its messages have arrived
    listen(driver, 10)
    assert killed == []


def test_a_worker_whose_message_has_arrived_is_not_killed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, killed = silent_driver(driver, monkeypatch)
    driver.tune.futures = {"answered"}
    driver.tune._tracked_actors_to_task_futures = {
        driver.tune._trial_to_actor[worker]: {"answered", "delivered"}
    }
    monkeypatch.setattr(worker_pool.ray, "wait", lambda futures, **_: (futures, []))
    listen(driver, 20)
    assert killed == []


def test_worker_with_two_slots_runs_two_attempts_at_once() -> None:
    driver = Driver(slots=2)
    driver.begin("a", "b", "c")
    first, second = driver.tune_asks(), driver.tune_asks()
    assert driver.tune_asks() is None, "four slots are enough for three attempts"
    driver.start(first)
    assert driver.orders(first) == [("begin", "a", 1), ("begin", "b", 1)]
    assert driver.send(first, "a", state="running"), "no slot is free"
    assert driver.send(first, "a")
    assert driver.orders(first)[2:] == [("begin", "c", 1)]
    driver.turn()
    assert second not in driver.tune.live, "no attempt waits for it any more"
    assert driver.send(first, "c"), "the worker still runs b"
    driver.begin("d")
    assert driver.tune_asks() is None, "the first worker has a free slot"
    driver.turn()
    assert driver.orders(first)[3:] == [("begin", "d", 1)]
    driver.send(first, "d")
    assert not driver.send(first, "b"), "Tune may stop the worker or keep it for reuse"


def test_messages_of_several_attempts_are_passed_on_in_order() -> None:
    driver = Driver(slots=2)
    driver.begin("a", "b")
    worker = driver.tune_asks()
    driver.start(worker)
    messages = [actor_message(trial, 1, "ended") for trial in ("b", "a")]
    assert not driver.pool.receive(worker, messages)
    assert driver.loop.ended == [("b", 1, "ended"), ("a", 1, "ended")]


def test_death_of_a_worker_ends_all_attempts_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "was_preempted", lambda error, node: False)
    monkeypatch.setattr(worker_pool, "nodes_of", lambda error, actor, several: [])
    driver = Driver(slots=3)
    driver.begin("a", "b")
    worker = driver.tune_asks()
    worker.pickled_error_file = None
    driver.start(worker)
    driver.pool.died(driver.tune, worker)
    how = {"preempted": False, "node": "", "sharers": 2}
    assert driver.loop.ended == [("a", 1, how), ("b", 1, how)]
    driver.begin("c")
    assert driver.tune_asks() is not None, "a dead worker has no free slots"


@pytest.mark.parametrize("slots", [1, 2])
def test_worker_gets_attempts_again_after_its_notice_was_withdrawn(slots: int) -> None:
    driver = Driver(slots=slots)
    driver.begin("a")
    worker = driver.tune_asks()
    driver.start(worker)
    assert driver.send(worker, "a", state="running", leaving=True)
    driver.send(worker, "a", state="ended", leaving=False)
    driver.begin("b")
    assert driver.pool.receive(worker, [])
    assert driver.orders(worker) == [("begin", "a", 1), ("begin", "b", 1)]


def test_worker_of_a_machine_that_leaves_fills_no_slot() -> None:
    driver = Driver(slots=2)
    driver.begin("a", "b")
    worker = driver.tune_asks()
    driver.start(worker)
    assert driver.send(worker, "a", state="preempted", leaving=True)
    driver.begin("c")
    driver.turn()
    assert driver.send(worker, "b", state="preempted", leaving=True), "Tune would keep it if it was stopped"
    assert driver.orders(worker) == [("begin", "a", 1), ("begin", "b", 1)]
    assert driver.tune_asks() is not None
