"""What the job would cost in other ways: with every trial of a grid or random search trained in full, and on other markets."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, SamplerName
from tuner.domain.money import Money
from tuner.domain.space import Space
from tuner.planning.alternatives import FEW_RUNS, Candidate
from tuner.planning.plan import Comparison, ComparisonName
from tuner.planning.scenario import Outcome, Simulate, SpotLife
from tuner.planning.simulations import Setting, mean
from tuner.tuning.samplers.simple import GRID_POINTS


def compared(
    setting: Setting, runs: Sequence[Outcome], chosen: Candidate, life: SpotLife, simulate: Simulate
) -> tuple[Comparison, ...]:
    """Simulate the job with grid search, with random search, and on every other market.

    `runs` are the runs of the plan. Grid and random search get as many trials as these have on average.
    """
    trials = max(1, mean([run.trials for run in runs]))
    found = [_searched(name, setting, trials, simulate) for name in ("grid_search", "random_search")]
    for market, offers in sorted(chosen.markets.items()):
        if market != chosen.market:
            other = replace(chosen, market=market, offers=offers)
            found.append(_marketed(market, other.setting(setting, life), simulate))
    return tuple(found)


def grid_points(space: Space) -> int:
    """Return the number of points of the whole grid, as an upper bound: conditional parameters make the grid smaller."""
    return math.prod(len(parameter.grid(GRID_POINTS)) for parameter in space.parameters.values())


def _searched(name: ComparisonName, setting: Setting, trials: int, simulate: Simulate) -> Comparison:
    """Simulate a grid or random search of `trials` trials, or of all points of a smaller grid.

    Each trial is trained to its last step, with no limit on the cost.
    """
    sampler: SamplerName = "grid" if name == "grid_search" else "random"
    points = grid_points(setting.spec.space)
    count = min(trials, points) if sampler == "grid" else trials
    spec = replace(
        setting.spec,
        algorithm=Algorithm("none", sampler, setting.spec.algorithm.seed),
        budget=Budget(trials=count),
        objective=replace(setting.spec.objective, target=None),
        plateau=None,
    )
    runs = replace(setting, spec=spec).runs(simulate, FEW_RUNS)
    note = f"{count} trials, each to step {setting.spec.fidelity.max}"
    if sampler == "grid":
        whole = _money(runs).micro_usd * points // count
        note += f"; all {points} points of the grid, {GRID_POINTS} values a number, would cost {Money(whole)}"
    return _comparison(name, runs, note)


def _marketed(name: ComparisonName, setting: Setting, simulate: Simulate) -> Comparison:
    runs = setting.runs(simulate, FEW_RUNS)
    lost = mean([run.preemptions for run in runs])
    return _comparison(name, runs, f"the same job, {lost} preemptions" if lost else "the same job")


def _comparison(name: ComparisonName, runs: Sequence[Outcome], note: str) -> Comparison:
    usd = [run.cost.usd.micro_usd for run in runs]
    return Comparison(
        name,
        _money(runs),
        mean([run.cost.gpu_ms for run in runs]),
        mean([run.elapsed_ns for run in runs]),
        mean([run.trials for run in runs]),
        note,
        Money(min(usd)),
        Money(max(usd)),
        mean([run.steps for run in runs]),
    )


def _money(runs: Sequence[Outcome]) -> Money:
    return Money(mean([run.cost.usd.micro_usd for run in runs]))
