"""Spearman's rank correlation: how well the ranking of trials at a step predicts their ranking at the last step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.planning.advice.evidence import Curve, Evidence

LEAST_TRIALS = 10
Z90 = 1.2815515655446004  # the 90th percentile of the normal distribution
# The variance of Fisher's transform of Spearman's coefficient, times n − 3 (Fieller, Hartley & Pearson 1957).
VARIANCE = 1.06


@dataclass(frozen=True, slots=True)
class Correlation:
    """A rank correlation. `low` and `high` bound an 80 % interval."""

    rho: float
    low: float
    high: float
    trials: int


def last_step(evidence: Evidence) -> int | None:
    """Return the job's maximum step. If it has none, return the last step that LEAST_TRIALS trials reached, or None without one."""
    if evidence.spec.fidelity.max is not None:
        return evidence.spec.fidelity.max
    reached = sorted((curve.last for curve in evidence.curves), reverse=True)
    return reached[LEAST_TRIALS - 1] if len(reached) >= LEAST_TRIALS else None


def predicts(curves: Sequence[Curve], step: int, last: int) -> Correlation | None:
    """Return the correlation of the metric at two steps, over the trials that have both.

    Return None if there are too few such trials, or if their metrics are all equal.
    """
    points = [(curve.at(step), curve.at(last)) for curve in curves]
    pairs = [
        (a.score, b.score)
        for a, b in points
        if a is not None and b is not None and a.score is not None and b.score is not None
    ]
    if len(pairs) < LEAST_TRIALS:
        return None
    rho = spearman([a for a, _ in pairs], [b for _, b in pairs])
    if rho is None:
        return None
    z = math.atanh(max(-0.999999, min(0.999999, rho)))
    off = Z90 * math.sqrt(VARIANCE / (len(pairs) - 3))
    return Correlation(rho, math.tanh(z - off), math.tanh(z + off), len(pairs))


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Pearson's coefficient of the ranks. Equal values share their mean rank. Return None if all values of one side are equal.

    >>> spearman([1, 2, 3, 4], [10, 20, 40, 30])
    0.8
    """
    a, b = ranks(one), ranks(other)
    mean = (len(a) + 1) / 2
    up = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    down = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return max(-1.0, min(1.0, up / down)) if down else None


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1. Equal values get the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for i in order[at : end + 1]:
            found[i] = (at + end) / 2 + 1
        at = end + 1
    return found
