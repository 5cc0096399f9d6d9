"""Test what Tune learns about attempts that wait for a worker, with the real hooks and a fake of Tune's
controller.
"""

import importlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import ActorID, cloudpickle
from ray.air._internal import usage
from ray.exceptions import RayActorError

from tuner.domain.time import NS
from tuner.driver import ray_machines, tune_hooks
from tuner.driver.actuator import Actuator
from tuner.driver.ports import Assignment
from tuner.driver.ray_machines import AssignedMachines
from tuner.driver.tune_hooks import ASKED_AT_ONCE, FORGET_AT, STARTS_WITHIN_S, AttemptSearcher, EventScheduler


class Loop:
    """A job loop that restarts the trials in `elsewhere` somewhere else."""

    def __init__(self, actuator: Actuator) -> None:
        self._actuator = actuator
        self.end = None
        self.elsewhere: set[str] = set()
        self.told: list[Any] = []
        self.late: list[tuple[str, int]] = []  # attempts whose workers must have ended

    def overdue(self) -> list[tuple[str, int]]:
        return self.late

    def relocate(self, trial: str, attempt: int) -> bool:
        moves = trial in self.elsewhere
        self.elsewhere.discard(trial)
        if moves:
            self._actuator.begin(assignment(trial, attempt + 1))
        return moves

    def runs(self, trial: str, attempt: int) -> bool:
        return True

    def lost(self, trial: str, attempt: int, reason: str, **more: Any) -> None:
        self.late = [one for one in self.late if one != (trial, attempt)]
        self.told.append((trial, attempt, more))

    def progress(self, progress: Any) -> None:
        self.told.append(progress)


class Tune:
    """The part of Tune's controller that the hooks use. A trial that it stops is no longer live, immediately."""

    def __init__(self) -> None:
        self.live: set[Any] = set()
        self._staged_trials: set[Any] = set()
        self._trials: list[Any] = []
        self._stopped_trials, self._failed_trials = set[Any](), set[Any]()
        self._trials_to_cache, self._resetting_trials = set[Any](), set[Any]()
        self._trial_to_actor, self._trial_metadata = dict[Any, Any](), dict[str, str]()
        self.cached_max = 0
        self._tune_controller = self._actor_manager = self
        self.placed: set[Any] = set()
        self.futures: set[str] = set()
        self._tracked_actors_to_task_futures: dict[Any, set[str]] = {}
        self._actor_task_events = self

    def get_futures(self) -> set[str]:
        """Return the workers' calls that are unanswered or whose answer is not yet delivered."""
        return self.futures

    def is_actor_started(self, actor: Any) -> bool:
        """Return whether Ray has a machine for the actor. Its process starts after that."""
        return actor in self.placed

    @property
    def _live_trials(self) -> set[Any]:
        return self.live

    def get_live_trials(self) -> set[Any]:
        return self.live

    def stop_trial(self, trial: Any) -> None:
        self.live.discard(trial)

    def _unstage_trial_with_resources(self, trial: Any) -> None:
        self._staged_trials.remove(trial)


class Trial(SimpleNamespace):
    __hash__ = object.__hash__


SPOT_NODE = {"NodeID": "gone", "Alive": False, "DeathReason": 0, "Labels": {ray_machines.MARKET: "spot"}}


class GlobalState:
    """A fake of what Ray knows about actors and draining nodes."""

    def __init__(self, actors: dict[str, Any], draining: dict[str, int] | None = None) -> None:
        self.actor_table = actors.__getitem__
        self._draining = draining or {}

    def get_draining_nodes(self) -> dict[str, int]:
        return self._draining


class Driver:
    def __init__(self) -> None:
        self.actuator = Actuator(lambda one: {"order": "begin", "trial": one.trial}, clock=lambda: 0)
        self.loop, self.tune = Loop(self.actuator), Tune()
        hooks: Any = (self.loop, self.actuator)
        self.assigner = AttemptSearcher(*hooks, {}, lambda: None)
        self.now = 0.0
        self.messenger = EventScheduler(*hooks, AssignedMachines(), lambda: None, lambda: self.now)

    def tune_asks(self) -> Any:
        """Ask for the next assignment and look for a worker for it, as Tune does."""
        config = self.assigner.suggest("any")
        if config is None:
            return None
        assert isinstance(config, dict)
        own = SimpleNamespace(ray_actor=None)
        trial = Trial(config=config, trial_id=f"{config['trial']}-{config['attempt']}", temporary_state=own)
        self.messenger.on_trial_add(self.tune, trial)
        self.tune.live.add(trial)
        self.tune._staged_trials.add(trial)
        self.tune._trial_to_actor[trial] = f"the actor of {trial.trial_id}"
        return trial


