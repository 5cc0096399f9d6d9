"""The rule of ifBO with this project's model of learning curves, to compare the rule with `auto`.

ifBO has a pretrained network for its model, which no package includes. Here the model is `CurveGP`.
"""

from collections.abc import Mapping

import numpy as np
from scipy.special import ndtr
from threadpoolctl import threadpool_limits

from benchmarks.search.arena import Decision, Problem, Resume, Start
from benchmarks.search.tables import Array
from tuner.tuning.samplers.curve_gp import CurveGP
from tuner.tuning.samplers.curves import FLOOR, Data
from tuner.tuning.samplers.model import CANDIDATES, FIRST_RANDOM, FIT_POINTS, NOBODY, POINTS, REFIT_AT

NEW = -1  # chosen instead of a trial's number: start a new trial


class IfBO:
    """Freeze-thaw search by MFPI-random (Rakotoarison et al., ICML 2024, arXiv 2404.16795, section 4.2).

    For each decision, a horizon h and a threshold T above the best value are drawn. The next step goes to the configuration that most
    probably exceeds T if it is trained h steps longer. Here values are scaled to median 0 and best 1, so T is 1 and a little
    more. A worker that changes to another trial pays for its start.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rng = np.random.default_rng(problem.seed)
        self.gp = CurveGP(problem.dims)
        self.points: list[Array] = []
        self.curves: list[list[float]] = []
        self.paused: set[int] = set()
        self.reports = self.fitted_at = 0
        self.conditioned_at = -1

    def next(self, may_start: bool) -> Start | Resume | None:
        choice, point = self._choice(None, may_start)
        if choice == NEW:
            return Start(point) if may_start else None
        self.paused.discard(choice)
        return Resume(choice)

    def started(self, trial: int, point: Array) -> None:
        self.points.append(point)
        self.curves.append([])

    def report(self, trial: int, step: int, value: float) -> Decision:
        self.curves[trial].append(value)
        self.reports += 1
        if step == self.problem.steps:
            return Decision.STOP
        choice, _ = self._choice(trial, True)
        if choice == trial:
            return Decision.CONTINUE
        self.paused.add(trial)
        return Decision.PAUSE

    def _choice(self, running: int | None, may_start: bool) -> tuple[int, Array]:
        """Return the trial to train next, or NEW, and the point of the best new configuration. `running` may be chosen too."""
        points = self.rng.random((CANDIDATES, self.problem.dims))
        horizon = int(self.rng.integers(1, self.problem.steps + 1))
        above = 10 ** self.rng.uniform(-4, -1)
        trials = sorted(self.paused | ({running} if running is not None else set()))
        trials_with_report = sum(bool(curve) for curve in self.curves)
        if trials_with_report < FIRST_RANDOM:
            return (trials[0] if trials and not may_start else NEW), points[0]
        with threadpool_limits(1):
            self._condition()
            threshold = 1 + above
            chances = self._chances(trials, horizon, threshold)
            mean, deviation = self.gp.predict(points, np.log(horizon), np.array([NOBODY]))
        new = ndtr((mean - threshold) / deviation)
        at = int(new.argmax())
        if may_start or not trials:
            chances = {**chances, NEW: float(new[at])}
        return max(chances, key=lambda number: chances[number]), points[at]

    def _chances(self, trials: list[int], horizon: int, threshold: float) -> Mapping[int, float]:
        """Return the probability of each trial to exceed the threshold after `horizon` more steps, or at the last step."""
        until = {number: min(len(self.curves[number]) + horizon, self.problem.steps) for number in trials}
        chances: dict[int, float] = {}
        for step in sorted(set(until.values())):
            numbers = [number for number in trials if until[number] == step]
            x = np.array([self.points[number] for number in numbers])
            mean, deviation = self.gp.predict(x, np.log(step), np.array(numbers))
            chances |= dict(zip(numbers, ndtr((mean - threshold) / deviation).tolist(), strict=True))
        return chances

    def _condition(self) -> None:
        """Bring the model up to date."""
        if self.conditioned_at == self.reports:
            return
        if self.reports >= REFIT_AT * self.fitted_at:
            self.fitted_at = self.reports
            self.gp.fit(self._data(FIT_POINTS))
        self.gp.condition(self._data(POINTS))
        self.conditioned_at = self.reports

    def _data(self, count: int) -> Data:
        """Return at most `count` values, scaled to median 0 and best 1. Half are of the best trials, and the rest is drawn from all others.

        A trial has values at its newest step and at each power of two.
        """
        middle = float(np.median([curve[-1] for curve in self.curves if curve]))
        scale = max(max(map(max, filter(None, self.curves))) - middle, 1e-9)
        begun = [number for number, curve in enumerate(self.curves) if curve]
        begun.sort(key=lambda number: -self.curves[number][-1])
        rows = [(number, step) for number in begun for step in _kept(len(self.curves[number]))]
        if len(rows) > count:
            rest = np.random.default_rng(self.reports).permutation(np.arange(count // 2, len(rows)))
            rows = rows[: count // 2] + [rows[i] for i in sorted(rest[: count - count // 2])]
        values = np.array([self.curves[number][step - 1] for number, step in rows])
        return Data(
            np.array([self.points[number] for number, _ in rows]),
            np.log([float(step) for _, step in rows]),
            np.maximum(FLOOR, (values - middle) / scale),
            np.array([number for number, _ in rows]),
        )


def _kept(steps: int) -> list[int]:
    """Return the steps of which a trial's values are kept: the powers of two, and the newest step."""
    return sorted({2**k for k in range(steps.bit_length())} | {steps})
