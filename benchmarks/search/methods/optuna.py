"""Optuna's own samplers and pruners, called through ask and tell in the order of its `optimize`.

Proposals are points of the unit cube. The study receives the row that was trained, not the point that was proposed.
"""

import warnings
from collections.abc import Callable

import numpy as np
import optuna

from benchmarks.search.arena import Decision, Problem, Resume, Start
from benchmarks.search.tables import Array

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def axes(dims: int) -> dict[str, optuna.distributions.BaseDistribution]:
    return {f"x{axis}": optuna.distributions.FloatDistribution(0, 1) for axis in range(dims)}


def point_of(params: dict[str, float], dims: int) -> Array:
    return np.array([params[f"x{axis}"] for axis in range(dims)])


def trained(trial: optuna.Trial, point: Array) -> None:
    """Store the trained row in place of the proposal."""
    for axis, value in enumerate(point):
        distribution = optuna.distributions.FloatDistribution(0, 1)
        trial.storage.set_trial_param(trial._trial_id, f"x{axis}", float(value), distribution)


class Tpe:
    """TPE with its defaults and an optional pruner."""

    def __init__(
        self, problem: Problem, pruner: Callable[[Problem], optuna.pruners.BasePruner] | None = None
    ) -> None:
        self.problem = problem
        self.study = optuna.create_study(
            study_name=f"seed-{problem.seed}",  # HyperbandPruner draws brackets from this name
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=problem.seed),
            pruner=pruner(problem) if pruner else optuna.pruners.NopPruner(),
        )
        self.prunes = pruner is not None
        self.trials: list[optuna.Trial] = []

    def next(self, may_start: bool) -> Start | Resume | None:
        if not may_start:
            return None
        self.trials.append(self.study.ask(axes(self.problem.dims)))
        return Start(point_of(self.trials[-1].params, self.problem.dims))

    def started(self, trial: int, point: Array) -> None:
        trained(self.trials[trial], point)

    def report(self, trial: int, step: int, value: float) -> Decision:
        asked = self.trials[trial]
        if self.prunes:
            asked.report(value, step)
            if step < self.problem.steps and asked.should_prune():
                self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)
                return Decision.STOP
        if step == self.problem.steps:
            self.study.tell(asked, value)
        return Decision.CONTINUE


def successive_halving(problem: Problem) -> optuna.pruners.BasePruner:
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)


def hyperband(problem: Problem) -> optuna.pruners.BasePruner:
    return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=problem.steps, reduction_factor=3)
