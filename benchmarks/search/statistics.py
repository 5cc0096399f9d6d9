"""Statistics over the curves of many seeds: values at budgets, means and bootstrap intervals."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.search.runner import Result
from benchmarks.search.tables import Array, Curve

RESAMPLES = 2000
Cell = tuple[str, str, int]  # method, table, workers


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def at(curve: Curve, budgets: Sequence[float] | Array) -> Array:
    """Return the regrets of the best values found for these budgets."""
    spent, regrets = np.array(curve).T
    return np.asarray(regrets[np.searchsorted(spent, budgets, side="right") - 1])


def by_cell(results: Sequence[Result]) -> dict[Cell, list[Result]]:
    cells: dict[Cell, list[Result]] = defaultdict(list)
    for result in sorted(results, key=lambda r: (r.task.seed, r.task.budget)):
        cells[result.task.method, result.task.table, result.task.workers].append(result)
    return dict(cells)


def regrets(runs: Sequence[Result], budget: float) -> Array:
    """Return one regret per seed. If a seed has several runs, use the one with the smallest sufficient budget."""
    fitting = [run for run in runs if run.task.budget >= budget]
    by_seed = {run.task.seed: run for run in sorted(fitting, key=lambda r: -r.task.budget)}
    return np.array([float(at(run.curve, [budget])[0]) for run in by_seed.values()])


def resampled(values: Array, seed: int) -> Array:
    """Return the means of resamples of the rows, with shape (RESAMPLES, ...)."""
    rng = np.random.default_rng(seed)
    shares = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=RESAMPLES) / len(values)
    return np.asarray(np.tensordot(shares, values, axes=1))


def interval(mean: float, resamples: Array) -> Estimate:
    low, high = np.percentile(resamples, [2.5, 97.5])
    return Estimate(mean, float(low), float(high))


def mean_over_tables(of_tables: Sequence[Array]) -> Estimate:
    """Return the mean of the tables' means. Seeds are resampled within each table, because the tables are fixed."""
    mean = float(np.mean([values.mean() for values in of_tables]))
    return interval(mean, np.mean([resampled(values, i) for i, values in enumerate(of_tables)], axis=0))


def difference(ours: Array, theirs: Array) -> Estimate:
    """Return the difference of the means, which is positive if the first is worse."""
    return interval(float(ours.mean() - theirs.mean()), resampled(ours, 0) - resampled(theirs, 1))


def first_reached(curves: Array, grid: Array, target: Array) -> Array:
    """Return, for each mean curve (k, points), the money at which it first reaches its target (k), or infinity if it does not."""
    below = curves <= target[:, None]
    return np.where(below.any(axis=1), grid[below.argmax(axis=1)], np.inf)


@dataclass(frozen=True)
class Saving:
    """How many times fewer dollars a method needs than random search. Tables without the target (`unreached`) count with the whole budget."""

    factor: Estimate
    unreached: int


def saving(
    runs: Mapping[str, Sequence[Result]], random: Mapping[str, Sequence[Result]], budget: float
) -> Saving:
    """Compare the dollars to reach random search's mean regret at `budget`, as a geometric mean over the common tables."""
    grid = np.geomspace(budget / 1000, budget, 1500)
    logs, samples, unreached = [], [], 0
    for i, table in enumerate(sorted(set(runs) & set(random))):
        theirs = np.array([at(run.curve, [budget]) for run in random[table]])
        largest = max(run.task.budget for run in runs[table])
        curves = np.array([at(r.curve, grid) for r in runs[table] if r.task.budget == largest])
        curves[:, grid > largest] = np.inf
        reached_budget = first_reached(curves.mean(axis=0, keepdims=True), grid, theirs.mean(axis=0))
        unreached += int(np.isinf(reached_budget[0]))
        logs.append(np.log(budget / min(reached_budget[0], budget)))
        both = first_reached(resampled(curves, 2 * i), grid, resampled(theirs, 2 * i + 1)[:, 0])
        samples.append(np.log(budget / np.minimum(both, budget)))
    factor = interval(float(np.mean(logs)), np.mean(samples, axis=0))
    return Saving(Estimate(*(float(np.exp(x)) for x in (factor.mean, factor.low, factor.high))), unreached)
