"""Random and grid search with all trials trained in full, and the median stopping rule."""

from itertools import product

import numpy as np

from benchmarks.search.arena import Decision, Problem, Resume, Start
from benchmarks.search.tables import Array

LEVELS = (1 / 6, 1 / 2, 5 / 6)  # of a grid's axis


class Random:
    """Random search: uniform proposals, trained in full."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rng = np.random.default_rng(problem.seed)

    def next(self, may_start: bool) -> Start | Resume | None:
        return Start(self.rng.random(self.problem.dims)) if may_start else None

    def started(self, trial: int, point: Array) -> None:
        pass

    def report(self, trial: int, step: int, value: float) -> Decision:
        return Decision.CONTINUE


class Grid(Random):
    """Grid search: all combinations of three levels in random order, because the first hundred in their own order would vary little."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        points = np.array(list(product(LEVELS, repeat=problem.dims)))
        self.points = iter(points[self.rng.permutation(len(points))])

    def next(self, may_start: bool) -> Start | Resume | None:
        point = next(self.points, None) if may_start else None
        return None if point is None else Start(point)


class MedianStopping(Random):
    """Golovin et al., KDD 2017, as Ray Tune's MedianStoppingRule decides with `grace_period=1`.

    A trial stops at a step where its best value so far is below the median, over the others that came this far, of
    their mean values up to this step; at least three others are needed.
    """

    OTHERS_MIN = 3

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.means = np.full((64, problem.steps), np.nan)  # of each trial up to each step
        self.best: list[float] = []

    def started(self, trial: int, point: Array) -> None:
        self.best.append(-np.inf)
        if trial >= len(self.means):
            self.means = np.vstack([self.means, np.full_like(self.means, np.nan)])

    def report(self, trial: int, step: int, value: float) -> Decision:
        before = self.means[trial, step - 2] * (step - 1) if step > 1 else 0.0
        self.best[trial] = max(self.best[trial], value)
        others = self.means[~np.isnan(self.means[:, step - 1]), step - 1]
        self.means[trial, step - 1] = (before + value) / step
        if len(others) < self.OTHERS_MIN or self.best[trial] >= np.median(others):
            return Decision.CONTINUE
        return Decision.STOP
