"""Estimate what a job would have cost with random search or ASHA, by replaying its learning curves.

The job's trials are drawn in random order until one of them reaches the goal, which is the best score that the job found. Each order is
one sample of what the other method would have spent. This assumes that the trials are exchangeable. Trials of a sampler that learns are not: later
trials are better than random ones, so the other method would spend more than the estimate.

Trials that were cut short are extended in favour of the other method. Each further step costs as much as the mean of the
steps before it. The gain in score is the largest gain of any trial of the job over the same steps. The estimated spend of
the other method is therefore more likely too low than too high.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from random import Random
from typing import Literal

from tuner.domain.money import Money
from tuner.domain.objective import MAX_STEPS, Fidelity

End = Literal["completed", "failed", "cut"]
Method = Literal["random_search", "stopping_asha"]
Status = Literal["estimated", "unreached", "not_enough_data"]
ORDERS = 200  # random orders per estimate
MIN_TRIALS = 5  # with fewer trials nothing is estimated
REDUCTION_FACTOR = 3  # ASHA continues the best third of the trials at each rung
UNREACHED = math.inf  # the spend of an order in which no trial reaches the goal


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """A trial's score and cost at a step."""

    step: int
    score: float  #: Higher is better.
    cost: int  #: Micro-dollars since the start of the trial.


@dataclass(frozen=True, slots=True)
class ReplayTrial:
    """The part of a trial that was trained."""

    curve: tuple[ReplayPoint, ...]  #: At least one report, ascending by step.
    start: int = 0  #: Micro-dollars spent before the first step, such as for setup.
    end: End = "cut"  #: How the trial ended. `cut` means that it could have continued.

    @property
    def last(self) -> ReplayPoint:
        return self.curve[-1]


@dataclass(frozen=True, slots=True)
class Path:
    """A trial as another search method would train it. A trial that was cut short is extended to the last step."""

    rungs: tuple[ReplayPoint, ...]  #: The score and cost at each rung that the trial reaches.
    cost: int  #: Micro-dollars of the whole training.
    goal: ReplayPoint | None  #: The first point whose score reaches the goal. None if no point does.


def last_step_of(trials: Sequence[ReplayTrial], max_step: int | None) -> int | None:
    """Return the last step of a full training.

    It is `max_step` if a trial reached that step. Otherwise it is the last step of the longest trial that ended by itself. Return None if
    no trial reached `max_step` and no trial ended by itself.
    """
    if max_step is not None and any(trial.last.step >= max_step for trial in trials):
        return max_step
    return max((trial.last.step for trial in trials if trial.end == "completed"), default=None)


class Paths:
    """The trials of a job as another search method would train them (paths), at most to `last_step`.

    `all` has one path per trial, and `cut` is the number of trials that were extended. `last_step` must be above all `rungs`. `goal` is
    the score to reach. With proxies, `fidelity` has them, and a trial can reach the goal only in their stage `stage`, because scores of
    different stages are not comparable.
    """

    def __init__(
        self,
        trials: Sequence[ReplayTrial],
        *,
        rungs: Sequence[int],
        last_step: int,
        goal: float,
        fidelity: Fidelity = Fidelity(),
        stage: int = 0,
    ) -> None:
        self._rungs, self._last, self._goal = rungs, last_step, goal
        self._fidelity, self._stage = fidelity, stage
        self._bests = [_Best(trial, fidelity) for trial in trials]
        self._gains: dict[tuple[int, int], float] = {}
        self.cut = sum(1 for trial in trials if not self._is_whole(trial))
        self.all = [self._path(trial, best) for trial, best in zip(trials, self._bests, strict=True)]

    def _is_whole(self, trial: ReplayTrial) -> bool:
        return trial.end != "cut" or trial.last.step >= self._last

    def _path(self, trial: ReplayTrial, best: "_Best") -> Path:
        # A trial reaches a rung with its first report at or after the step of the rung.
        seen = [trial.curve[bisect_left(best.steps, rung)] for rung in self._rungs if rung <= trial.last.step]
        goal = self._goal_in(trial.curve)
        if self._is_whole(trial):
            return Path(tuple(seen), trial.last.cost, goal)
        last, beyond = trial.last, list[ReplayPoint]()
        for step in (*(rung for rung in self._rungs if rung > last.step), self._last):
            cost = trial.start + (last.cost - trial.start) * step // last.step
            beyond.append(ReplayPoint(step, best.scores[-1] + self._gain(last.step, step), cost))
        return Path((*seen, *beyond[:-1]), beyond[-1].cost, goal or self._goal_in(beyond))

    def _goal_in(self, curve: Sequence[ReplayPoint]) -> ReplayPoint | None:
        """Return the first point that reaches the goal, or None if no point does."""
        reached = (point for point in curve if point.score >= self._goal)
        return next((point for point in reached if self._fidelity.stage(point.step) == self._stage), None)

    def _gain(self, start: int, end: int) -> float:
        """Return the largest gain of any trial between the steps `start` and `end`: the increase of its best score so far.

        Only trials whose reports cover both steps count. Return 0 if none does.
        """
        if (start, end) not in self._gains:
            seen = (best for best in self._bests if best.steps[0] <= start and best.steps[-1] >= end)
            self._gains[start, end] = max((best.at(end) - best.at(start) for best in seen), default=0.0)
        return self._gains[start, end]


