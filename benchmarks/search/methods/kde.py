"""Density estimates over the unit cube for good and for other trials, as in BOHB (Falkner, Klein & Hutter, ICML 2018)."""

import math
from collections.abc import Mapping

import numpy as np

from benchmarks.search.arena import Problem
from benchmarks.search.tables import Array

RANDOM_SHARE = 1 / 3
GOOD_SHARE = 0.15
CANDIDATES = 64
BANDWIDTH_MIN = 1e-3
WIDENING = 3.0  # of the kernels when candidates are drawn


class Kde:
    """Propose by the results at the highest fidelity that has enough of them. A third of the proposals is uniform."""

    def __init__(self, problem: Problem) -> None:
        self.dims = problem.dims
        self.rng = np.random.default_rng(problem.seed)
        self.points: list[Array] = []
        self.results: dict[int, dict[int, float]] = {}  # by step, by trial

    def started(self, point: Array) -> None:
        self.points.append(point)

    def tell(self, trial: int, step: int, value: float) -> None:
        self.results.setdefault(step, {})[trial] = value

    def propose(self) -> Array:
        results = None if self.rng.random() < RANDOM_SHARE else self._highest()
        return self.rng.random(self.dims) if results is None else self._likely(results)

    def _highest(self) -> Mapping[int, float] | None:
        needed = self.dims + 2
        enough = max(needed + 2, math.ceil(needed / (1 - GOOD_SHARE)))
        return next((r for _, r in sorted(self.results.items(), reverse=True) if len(r) >= enough), None)

    def _likely(self, results: Mapping[int, float]) -> Array:
        """Return the candidate near good trials with the largest ratio of the densities."""
        needed = self.dims + 2
        ranked = np.array([self.points[t] for t in sorted(results, key=lambda t: -results[t])])
        n_good = min(max(needed, int(GOOD_SHARE * len(ranked))), len(ranked) - 2)
        good, rest = ranked[:n_good], ranked[min(n_good, len(ranked) - needed) :]
        widths = self._bandwidth(good)
        at = good[self.rng.integers(n_good, size=CANDIDATES)]
        drawn = at + self.rng.normal(size=at.shape) * widths * WIDENING
        drawn = np.where((drawn < 0) | (drawn > 1), self.rng.random(at.shape), drawn)
        ratio = _log_density(drawn, good, widths) - _log_density(drawn, rest, self._bandwidth(rest))
        return np.asarray(drawn[np.argmax(ratio)])

    def _bandwidth(self, points: Array) -> Array:
        """Return the bandwidths by Scott's rule."""
        return np.asarray(
            np.maximum(points.std(axis=0) * len(points) ** (-1 / (self.dims + 4)), BANDWIDTH_MIN)
        )


class Uniform:
    """A sampler with uniform proposals that learns nothing."""

    def __init__(self, problem: Problem) -> None:
        self.dims = problem.dims
        self.rng = np.random.default_rng(problem.seed)

    def started(self, point: Array) -> None:
        pass

    def tell(self, trial: int, step: int, value: float) -> None:
        pass

    def propose(self) -> Array:
        return self.rng.random(self.dims)


Sampler = Kde | Uniform


def _log_density(at: Array, points: Array, widths: Array) -> Array:
    exponents = -0.5 * (((at[:, None] - points[None]) / widths) ** 2).sum(axis=2)
    largest = exponents.max(axis=1)
    means = np.exp(exponents - largest[:, None]).mean(axis=1)
    return np.asarray(largest + np.log(means) - np.log(widths).sum())
