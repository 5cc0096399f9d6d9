"""What a prior gains if it is right, and what it costs if it is wrong.

    python -m benchmarks.search.priors [--seeds 8] [--budget 20] [--scheduler asha --sampler random]

Each table is searched without a prior, with priors at its best row, and with priors at the end of each scale that is farther from the best
row. `cost` is the money, relative to the search without priors, after which the mean regret over tables and seeds is as low as that search's at
the end of its budget. Regret 0 is the best known value, and 1 that of a median row.
"""

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tuner.domain.job import Algorithm
from tuner.domain.space import Confidence, Config, Float, Int, Parameter, Prior, Space
from tuner.simulator.recorded import BestCurve, RecordedTable
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import table_run, trainings_of

DATA = Path(__file__).parent.parent / "data" / "lcbench_adult_300.npz"
LONGER = 1.3  # the runs with priors have this many times the budget, so that a cost above 1 can be seen
WORST = 3.0  # regret of a run without a result
Curve = list[tuple[float, float]]  # money in mean trainings, and the best value at it
Runs = tuple[RecordedTable, list[Curve]]  # of one table, by seed


def made_table(seed: int) -> RecordedTable:
    """Return a table with one optimum in four dimensions, noise between rows, and curves whose ranks cross early."""
    rng = np.random.default_rng(seed)
    names, steps = ("a", "b", "c", "d"), np.arange(1, 28)
    unit, best = rng.random((300, 4)), rng.uniform(0.1, 0.9, 4)
    quality = np.exp(-(((unit - best) / rng.uniform(0.2, 0.6, 4)) ** 2).sum(axis=1)) + rng.normal(
        0, 0.02, 300
    )
    speed = rng.uniform(2, 8, 300)
    metric = quality[:, None] * (1 - np.exp(-steps[None, :] / speed[:, None]))
    step_s = np.exp(rng.normal(3, 0.1, 300) + unit[:, 0])[:, None] * np.ones((1, 27))
    space = Space({name: Float(1e-4, 1, log=True) for name in names})
    configs: list[Config] = [dict(zip(names, (10 ** (4 * row - 4)).tolist(), strict=True)) for row in unit]
    return RecordedTable(f"made {seed}", space, metric, step_s, configs)


def with_priors(table: RecordedTable, confidence: Confidence, *, right: bool) -> RecordedTable:
    """Return the table with priors at its best row, or at the far end of each scale."""
    best = int(np.argmax(table.metric.max(axis=1)))
    parameters: dict[str, Parameter] = {}
    for (name, parameter), place in zip(table.space.parameters.items(), table.unit[best], strict=True):
        assert isinstance(parameter, Float | Int)
        far = parameter.low if place > 0.5 else parameter.high
        center = table.configs[best][name] if right else far
        parameters[name] = dataclasses.replace(parameter, prior=Prior(center, confidence))
    return dataclasses.replace(table, space=Space(parameters))


def curve_of(table: RecordedTable, budget: float, algorithm: Algorithm) -> Curve:
    run = table_run(table, budget_trainings=budget, algorithm=algorithm)
    best_curve = BestCurve(run)
    run.run()
    return [(trainings_of(table, spent), value) for spent, value in best_curve.points]


def curves_of(table: RecordedTable, budget: float, algorithms: Sequence[Algorithm]) -> list[Curve]:
    return [curve_of(table, budget, algorithm) for algorithm in algorithms]


def regret_at(runs: Mapping[str, Runs], money: float) -> float:
    """Return the mean regret over all tables and seeds after this money, in mean trainings."""
    regrets = []
    for table, curves in runs.values():
        for curve in curves:
            best = max((value for spent, value in curve if spent <= money), default=-math.inf)
            regrets.append(min(WORST, table.normalised_regret(best)))
    return float(np.mean(regrets))


def cost_of(runs: Mapping[str, Runs], target: float, budget: float) -> float:
    """Return the money after which the mean regret is at most `target`, relative to the budget. LONGER if it is not reached."""
    for money in np.arange(0.02, LONGER + 0.01, 0.02) * budget:
        if regret_at(runs, float(money)) <= target:
            return float(money) / budget
    return LONGER


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget", type=float, default=20.0, help="mean trainings")
    parser.add_argument("--made", type=int, default=4, help="made tables, in addition to the recorded one")
    parser.add_argument("--confidence", default="medium", choices=["low", "medium", "high"])
    parser.add_argument("--scheduler", default="auto", choices=["auto", "asha", "none"])
    parser.add_argument("--sampler", default="auto", choices=["auto", "random"])
    args = parser.parse_args()
    algorithms = [Algorithm(args.scheduler, args.sampler, seed) for seed in range(args.seeds)]
    tables = [load_table(DATA), *(made_table(seed) for seed in range(args.made))]

    def searched(money: float, *, right: bool | None) -> dict[str, Runs]:
        runs = {}
        for table in tables:
            given = table if right is None else with_priors(table, args.confidence, right=right)
            runs[table.name] = table, curves_of(given, money, algorithms)
        return runs

    plain = searched(args.budget, right=None)
    target = regret_at(plain, args.budget)
    print(f"without priors: regret {target:.3f} after {args.budget:g} trainings")
    for right in (True, False):
        runs = searched(LONGER * args.budget, right=right)
        each = ", ".join(f"{name} {regret_at({name: run}, args.budget):.3f}" for name, run in runs.items())
        known = "right" if right else "wrong"
        shown = f"regret {regret_at(runs, args.budget):.3f}, cost {cost_of(runs, target, args.budget):.2f}"
        print(f"{known} priors: {shown}; {each}", flush=True)


if __name__ == "__main__":
    main()
