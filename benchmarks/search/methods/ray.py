"""Ray Tune's own schedulers and its OptunaSearch, called in the order of its controller, without a cluster."""

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from ray.tune.schedulers import AsyncHyperBandScheduler, HyperBandScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from benchmarks.search.arena import Decision, Problem, Resume, Start
from benchmarks.search.methods.kde import Sampler
from benchmarks.search.methods.optuna import axes, point_of, trained
from benchmarks.search.tables import Array

logging.getLogger("ray.tune").setLevel(logging.WARNING)

METRIC, STEP = "value", "training_iteration"
PENDING_MAX = 200  # trials that Ray Tune keeps waiting where the search space is sampled at random


class Trial:
    """The attributes of a trial that the schedulers read."""

    is_saving = False

    def __init__(self, number: int) -> None:
        self.number, self.trial_id, self.status = number, f"{number:05}", "PENDING"
        self.last_result: dict[str, Any] = {}


class Search(Protocol):
    """A source of new configurations."""

    def propose(self, trial: int) -> Array: ...

    def started(self, trial: int, point: Array) -> None: ...

    def result(self, trial: int, step: int, value: float) -> None: ...

    def complete(self, trial: int, step: int, value: float) -> None: ...


class Sampled:
    """One of our samplers, which receives the results at the scheduler's rungs."""

    def __init__(self, sampler: Sampler, rungs: list[int]) -> None:
        self.sampler, self.rungs = sampler, rungs

    def propose(self, trial: int) -> Array:
        return self.sampler.propose()

    def started(self, trial: int, point: Array) -> None:
        self.sampler.started(point)

    def result(self, trial: int, step: int, value: float) -> None:
        if step in self.rungs:
            self.sampler.tell(trial, step, value)

    complete = result


class OptunaSearched:
    """`OptunaSearch` with its defaults. As in Ray Tune, the next trial is suggested while the workers are still busy."""

    def __init__(self, problem: Problem) -> None:
        self.dims = problem.dims
        self.search = OptunaSearch(space=axes(problem.dims), metric=METRIC, mode="max", seed=problem.seed)
        self.ids = count()
        self.waiting = self._suggest()

    def _suggest(self) -> Array:
        return point_of(self.search.suggest(str(next(self.ids))), self.dims)

    def propose(self, trial: int) -> Array:
        return self.waiting

    def started(self, trial: int, point: Array) -> None:
        trained(self.search._ot_trials[str(trial)], point)
        self.waiting = self._suggest()

    def result(self, trial: int, step: int, value: float) -> None:
        self.search.on_trial_result(str(trial), {METRIC: value, STEP: step})

    def complete(self, trial: int, step: int, value: float) -> None:
        self.search.on_trial_complete(str(trial), {METRIC: value, STEP: step})


class StoppingAsha:
    """`AsyncHyperBandScheduler`, η 3, first rung 1: a trial below the quantile of its rung is stopped."""

    def __init__(self, problem: Problem, search: Callable[[Problem], Search]) -> None:
        self.scheduler = AsyncHyperBandScheduler(
            time_attr=STEP, metric=METRIC, mode="max", max_t=problem.steps, grace_period=1, reduction_factor=3
        )
        self.search = search(problem)
        self.trials: list[Trial] = []

    def next(self, may_start: bool) -> Start | Resume | None:
        return Start(self.search.propose(len(self.trials))) if may_start else None

    def started(self, trial: int, point: Array) -> None:
        self.trials.append(Trial(trial))
        self.scheduler.on_trial_add(None, self.trials[trial])
        self.search.started(trial, point)

    def report(self, trial: int, step: int, value: float) -> Decision:
        result = {METRIC: value, STEP: step}
        action = self.scheduler.on_trial_result(None, self.trials[trial], result)
        if action != TrialScheduler.STOP:
            self.search.result(trial, step, value)
            return Decision.CONTINUE
        self.scheduler.on_trial_complete(None, self.trials[trial], result)
        self.search.complete(trial, step, value)
        return Decision.STOP


class SyncHyperband:
    """`HyperBandScheduler`, η 3, with random proposals; this object is the controller that the scheduler calls."""

    def __init__(self, problem: Problem, sampler: Callable[[Problem], Sampler]) -> None:
        self.scheduler = HyperBandScheduler(
            time_attr=STEP, metric=METRIC, mode="max", max_t=problem.steps, reduction_factor=3
        )
        self.sampler = sampler(problem)
        self.pending: dict[Trial, None] = {}
        self.added = count()
        self.numbers = count()
        self.running: list[Trial] = []  # by number

    def stop_trial(self, trial: Trial) -> None:
        """Stop a paused trial. The scheduler calls this."""
        if trial.status not in ("TERMINATED", "ERROR"):
            self.scheduler.on_trial_remove(self, trial)
            trial.status = "TERMINATED"

    def next(self, may_start: bool) -> Start | Resume | None:
        while len(self.pending) < PENDING_MAX:
            trial = Trial(next(self.added))
            self.pending[trial] = None
            self.scheduler.on_trial_add(self, trial)
        chosen = self.scheduler.choose_trial_to_run(self)
        if chosen is None or (chosen in self.pending and not may_start):
            return None
        paused, chosen.status = chosen.status == "PAUSED", "RUNNING"
        if paused:
            return Resume(chosen.number)
        del self.pending[chosen]
        chosen.number = next(self.numbers)
        self.running.append(chosen)
        return Start(self.sampler.propose())

    def started(self, trial: int, point: Array) -> None:
        pass

    def report(self, trial: int, step: int, value: float) -> Decision:
        reporting = self.running[trial]
        result = {METRIC: value, STEP: step}
        action = self.scheduler.on_trial_result(self, reporting, result)
        if action == TrialScheduler.CONTINUE:
            return Decision.CONTINUE
        if action == TrialScheduler.PAUSE:
            reporting.status = "PAUSED"
            return Decision.PAUSE
        self.scheduler.on_trial_complete(self, reporting, result)
        reporting.status = "TERMINATED"
        return Decision.STOP