def assignment(trial: str, attempt: int = 1, *, not_before_ns: int = 0) -> Assignment:
    return Assignment(trial, attempt, {}, None, NS, None, not_before_ns)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_free_worker_goes_to_the_longest_waiting_attempt(driver: Driver) -> None:
    for name in ("b", "a", "c"):
        driver.actuator.begin(assignment(name))
    b, a, c = (driver.tune_asks() for _ in range(3))
    assert driver.messenger.choose_trial_to_run(driver.tune) is b
    driver.actuator.started("b", lambda message: None, NS)
    assert driver.messenger.choose_trial_to_run(driver.tune) is a
    driver.actuator.started("a", lambda message: None, NS)
    driver.actuator.started("c", lambda message: None, NS)
    assert driver.messenger.choose_trial_to_run(driver.tune) is None
    assert c in driver.tune.live


def test_relocated_attempt_is_cancelled_and_replaced_by_the_next(driver: Driver) -> None:
    for name in ("a", "b"):
        driver.actuator.begin(assignment(name))
    a, b = driver.tune_asks(), driver.tune_asks()
    driver.loop.elsewhere = {"a"}
    assert driver.messenger.choose_trial_to_run(driver.tune) is b
    assert driver.tune.live == driver.tune._staged_trials == {b}
    assert a not in driver.tune.live
    again = driver.tune_asks()
    assert (again.config["trial"], again.config["attempt"]) == ("a", 2)
    assert [one.attempt for one in driver.actuator.pending()] == [1, 2]


def test_wait_for_a_placed_worker_to_start_is_bounded(driver: Driver) -> None:
    """The wait for a machine may be short. On another machine, the worker would only start again and be given
    up again.
    """
    driver.actuator.begin(assignment("a"))
    a = driver.tune_asks()
    driver.tune.placed = {driver.tune._trial_to_actor[a]}
    driver.loop.elsewhere = {"a"}
    for _ in range(3):
        assert driver.messenger.choose_trial_to_run(driver.tune) is a
        driver.now += STARTS_WITHIN_S / 3
    assert driver.tune.live == {a}
    assert driver.messenger.choose_trial_to_run(driver.tune) is None
    assert driver.tune_asks().config["attempt"] == 2
    assert driver.messenger._found_at == {}


def test_waiting_attempts_are_checked_for_relocation_in_batches(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"trial_{number:05}" for number in range(2 * ASKED_AT_ONCE + 1)]
    asked: list[str] = []
    monkeypatch.setattr(driver.loop, "relocate", lambda trial, attempt: bool(asked.append(trial)))
    for name in names:
        driver.actuator.begin(assignment(name))
        driver.tune_asks()
    for turn in (names[:ASKED_AT_ONCE], names[ASKED_AT_ONCE : 2 * ASKED_AT_ONCE], names[-1:]):
        del asked[:]
        driver.messenger.choose_trial_to_run(driver.tune)
        assert asked == turn
    driver.messenger.choose_trial_to_run(driver.tune)
    assert asked == [*names[-1:], *names[:ASKED_AT_ONCE]]


def test_attempt_stopped_while_waiting_is_reported_as_stopped(driver: Driver) -> None:
    driver.actuator.begin(assignment("a"))
    driver.tune_asks()
    driver.actuator.stop("a", keep_best=False)
    assert driver.messenger.choose_trial_to_run(driver.tune) is None
    assert [(one.trial, one.state) for one in driver.loop.told] == [("a", "stopped")]
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
    driver.actuator.begin(assignment("a"))
    trial = driver.tune_asks()
    trial.pickled_error_file = str(tmp_path / "error.pkl")
    Path(trial.pickled_error_file).write_bytes(cloudpickle.dumps(RayActorError("actor")))
    driver.messenger.on_trial_error(driver.tune, trial)
    assert driver.loop.told == [("a", 1, {"preempted": True, "node": "gone"})]
    assert not driver.tune._staged_trials
    assert driver.actuator.pending() == []


