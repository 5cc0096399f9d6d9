"""Estimate what a job would have cost with grid search, random search or ASHA, by replaying its learning curves.

The job's trials are drawn in random order until one of them reaches the goal. Each order is one sample of what the other
method would have spent. This assumes that the trials are exchangeable. Trials of a sampler that learns are not: later
trials are better than random ones, so the other method would spend more than the estimate.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, SamplerName
from tuner.domain.money import Money
from tuner.domain.objective import MAX_STEPS, Fidelity
from tuner.domain.space import Space
from tuner.planning.alternatives import FEW_RUNS, Candidate
from tuner.planning.paths import Path, Paths, Seen, last_step_of
from tuner.planning.plan import Comparison, ComparisonName
from tuner.planning.simulations import Outcome, Setting, Simulate, SpotLife, mean
from tuner.tuning.samplers.simple import GRID_POINTS

Method = Literal["random_search", "stopping_asha"]
Status = Literal["estimated", "unreached", "not_enough_data"]
METHODS: tuple[Method, ...] = ("random_search", "stopping_asha")
ORDERS = 200  # random orders per estimate
MIN_TRIALS = 5  # with fewer trials nothing is estimated
REDUCTION_FACTOR = 3  # of ASHA
UNREACHED = math.inf  # the spend of an order in which no trial reaches the goal


@dataclass(frozen=True, slots=True)
class Estimate:
    """What another search method would have spent. A quantile is None if too few of the orders reached the goal."""

    method: Method
    status: Status
    note: str  #: The method and its assumptions in words.
    usd: Money | None = None  #: The median over the orders.
    low: Money | None = None  #: The 5th percentile.
    high: Money | None = None  #: The 95th percentile.
    #: Whether the assumptions favour the other method, so that on average over many jobs it would spend more than the estimate. A single
    #: estimate may still be too high by chance.
    is_biased_low: bool = False


@dataclass(frozen=True)
class Evidence:
    """The trials of a job to replay."""

    trials: Sequence[Seen]  #: The trials that reported the objective's metric.
    goal: float  #: The score to reach. At least one of the trials reached it.
    fidelity: Fidelity
    learned: bool  #: Whether the job's sampler learned from results.
    seed: int = 0


def estimates(evidence: Evidence | None) -> list[Estimate]:
    """Return one estimate for each method. `evidence` is None if no trial has reported the metric yet."""
    why_not = _missing(evidence)
    if evidence is None or why_not is not None:
        return [Estimate(method, "not_enough_data", why_not or "") for method in METHODS]
    return [_estimate(method, evidence) for method in METHODS]


def rungs_of(fidelity: Fidelity) -> tuple[int, ...]:
    """Return the steps at which stopping ASHA compares trials."""
    return Fidelity(
        min=fidelity.min, max=fidelity.max or MAX_STEPS, reduction_factor=REDUCTION_FACTOR
    ).rungs()


def random_search(order: Iterable[Path]) -> float:
    """Return the micro-dollars that random search spends until a trial reaches the goal. All trials before that one are trained in full."""
    spent = 0
    for path in order:
        if path.goal is not None:
            return spent + path.goal.cost
        spent += path.cost
    return UNREACHED


def stopping_asha(order: Iterable[Path]) -> float:
    """Return the micro-dollars spent until a trial reaches the goal, if Ray Tune's AsyncHyperBandScheduler stops trials at the rungs."""
    rungs: dict[int, list[float]] = {}
    spent = 0
    for path in order:
        stop = next((p for i, p in enumerate(path.rungs) if _falls(rungs.setdefault(i, []), p.score)), None)
        if path.goal is not None and (stop is None or path.goal.step <= stop.step):
            return spent + path.goal.cost
        spent += path.cost if stop is None else stop.cost
    return UNREACHED


def _falls(recorded: list[float], score: float) -> bool:
    """Record a score at a rung. Return True if the trial is stopped, because its score is below the top third of the earlier ones."""
    cut = quantile_between(recorded, 1 - 1 / REDUCTION_FACTOR) if recorded else -math.inf
    insort(recorded, score)
    return score < cut


