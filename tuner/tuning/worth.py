"""The next dollar: what it is expected to gain, and when a job stops because that is not worth it.

The forecast assumes that the job continues as before: the next trials are drawn, promoted and paid for like earlier ones. The best of n
results is beaten by the next result with a chance of about 1/n. If the upper tail of the results is exponential, the expected excess
is then the mean excess of the best results over the next best one. The n trials cost what was spent on them, so the expected gain per
dollar is that excess divided by this money. It includes everything that is paid for: setup, lost work and trials that are cut short.

The estimate is the mean of four: from all trials and from their newer half, with half of the money, each with two tails. The newer half
says what the sampler proposes now. Alone it would count every gain twice if the sampler did not improve.

A result cannot exceed what the metric can reach. If a metric to maximise has not left [0, 1], as an accuracy, the tail ends at 1. If one to
minimise was never negative, as a loss, it ends at 0. The expected excess is then that of an exponential tail that is cut off there.

A job stops if this gain is worth less than a dollar. This is the stopping rule of Pandora's box with equal boxes: stop when the best
result exceeds the Gittins index of the next trial, which is the result at which its expected improvement equals its cost (Xie et al.,
arXiv:2507.12453). How well the forecast is calibrated is measured by `benchmarks/worth.py`.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from tuner.domain.money import Money
from tuner.domain.objective import Mode, gain_of_next
from tuner.tuning.state import Ending, State

POINT = 0.01  # a point, in units of the metric
FEWEST = 16  # feasible trials with a metric; with fewer, it is too early to tell
TAILS = (0.3, 0.5)  # shares of the results that are in the upper tail
TAIL_FEWEST = 3


def points_per_usd(scores: Sequence[float], spent: Money, mode: Mode) -> float | None:
    """Return the points that the job's next dollar is expected to gain. A point is 0.01 of the metric.

    Return None if it is too early to tell, if nothing was spent, or if the metric is too large to compute with.

    Args:
        scores: The newest score of each feasible trial that has one, oldest trial first.
        spent: Spend of the job so far.
        mode: Whether the metric is maximised, so that scores are its values, or minimised, so that they are its negated values.
    """
    if len(scores) < FEWEST or not spent.micro_usd:
        return None
    newer, reach = scores[len(scores) // 2 :], _reach(scores, mode)
    try:
        gains = [
            _cut_off(_excess(results, tail), reach) / (spent.usd * len(results) / len(scores))
            for results in (sorted(scores, reverse=True), sorted(newer, reverse=True))
            for tail in TAILS
        ]
        points = fmean(gains) / POINT
    except OverflowError:  # a sum of metrics exceeds the largest float
        return None
    return points if math.isfinite(points) else None


def _excess(results: Sequence[float], tail: float) -> float:
    """Return the mean excess of the best results, a share `tail` of them, over the next best one. The results are ordered."""
    count = max(TAIL_FEWEST, round(tail * len(results)))
    return fmean(results[:count]) - results[count]


def _reach(scores: Sequence[float], mode: Mode) -> float:
    """Return how far the best score is from the highest one that the metric can probably reach."""
    best = max(scores)
    if mode == "min":
        return -best if best <= 0 else math.inf
    return 1 - best if best <= 1 and min(scores) >= 0 else math.inf


def _cut_off(excess: float, reach: float) -> float:
    """Return the mean of an exponential distribution of this mean, given that its values are at most `reach`."""
    ratio = reach / excess if excess else math.inf
    if ratio < 1e-6:
        return reach / 2
    return excess if ratio > 50 else excess - reach / math.expm1(ratio)


def ending(state: State) -> Ending | None:
    """Return an ending if the next dollar is expected to gain less than it is worth. Called when an attempt has ended."""
    worth = state.spec.worth_micro_usd
    if worth is None or state.confirming:
        return None
    score = state.spec.objective.score
    searched = (trial for trial in state.trials if trial.repeats is None and not trial.violation)
    scores = [score(trial.value) for trial in searched if trial.value is not None]
    points = points_per_usd(scores, state.spent, state.spec.objective.mode)
    if points is None or points * worth >= 1_000_000:
        return None
    detail = f"{gain_of_next(points)}, and a point is worth {Money(worth)} (stop.worth)"
    return Ending("succeeded", "worth", detail)