class _Best:
    """The best score so far of a trial, at each of its reports. Only scores of the same stage of the proxies are compared."""

    def __init__(self, trial: ReplayTrial, fidelity: Fidelity) -> None:
        self.steps = [point.step for point in trial.curve]
        stages = groupby(trial.curve, key=lambda point: fidelity.stage(point.step))
        self.scores = [
            score for _, points in stages for score in accumulate((point.score for point in points), max)
        ]

    def at(self, step: int) -> float:
        return self.scores[bisect_right(self.steps, step) - 1]


@dataclass(frozen=True, slots=True)
class SearchEstimate:
    """What another search method would have spent until it reached the goal.

    `usd`, `low` and `high` are quantiles over the random orders. A quantile is None if the goal was reached in too few of the orders.
    """

    method: Method
    status: Status
    note: str  #: The method and its assumptions in words.
    usd: Money | None = None  #: The median over the orders.
    low: Money | None = None  #: The 5th percentile.
    high: Money | None = None  #: The 95th percentile.
    #: Whether the assumptions favour the other method. If so, that method would spend more than estimated on average over many jobs. A
    #: single estimate may still be too high by chance.
    is_biased_low: bool = False


@dataclass(frozen=True)
class ReplayEvidence:
    """A job to replay: its trials, the score to reach, and its steps."""

    trials: Sequence[ReplayTrial]  #: The trials that reported the objective's metric.
    goal: float  #: The score to reach. At least one of the trials reached it.
    fidelity: Fidelity
    learned: bool  #: Whether the job's sampler learned from results.
    seed: int = 0
    stage: int = 0  #: The stage of the proxies in which the goal was reached. 0 without proxies.


def estimates(evidence: ReplayEvidence | None) -> list[SearchEstimate]:
    """Return one estimate for each method in METHODS. Pass None as `evidence` if no trial has reported the metric yet."""
    why_not = _missing(evidence)
    if evidence is None or why_not is not None:
        return [SearchEstimate(method, "not_enough_data", why_not or "") for method in METHODS]
    return [_estimate(method, evidence) for method in METHODS]


def stopping_asha_rungs(fidelity: Fidelity) -> tuple[int, ...]:
    """Return the steps at which stopping ASHA compares trials."""
    return Fidelity(
        min=fidelity.min, max=fidelity.max or MAX_STEPS, reduction_factor=REDUCTION_FACTOR
    ).rungs()


def random_search(order: Iterable[Path]) -> float:
    """Return the micro-dollars that random search spends until a trial reaches the goal.

    The trials are run in the given order. Each trial before the one that reaches the goal is trained in full. Return UNREACHED if no
    trial reaches the goal.
    """
    spent = 0
    for path in order:
        if path.goal is not None:
            return spent + path.goal.cost
        spent += path.cost
    return UNREACHED


def stopping_asha(order: Iterable[Path]) -> float:
    """Return the micro-dollars that stopping ASHA spends until a trial reaches the goal.

    The trials are run in the given order. They are stopped as by Ray Tune's AsyncHyperBandScheduler: a trial stops at a rung if its score
    is not in the top third of the scores that earlier trials had at that rung. Return UNREACHED if no trial reaches the goal.
    """
    recorded: dict[int, list[float]] = {}  # the scores at each rung, ascending
    spent = 0
    for path in order:
        stop = None
        for i, point in enumerate(path.rungs):
            scores = recorded.setdefault(i, [])
            cut = quantile_between(scores, 1 - 1 / REDUCTION_FACTOR) if scores else -math.inf
            insort(scores, point.score)
            if point.score < cut:
                stop = point
                break
        if path.goal is not None and (stop is None or path.goal.step <= stop.step):
            return spent + path.goal.cost
        spent += path.cost if stop is None else stop.cost
    return UNREACHED


