"""`python -m benchmarks.worth TABLE.npz…`: compare the gain that the next dollar is expected to bring with the gain that it really brings.

Simulates jobs on recorded tables, where a dollar is the cost of one mean training. After each dollar, the forecast of
`tuner.tuning.stopping` is compared with what the job gained with its next dollar. Gains are in hundredths of the distance from the median
row of the table to its best one, so that tables can be averaged. For some values of a point in dollars, the benchmark also prints what a
job spends if it stops by the forecast, and how much worse this is than stopping at the best moment.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tuner.domain.job import Algorithm
from tuner.simulator.journal import Committed, Tables
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import table_run
from tuner.tuning.stopping import points_per_usd

USD_PER_POINT = (0.3, 1.0, 3.0)
SPANS = ((0, 6), (6, 12), (12, 24))  # in dollars


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of a run, in hundredths of the distance from the median to the best."""

    usd: float  #: What the job had spent.
    best: float  #: Its best result then.
    expected: float  #: Gain of the next dollar.
    realised: float


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run that did not stop by itself."""

    table: str
    forecasts: list[Forecast]
    bests: list[tuple[float, float]]  #: Pairs of (dollars spent, best result).

    def value(self, usd: float, usd_per_point: float) -> float:
        """Return what stopping after this spend is worth, in dollars."""
        return usd_per_point * self.best_at(usd) - usd

    def best_at(self, usd: float) -> float:
        return max(best for spent, best in self.bests if spent <= usd)


def simulated(path: Path, budget: float, seed: int) -> Run:
    table = load_table(path)
    run = table_run(table, budget_trainings=budget, algorithm=Algorithm(seed=seed))
    unit = (table.best - table.median) / 100
    bests, expected = [(0.0, float("-inf"))], dict[int, tuple[float, float, float]]()

    def recorded(tables: Tables, committed: Committed) -> None:
        state = run.loop.state
        usd, best = state.spent.usd, state.leader_score / unit
        bests.append((usd, best))
        points = points_per_usd(
            [trial.value for trial in state.trials if trial.value is not None], state.spent, "max"
        )
        if points is not None and usd + 1 <= budget:
            expected.setdefault(int(usd), (usd, best, points / 100 / unit))

    run.journal.watchers.append(recorded)
    run.run(turns_max=10**9)
    made = Run(path.stem, [], bests)
    made.forecasts.extend(Forecast(*of, made.best_at(of[0] + 1) - of[1]) for of in expected.values())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=24)
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    runs = [simulated(path, args.budget, seed) for path in args.tables for seed in seeds]
    forecasts = [forecast for run in runs for forecast in run.forecasts]
    print("| of | forecasts | expected | realised |\n| --- | --- | --- | --- |")
    for name in dict.fromkeys(run.table for run in runs):
        print(row(name, [forecast for run in runs if run.table == name for forecast in run.forecasts]))
    for low, high in SPANS:
        print(row(f"after ${low} to ${high}", [it for it in forecasts if low <= it.usd < high]))
    forecasts.sort(key=lambda forecast: forecast.expected)
    for part in range(5):
        ends = part * len(forecasts) // 5, (part + 1) * len(forecasts) // 5
        print(row(f"fifth {part + 1} by expected gain", forecasts[slice(*ends)]))
    print(row("all", forecasts))
    print(relative(runs))
    for rate in USD_PER_POINT:
        print(stopping(runs, args.budget, rate))


def row(name: str, forecasts: Sequence[Forecast]) -> str:
    expected, realised = (
        statistics.fmean(getattr(it, of) for it in forecasts) for of in ("expected", "realised")
    )
    return f"| {name} | {len(forecasts)} | {expected:.2f} | {realised:.2f} |"


def relative(runs: Sequence[Run]) -> str:
    """Return the expected gain relative to the realised one, with its 95 % interval by bootstrap over the runs."""
    sums = [
        (sum(it.expected for it in run.forecasts), sum(it.realised for it in run.forecasts)) for run in runs
    ]

    def ratio(chosen: Sequence[tuple[float, float]]) -> float:
        return sum(expected for expected, _ in chosen) / sum(realised for _, realised in chosen)

    rng = Random(0)
    resampled = sorted(ratio(rng.choices(sums, k=len(sums))) for _ in range(2000))
    return f"expected / realised: {ratio(sums):.2f} [{resampled[50]:.2f}, {resampled[1949]:.2f}]"


def stopping(runs: Sequence[Run], budget: float, usd_per_point: float) -> str:
    """Describe jobs that stop by the forecast, relative to the best moment in hindsight, and to spending the whole budget."""
    spends, lost, lost_whole, points = [], [], [], []
    for run in runs:
        by_rule = (it.usd for it in run.forecasts if it.expected * usd_per_point < 1)
        usd = next(by_rule, budget)
        moments = [it.usd for it in run.forecasts] + [budget]
        hindsight = max(run.value(moment, usd_per_point) for moment in moments)
        spends.append(usd)
        lost.append(hindsight - run.value(usd, usd_per_point))
        lost_whole.append(hindsight - run.value(budget, usd_per_point))
        points.append(run.best_at(budget) - run.best_at(usd))
    mean = statistics.fmean
    return (
        f"${usd_per_point:g} a point: {mean(spends):.1f} of {budget:g} dollars spent, {mean(points):.2f} points less than with all of them; "
        f"${mean(lost):.2f} worse than the best moment in hindsight, and ${mean(lost_whole):.2f} if the whole budget is spent"
    )


if __name__ == "__main__":
    main()
