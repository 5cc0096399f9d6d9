"""Random and grid search with all trials trained in full, the median stopping rule, and i-Epoch."""

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


class FixedEpochs(Random):
    """i-Epoch: train random configurations for a fixed number of steps each, and at the end train the best of them in full.

    Egele et al., "The Unreasonable Effectiveness Of Early Discarding After One Epoch In Neural Network Hyperparameter Optimization"
    (arXiv 2404.04111), with the best `TOP` as in "Is One Epoch All You Need For Multi-Fidelity Hyperparameter Optimization?" (arXiv
    2307.15422). The last part of the money is kept for them. It pays all workers while some of them train the best, because the arena counts
    idle workers too.
    """

    TOP = 3

    def __init__(self, problem: Problem, first: int = 1) -> None:
        super().__init__(problem)
        self.first = min(first, problem.steps)
        rounds = -(-self.TOP // problem.workers)
        kept = rounds * problem.workers * (problem.steps - self.first + 1)
        self.left = problem.money - kept  # the mean steps that may still be spent on new trials
        self.paused: dict[int, float] = {}  # the value of each trial after its first steps
        self.chosen: set[int] = set()

    def next(self, may_start: bool) -> Start | Resume | None:
        cost = 1 + self.first  # a start costs a mean step
        if may_start and self.left >= cost:
            self.left -= cost
            return super().next(may_start)
        if len(self.chosen) == self.TOP or not self.paused:
            return None
        best = max(self.paused, key=lambda trial: self.paused[trial])
        del self.paused[best]
        self.chosen.add(best)
        return Resume(best)

    def report(self, trial: int, step: int, value: float) -> Decision:
        if trial in self.chosen or step < self.first:
            return Decision.CONTINUE
        self.paused[trial] = value
        return Decision.PAUSE
