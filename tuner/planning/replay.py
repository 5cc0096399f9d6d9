"""What other ways to search would have spent for the same result, replayed on a job's own learning curves: estimates.

The job's trials are drawn in random orders, one after the other, until one of them reaches the goal; each order is one story
of what the peer would have spent. That takes the trials to be exchangeable, which those of a sampler that learns are not: later
ones are better than random draws, so the peer would need more than is estimated.
"""

import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tuner.domain.fidelity import MAX_STEPS, Fidelity
from tuner.domain.money import Money
from tuner.planning.paths import Path, Paths, Seen, last_step_of

Method = Literal["random_search", "stopping_asha"]
Status = Literal["estimated", "unreached", "not_enough_data"]
METHODS: tuple[Method, ...] = ("random_search", "stopping_asha")
ORDERS = 200
MIN_TRIALS = 5
REDUCTION_FACTOR = 3
UNREACHED = math.inf


@dataclass(frozen=True, slots=True)
class Estimate:
    """`usd` is the median over the orders, `low` and `high` their 5th and 95th percentile; None: the goal was not reached in so
    many of them. `is_biased_low`: what is assumed favours the peer, so that on average over jobs it would need more; one
    estimate may still be too high by chance. `note` says it in words."""

    method: Method
    status: Status
    note: str
    usd: Money | None = None
    low: Money | None = None
    high: Money | None = None
    is_biased_low: bool = False


@dataclass(frozen=True)
class Evidence:
    """A job's trials that reported a metric. `learned`: its sampler learned from results. `goal` is a score that one reached."""

    trials: Sequence[Seen]
    goal: float
    fidelity: Fidelity
    learned: bool
    seed: int = 0


def estimates(evidence: Evidence | None) -> list[Estimate]:
    """One for each method; None: nothing was reported yet."""
    why_not = _missing(evidence)
    if evidence is None or why_not is not None:
        return [Estimate(method, "not_enough_data", why_not or "") for method in METHODS]
    return [_estimate(method, evidence) for method in METHODS]


def rungs_of(fidelity: Fidelity) -> tuple[int, ...]:
    """The steps at which a peer that stops trials looks at them."""
    return Fidelity(
        min=fidelity.min, max=fidelity.max or MAX_STEPS, reduction_factor=REDUCTION_FACTOR
    ).rungs()


def random_search(order: Iterable[Path]) -> float:
    """Micro-dollars until the goal, every trial before trained in full."""
    spent = 0
    for path in order:
        if path.goal is not None:
            return spent + path.goal.cost
        spent += path.cost
    return UNREACHED


def stopping_asha(order: Iterable[Path]) -> float:
    """Micro-dollars until the goal where trials are stopped at rungs, as Ray Tune's AsyncHyperBandScheduler decides."""
    rungs: dict[int, list[float]] = {}
    spent = 0
    for path in order:
        stop = next((p for i, p in enumerate(path.rungs) if _falls(rungs.setdefault(i, []), p.score)), None)
        if path.goal is not None and (stop is None or path.goal.step <= stop.step):
            return spent + path.goal.cost
        spent += path.cost if stop is None else stop.cost
    return UNREACHED


def _falls(recorded: list[float], score: float) -> bool:
    """Whether the score is below the cut of those that came to the rung before; it is recorded in either case."""
    cut = quantile_between(recorded, 1 - 1 / REDUCTION_FACTOR) if recorded else -math.inf
    insort(recorded, score)
    return score < cut


def quantile_between(ordered: Sequence[float], share: float) -> float:
    """As numpy's percentile, to the last bit, since scores are compared with it: linear between neighbours, from the nearer one."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high, part = ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


PEERS: dict[Method, Callable[[Iterable[Path]], float]] = {
    "random_search": random_search,
    "stopping_asha": stopping_asha,
}


def spending(method: Method, paths: Sequence[Path], *, seed: int, orders: int = ORDERS) -> list[float]:
    """What the method spends until the goal in each of so many random orders, ascending."""
    stories = (drawn(paths, Random(f"{method}/{seed}/{number}")) for number in range(orders))
    return sorted(map(PEERS[method], stories))


def drawn(paths: Sequence[Path], rng: Random) -> Iterator[Path]:
    """Each once, in random order, drawn when it is asked for: most stories end before the last."""
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
    low, usd, high = (_money(_rank(spent, share)) for share in (0.05, 0.5, 0.95))
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
    """What is missing for an estimate, in words."""
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
    """The nearest-rank quantile: one of the values, so that those without an end stay whole."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _money(micro_usd: float) -> Money | None:
    return None if micro_usd == UNREACHED else Money(int(micro_usd))
