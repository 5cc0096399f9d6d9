"""Syne Tune's own schedulers, called in the order of its Tuner. Runs under an interpreter that has syne-tune 0.14.2.

That is the last release with MOBSTER, Hyper-Tune and DyHPO. All pause and resume; all have their defaults, except that
the rungs are those of the other methods: η 3 from step 1; DyHPO's are at every second step, its default distance.
"""

import logging
from datetime import datetime
from typing import Any

import numpy as np
from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import uniform
from syne_tune.optimizer import legacy_baselines as baselines
from syne_tune.optimizer.scheduler import SchedulerDecision

from benchmarks.search.arena import Decision, Problem, Resume, Start
from benchmarks.search.tables import Array

logging.disable(logging.INFO)

METRIC, STEP, LAST = "value", "step", "steps"
HALVING = {"type": "promotion", "grace_period": 1, "reduction_factor": 3}
SCHEDULERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "asha": (baselines.ASHA, HALVING),
    "bohb": (baselines.BOHB, HALVING),
    "mobster": (baselines.MOBSTER, HALVING),
    "hypertune": (baselines.HyperTune, {**HALVING, "brackets": 4}),
    "dyhpo": (baselines.DyHPO, {"grace_period": 2, "rung_increment": 2}),
}


class SyneTune:
    """A scheduler of Syne Tune, by name."""

    def __init__(self, problem: Problem, name: str) -> None:
        np.random.seed(problem.seed)  # some of its draws are from the global generator
        self.problem = problem
        scheduler, options = SCHEDULERS[name]
        options = {**options, "search_options": {"debug_log": False}} if name != "asha" else options
        space = {f"x{axis}": uniform(0.0, 1.0) for axis in range(problem.dims)}
        self.scheduler = scheduler(
            {**space, LAST: problem.steps},
            metric=METRIC,
            mode="max",
            resource_attr=STEP,
            max_resource_attr=LAST,
            random_seed=problem.seed,
            points_to_evaluate=[],
            **options,
        )
        self.trials: list[Trial] = []
        self.waiting: dict[str, Any] = {}

    def next(self, may_start: bool) -> Start | Resume | None:
        suggestion = self.scheduler.suggest(len(self.trials))
        if suggestion is None:
            return None
        if not suggestion.spawn_new_trial_id:
            resumed = self.trials[suggestion.checkpoint_trial_id]
            if suggestion.config is not None:
                resumed.config = {**resumed.config, LAST: suggestion.config[LAST]}
            return Resume(resumed.trial_id)
        if not may_start:
            return None
        self.waiting = suggestion.config
        return Start(np.array([self.waiting[f"x{axis}"] for axis in range(self.problem.dims)]))

    def started(self, trial: int, point: Array) -> None:
        row = {f"x{axis}": float(value) for axis, value in enumerate(point)}
        self.trials.append(Trial(trial, {**self.waiting, **row}, datetime(2026, 1, 1)))
        self.scheduler.on_trial_add(self.trials[trial])
        searcher = getattr(self.scheduler.searcher, "_searcher_int", self.scheduler.searcher)
        if model := getattr(searcher, "state_transformer", None):
            # The proposal is registered as pending, but the model has to learn from the row.
            model.state.config_for_trial[str(trial)].update(row)

    def report(self, trial: int, step: int, value: float) -> Decision:
        reporting = self.trials[trial]
        result = {METRIC: value, STEP: step}
        decision = self.scheduler.on_trial_result(reporting, result)
        if decision == SchedulerDecision.CONTINUE:
            if step == self.problem.steps:
                self.scheduler.on_trial_complete(reporting, result)
            return Decision.CONTINUE
        self.scheduler.on_trial_remove(reporting)
        return Decision.PAUSE if decision == SchedulerDecision.PAUSE else Decision.STOP