def test_early_worker_failure_is_attributed_to_its_actors_node(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such an error names no actor. It counts as a preemption if the node is being drained."""
    actor = ActorID.from_random()
    monkeypatch.setattr(ray_machines.ray, "nodes", lambda: [{**SPOT_NODE, "NodeID": "here", "Alive": True}])
    known = GlobalState({actor.hex(): {"Address": {"NodeID": "here"}}}, {"here": 0})
    monkeypatch.setattr(ray_machines, "cluster_state", known)
    driver.actuator.begin(assignment("a"))
    trial = driver.tune_asks()
    trial.temporary_state.ray_actor = SimpleNamespace(_actor_id=actor)
    trial.pickled_error_file = str(tmp_path / "error.pkl")
    Path(trial.pickled_error_file).write_bytes(cloudpickle.dumps(RuntimeError("in the worker")))
    driver.messenger.on_trial_error(driver.tune, trial)
    assert driver.loop.told == [("a", 1, {"preempted": True, "node": "here"})]


def test_attempt_is_not_assigned_before_its_start_time(driver: Driver) -> None:
    driver.actuator.begin(assignment("a", not_before_ns=NS))
    driver.actuator.begin(assignment("b"))
    assert driver.tune_asks().config["trial"] == "b"
    assert driver.tune_asks() is None


def test_tune_forgets_ended_trials_that_it_no_longer_uses(driver: Driver) -> None:
    tune = driver.tune
    ended = [Trial(trial_id=str(n), is_finished=lambda: True) for n in range(3 * FORGET_AT)]
    runs = Trial(trial_id="runs", is_finished=lambda: False)
    tune._trials, tune.live = [*ended[:10], runs, *ended[10:]], {runs}
    tune._stopped_trials, tune._failed_trials = set(ended[::2]), set(ended[1::2])
    tune._trials_to_cache, tune._trial_metadata = set(ended), {one.trial_id: "{}" for one in ended}
    stays, newest = ended[3], ended[-1]
    tune._trial_to_actor[stays] = object()
    known = tune._trials
    assert driver.messenger.choose_trial_to_run(tune) is None
    assert known == [stays, runs, newest]
    assert tune._stopped_trials | tune._failed_trials == tune._trials_to_cache == {stays, newest}
    assert tune._trial_metadata.keys() == {stays.trial_id, newest.trial_id}


def test_few_ended_trials_are_kept(driver: Driver) -> None:
    driver.tune._trials = [Trial(is_finished=lambda: True) for _ in range(FORGET_AT - 1)]
    driver.messenger.choose_trial_to_run(driver.tune)
    assert len(driver.tune._trials) == FORGET_AT - 1


def test_ray_tune_has_the_callback_counting_hook_that_the_driver_replaces() -> None:
    """Tune's own way of counting callbacks imports MLflow and others, which takes seconds at the start of each
    job.
    """
    assert "air_usage.tag_callbacks(callbacks)" in inspect.getsource(importlib.import_module("ray.tune.tune"))
    assert callable(usage.tag_callbacks)


def silent_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Run one attempt whose worker is overdue. Return Tune's trial, and the actors that are killed from now on."""
    killed: list[Any] = []
    monkeypatch.setattr(tune_hooks, "kill_worker", killed.append)
    driver.actuator.begin(assignment("a"))
    trial = driver.tune_asks()
    trial.temporary_state.ray_actor = "worker"
    driver.actuator.started("a", lambda message: None, NS)
    driver.loop.late = [("a", 1)]
    return trial, killed


def listen(driver: Driver, seconds: float) -> None:
    """Let Tune loop four times per second for `seconds` seconds."""
    for _ in range(round(4 * seconds)):
        driver.now += 0.25
        driver.messenger.choose_trial_to_run(driver.tune)


def test_an_overdue_worker_is_killed_once_and_given_up_if_ray_reports_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, killed = silent_driver(driver, monkeypatch)
    listen(driver, 4)
    assert killed == [], "the driver has not listened for long enough"
    listen(driver, 2)
    assert killed == ["worker"]
    assert driver.loop.told == []
    listen(driver, tune_hooks.GONE_AFTER_S)
    assert killed == ["worker"]
    assert driver.loop.told == [("a", 1, {"preempted": False, "node": ""})]
    assert trial not in driver.tune.live


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
    trial, killed = silent_driver(driver, monkeypatch)
    driver.tune.futures = {"answered"}
    driver.tune._tracked_actors_to_task_futures = {
        driver.tune._trial_to_actor[trial]: {"answered", "delivered"}
    }
    monkeypatch.setattr(tune_hooks.ray, "wait", lambda futures, **_: (futures, []))
    listen(driver, 20)
    assert killed == []