def quantile_between(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of ascending values by linear interpolation. `share` is between 0 and 1, and 0.5 gives the median.

    The interpolation starts from the nearer neighbour, so that the result equals numpy's percentile bit for bit. Scores are compared with
    the quantile, so a rounding difference could change which trials are stopped.
    """
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low, high, part = ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


METHODS: dict[Method, Callable[[Iterable[Path]], float]] = {
    "random_search": random_search,
    "stopping_asha": stopping_asha,
}


def spending(method: Method, paths: Sequence[Path], *, seed: int, orders: int = ORDERS) -> list[float]:
    """Return the micro-dollars that a method spends until it reaches the goal, for each of `orders` random orders of the trials.

    The amounts are in ascending order.
    """
    stories = (drawn(paths, Random(f"{method}/{seed}/{number}")) for number in range(orders))
    return sorted(map(METHODS[method], stories))


def drawn(paths: Sequence[Path], rng: Random) -> Iterator[Path]:
    """Yield each path once, in random order. The order is drawn path by path, because most replays end before the last path."""
    left = list(paths)
    while left:
        chosen = int(rng.random() * len(left))
        left[chosen], left[-1] = left[-1], left[chosen]
        yield left.pop()


def _estimate(method: Method, evidence: ReplayEvidence) -> SearchEstimate:
    last = last_step_of(evidence.trials, evidence.fidelity.max)
    assert last is not None
    rungs = [step for step in stopping_asha_rungs(evidence.fidelity) if step < last]
    paths = Paths(
        evidence.trials,
        rungs=rungs,
        last_step=last,
        goal=evidence.goal,
        fidelity=evidence.fidelity,
        stage=evidence.stage,
    )
    spent = spending(method, paths.all, seed=evidence.seed)
    # These are nearest-rank quantiles, which are always values of the list. Interpolation is not possible, because UNREACHED is infinite.
    ranked = [spent[max(0, math.ceil(share * len(spent)) - 1)] for share in (0.05, 0.5, 0.95)]
    low, usd, high = (None if micro == UNREACHED else Money(int(micro)) for micro in ranked)
    return SearchEstimate(
        method,
        "unreached" if usd is None else "estimated",
        " ".join(_note(method, evidence, paths, rungs, last, spent)),
        usd,
        low,
        high,
        is_biased_low=evidence.learned or (method == "random_search" and paths.cut > 0),
    )


def _note(
    method: Method,
    evidence: ReplayEvidence,
    paths: Paths,
    rungs: Sequence[int],
    last: int,
    spent: Sequence[float],
) -> Iterator[str]:
    yield f"Replayed with this job's {len(paths.all)} trials in {len(spent)} random orders: the median, and the range of 5 to 95 % of the orders."
    if method == "random_search":
        yield f"Every trial is trained to step {last}."
    elif not rungs:
        yield "It would stop no trial, because the job has no rung before the last step."
    else:
        steps = ", ".join(map(str, rungs))
        yield f"A trial stops at step {steps} if it is not among the best third of the trials that have reached this step."
    if paths.cut:
        favours = ", which favours random search" if method == "random_search" else ""
        yield (
            f"{paths.cut} of them were cut short. Each of their further steps is assumed to cost as much as their mean step, and to gain "
            f"as much as the best trial of this job gained there{favours}."
        )
    missed = spent.count(UNREACHED) / len(spent)
    if missed:
        yield f"In {missed:.0%} of the orders, it stops every trial that would have reached the goal."
    yield "Setup and training are counted, but not checkpoints and waiting."
    if evidence.learned:
        yield "Biased: this job's sampler learns, so its suggestions are better than random ones, and the true figure should be higher."


def _missing(evidence: ReplayEvidence | None) -> str | None:
    """Return a text that says which data is missing for an estimate. Return None if nothing is missing."""
    if evidence is None:
        return "no trial has reported the metric yet"
    if len(evidence.trials) < MIN_TRIALS:
        return f"{len(evidence.trials)} trials have reported the metric; at least {MIN_TRIALS} are needed to replay a search"
    if last_step_of(evidence.trials, evidence.fidelity.max) is None:
        return "no trial was trained to the last step, so the final scores of the other trials cannot be estimated"
    return None