def quantile_between(ordered: Sequence[float], share: float) -> float:
    """Return the linearly interpolated quantile.

    Interpolation starts from the nearer neighbour, so that the result equals numpy's percentile bit for bit. Scores are compared with the
    quantile, so a rounding difference could change which trials are stopped.
    """
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high, part = ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


PEERS: dict[Method, Callable[[Iterable[Path]], float]] = {
    "random_search": random_search,
    "stopping_asha": stopping_asha,
}


def spending(method: Method, paths: Sequence[Path], *, seed: int, orders: int = ORDERS) -> list[float]:
    """Return the micro-dollars that a method spends until the goal in each of `orders` random orders, ascending."""
    stories = (drawn(paths, Random(f"{method}/{seed}/{number}")) for number in range(orders))
    return sorted(map(PEERS[method], stories))


def drawn(paths: Sequence[Path], rng: Random) -> Iterator[Path]:
    """Yield each path once, in random order. They are drawn lazily, because most replays end before the last path."""
    left = list(paths)
    while left:
        chosen = int(rng.random() * len(left))
        left[chosen], left[-1] = left[-1], left[chosen]
        yield left.pop()


def _estimate(method: Method, evidence: Evidence) -> Estimate:
    last = last_step_of(evidence.trials, evidence.fidelity.max)
    assert last is not None
    rungs = [step for step in rungs_of(evidence.fidelity) if step < last]
    paths = Paths(evidence.trials, rungs=rungs, last_step=last, goal=evidence.goal)
    spent = spending(method, paths.all, seed=evidence.seed)
    low, usd, high = (_money_or_none(_rank(spent, share)) for share in (0.05, 0.5, 0.95))
    favoured = evidence.learned or (method == "random_search" and paths.cut > 0)
    missed = spent.count(UNREACHED) / len(spent)
    words = [
        f"Replayed on this job's {len(paths.all)} trials in {len(spent)} random orders: the median, and 5 to 95 % of the orders.",
        _method_words(method, rungs, last),
        _cut_words(method, paths.cut),
        f"In {missed:.0%} of the orders it stops every trial that would have come so far." if missed else "",
        "Setup and training are counted, checkpoints and waiting are not.",
        _learned_words(evidence.learned),
    ]
    status: Status = "unreached" if usd is None else "estimated"
    return Estimate(method, status, " ".join(filter(None, words)), usd, low, high, favoured)


def _missing(evidence: Evidence | None) -> str | None:
    """Return a text that says what is missing for an estimate, or None if nothing is."""
    if evidence is None:
        return "no trial has reported the metric yet"
    if len(evidence.trials) < MIN_TRIALS:
        return f"{len(evidence.trials)} trials have reported the metric; it takes {MIN_TRIALS} to replay a search"
    if last_step_of(evidence.trials, evidence.fidelity.max) is None:
        return (
            "no trial was trained to the last step, so nothing is known of what the others would have come to"
        )
    return None


def _method_words(method: Method, rungs: Sequence[int], last: int) -> str:
    if method == "random_search":
        return f"Every trial is trained to step {last}."
    steps = ", ".join(map(str, rungs))
    if not steps:
        return "There is no step at which it would stop a trial."
    return (
        f"A trial stops at step {steps} where it is not among the best third of those that came there before."
    )


def _cut_words(method: Method, cut: int) -> str:
    if not cut:
        return ""
    favours = ", which favours random search" if method == "random_search" else ""
    return (
        f"{cut} of them were cut short: from there on a step is taken to cost what theirs did, and the gain to be the largest "
        f"of any trial of this job{favours}."
    )


def _learned_words(learned: bool) -> str:
    if not learned:
        return ""
    return "Biased: this job's sampler learns, so its proposals are better than random ones and the true figure should be higher."


def _rank(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile. It is always one of the values, because UNREACHED, which is infinite, cannot be interpolated."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _money_or_none(micro_usd: float) -> Money | None:
    return None if micro_usd == UNREACHED else Money(int(micro_usd))


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
