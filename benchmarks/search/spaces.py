"""Compare searches of spaces with many categorical parameters, and of spaces with conditions.

    python -m benchmarks.search.spaces [--problems 4] [--seeds 4] [--budgets 5 20 50] [--workers 4]
    python -m benchmarks.search.spaces --surrogate DIR/rbv2_xgboost [--problems 8] …

No recorded table has such a space, so the problems are made (`problem`), or a surrogate answers for XGBoost (`surrogate`). Each method is a
pair of a scheduler and a sampler of the product, in the same simulated jobs with a hard budget. `tpe` is Optuna's TPE. A budget of 1 pays
for a training of mean length. Regret 0 is the best configuration, and 1 a median one. The intervals (95 %) are by bootstrap over the runs of
all problems.
"""

import argparse
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Literal

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.search.statistics import interval, resampled
from benchmarks.search.surrogate import XGBoost
from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, JobSpec, SamplerName, SchedulerName
from tuner.domain.money import Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.space import Categorical, Config, Float, Parameter, Space, Value
from tuner.domain.time import NS
from tuner.driver.ports import LoopConfig
from tuner.simulator.recorded import BestCurve
from tuner.simulator.worker import Overheads
from tuner.simulator.world import SimulatedRun

Kind = Literal["categorical", "conditional", "surrogate"]
MADE: tuple[Kind, ...] = ("categorical", "conditional")
METHODS: dict[str, tuple[SchedulerName, SamplerName]] = {
    "ours": ("auto", "auto"),
    "promotion ASHA, auto": ("asha", "auto"),
    "promotion ASHA, TPE": ("asha", "tpe"),
    "promotion ASHA, random": ("asha", "random"),
    "TPE, full fidelity": ("none", "tpe"),
    "random search, full fidelity": ("none", "random"),
}
STEPS, STEP_S = 27, 20.0
DRAWS = 1000  # configurations from which the mean time and the median quality are estimated
FASTEST, SLOWEST = 2.0, 8.0  # steps after which a curve has risen to 63 %


@dataclass(frozen=True)
class Problem:
    """A search space, and the quality that each configuration has after infinitely many steps. It is 1 at most.

    It implements the simulator's `Training` protocol. The curve of a configuration rises to its quality, fast or slowly, so that the ranks
    of configurations cross at early steps.
    """

    name: str
    space: Space
    quality: Callable[[Mapping[str, Value]], float]

    def step_ns(self, config: Config, step: int) -> int:
        return round(STEP_S * (0.5 + _draw(config, "time")) * NS)

    def value(self, config: Config, step: int) -> float:
        speed = FASTEST + (SLOWEST - FASTEST) * _draw(config, "speed")
        return self.quality(config) * (1 - math.exp(-step / speed))


