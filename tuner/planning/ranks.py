"""Spearman's rank correlation: how well the ranking of trials at one step predicts their ranking at another."""

import math
from collections.abc import Sequence

import numpy as np

Z80 = 1.2815515655446004  # 80 % of a normal distribution lie within this many standard deviations of its mean


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation of two sequences of equal length, which is Pearson's correlation of the ranks.

    Equal values get the mean of their ranks. Return None if all values of one sequence are equal.

    >>> spearman([1, 2, 3, 4], [10, 20, 40, 30])
    0.8
    """
    a, b = _ranks(first), _ranks(second)
    mean = (len(a) + 1) / 2
    up = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    down = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return max(-1.0, min(1.0, up / down)) if down else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1. Equal values get the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return [float(rank) for rank in (last - (counts - 1) / 2)[group]]