def _draw(config: Mapping[str, Value], what: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the configuration."""
    return zlib.crc32(json.dumps([what, config], sort_keys=True).encode()) / 2**32


@cache
def problem(kind: Kind, seed: int) -> Problem:
    """Return the made problem of a kind and a number."""
    return {"categorical": _categorical, "conditional": _conditional}[kind](seed)


def _categorical(seed: int) -> Problem:
    """Return a problem with six categorical parameters of two to six choices, and two numbers whose best value depends on a choice.

    Each choice has an effect, and each pair of choices of the first two parameters has another one.
    """
    rng = np.random.default_rng(seed)
    choices = {f"c{i}": tuple(f"v{j}" for j in range(rng.integers(2, 7))) for i in range(6)}
    effects = {
        name: dict(zip(values, rng.exponential(1.0, len(values)), strict=True))
        for name, values in choices.items()
    }
    pairs = {pair: float(rng.exponential(0.7)) for pair in itertools.product(choices["c0"], choices["c1"])}
    centres = {
        (name, value): float(rng.uniform(0.1, 0.9)) for name in ("x0", "x1") for value in choices["c2"]
    }
    lowest = {name: min(of.values()) for name, of in effects.items()}

    def badness(config: Mapping[str, Value]) -> float:
        """Return the sum of all effects. 0 would need every choice to be the best, which a pair of choices may prevent."""
        chosen = {name: str(config[name]) for name in choices}
        total = float(sum(effects[name][value] - lowest[name] for name, value in chosen.items()))
        total += pairs[chosen["c0"], chosen["c1"]]
        return total + sum(4 * (float(str(config[x])) - centres[x, chosen["c2"]]) ** 2 for x in ("x0", "x1"))

    combined = (dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))
    least = min(
        badness({**config, "x0": centres["x0", config["c2"]], "x1": centres["x1", config["c2"]]})
        for config in combined
    )
    parameters: dict[str, Parameter] = {name: Categorical(values) for name, values in choices.items()}
    space = Space({**parameters, "x0": Float(0, 1), "x1": Float(0, 1)})
    return Problem(f"categorical {seed}", space, lambda config: math.exp((least - badness(config)) / 2))


def _conditional(seed: int) -> Problem:
    """Return a problem with four branches, of which each has three numbers of its own and a switch that activates a fourth one."""
    rng = np.random.default_rng(seed)
    branches = ("a", "b", "c", "d")
    parameters: dict[str, Parameter] = {"branch": Categorical(branches), "y0": Float(0, 1), "y1": Float(0, 1)}
    for branch in branches:
        here = {"branch": (branch,)}
        parameters |= {f"{branch}{i}": Float(0, 1, when=here) for i in range(3)}
        parameters[f"{branch}_switch"] = Categorical(("off", "on"), when=here)
        parameters[f"{branch}_amount"] = Float(0, 1, when={f"{branch}_switch": ("on",)})
    base = dict(zip(branches, rng.exponential(0.5, 4), strict=True))
    gain = {branch: float(rng.uniform(-0.5, 0.5)) for branch in branches}  # of the switch
    numbers = [name for name, parameter in parameters.items() if isinstance(parameter, Float)]
    centres = {name: float(rng.uniform(0.1, 0.9)) for name in numbers}
    widths = {name: float(rng.uniform(0.2, 0.6)) for name in numbers}

    def badness(config: Mapping[str, Value]) -> float:
        branch = str(config["branch"])
        total = float(base[branch]) - (gain[branch] if config[f"{branch}_switch"] == "on" else 0.0)
        active = [name for name in numbers if name in config]
        return total + sum(((float(str(config[x])) - centres[x]) / widths[x]) ** 2 for x in active) / len(
            active
        )

    least = min(base[branch] - max(0.0, gain[branch]) for branch in branches)
    return Problem(f"conditional {seed}", Space(parameters), lambda config: math.exp(least - badness(config)))


@cache
def _scale(kind: Kind, seed: int) -> tuple[float, float, float]:
    """Return the mean seconds of a training, the value of the best configuration if its curve is fast, and that of a median one."""
    made, rng = problem(kind, seed), Random(seed)
    drawn = [made.space.sample(rng) for _ in range(DRAWS)]
    seconds = fmean(made.step_ns(config, 1) for config in drawn) / NS * STEPS
    best = 1 - math.exp(-STEPS / FASTEST)
    return seconds, best, median(made.value(config, STEPS) for config in drawn)


@dataclass(frozen=True)
class Task:
    """One simulated search."""

    kind: Kind
    problem: int
    method: str
    budget: float
    workers: int
    seed: int
    folder: Path | None = None  #: The surrogate of the kind `surrogate`.


@cache
def _xgboost(folder: Path, number: int) -> XGBoost:
    return XGBoost(folder, number, STEPS)


def regret(task: Task) -> float:
    """Run a search, and return its regret at the end of the budget."""
    made: Problem | XGBoost
    if task.folder is None:
        made, step_s = problem(task.kind, task.problem), STEP_S
        full_s, best, middle = _scale(task.kind, task.problem)
    else:
        made = _xgboost(task.folder, task.problem)
        full_s, best, middle = made.scale
        step_s = full_s / STEPS
    price = Price(round(3600 * 1_000_000 / full_s))  # a training costs about a dollar
    scheduler, sampler = METHODS[task.method]
    spec = JobSpec(
        "made",
        "made:problem",
        Objective("metric"),
        made.space,
        Budget(usd=Money(round(task.budget * 1_000_000))),
        fidelity=Fidelity("step", 1, STEPS),
        algorithm=Algorithm(scheduler, sampler, task.seed),
    )
    startup_ns = round(step_s * NS)
    run = SimulatedRun(
        spec,
        LoopConfig("job_made", Rate(price), task.workers, 8 * startup_ns),
        made,
        overheads=Overheads(setup_ns=startup_ns, resumed_setup_ns=0, restore_ns=startup_ns, save_ns=0),
        seed=task.seed,
        heartbeat_ns=4 * startup_ns,
    )
    curve = BestCurve(run)
    run.run()
    posted = run.journal.tables.account.posted.usd
    if posted > spec.budget.usd:  # type: ignore[operator]
        raise AssertionError(f"{task} spent {posted}")
    found = curve.best if math.isfinite(curve.best) else 0.0
    return (best - found) / (best - middle)


def rows(results: Mapping[Task, float], budgets: list[float]) -> Iterator[str]:
    """Yield the report as Markdown."""
    for kind in dict.fromkeys(task.kind for task in results):
        yield f"\n{kind}\n"
        yield "| method | " + " | ".join(f"@{budget:g}" for budget in budgets) + " |"
        yield "| --- |" + " --- |" * len(budgets)
        for method in dict.fromkeys(task.method for task in results):
            cells = []
            for budget in budgets:
                regrets = np.array(
                    [
                        value
                        for task, value in results.items()
                        if (task.kind, task.method, task.budget) == (kind, method, budget)
                    ]
                )
                estimate = interval(float(regrets.mean()), resampled(regrets, 0))
                cells.append(f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]")
            yield f"| {method} | {' | '.join(cells)} |"


def _one_thread() -> None:
    threadpool_limits(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=4, help="problems of each kind")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--budgets", type=float, nargs="+", default=[5, 20, 50], help="in mean trainings")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--surrogate", type=Path, help="folder of YAHPO Gym's rbv2_xgboost, instead of made problems"
    )
    args = parser.parse_args()
    kinds: Sequence[Kind] = ("surrogate",) if args.surrogate else MADE
    tasks = [
        Task(kind, number, method, budget, args.workers, seed, args.surrogate)
        for kind in kinds
        for number in range(args.problems)
        for method in METHODS
        for budget in args.budgets
        for seed in range(args.seeds)
    ]
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), initializer=_one_thread) as pool:
        results = dict(zip(tasks, pool.map(regret, tasks), strict=True))
    for line in rows(results, args.budgets):
        print(line)


if __name__ == "__main__":
    main()
