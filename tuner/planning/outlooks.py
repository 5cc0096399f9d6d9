"""Predictions of the final scores of trials that were cut short, from the trials that continued past the same rungs.

From each rung to the next, a straight line is fitted to the scores of the trials that have a score at both. Its slope is drawn
towards 1, as in the lines with which the sampler predicts final scores from early ones. The residual variance and the uncertainty
of the line add up from rung to rung. The prediction is a Student's t distribution, whose degrees of freedom depend on the number of
trials. Trials that diverged are left out of the fit. The predictions are not corrected for the bias that only the better trials continued.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from tuner.tuning.rungs import SLOPE_WEIGHT, SLOPES

FEWEST = 3  # the fewest trials to fit a line to: a line through two points fits exactly, so that its error is unknown
# A trial diverged if it has a score that is below the median by more than this many times the median absolute deviation. With normally
# distributed scores this never happens: it is almost seven standard deviations.
FAR = 10


@dataclass(frozen=True, slots=True)
class Outlook:
    """A predicted score at the last step: Student's t with `degrees` degrees of freedom around `mean`, scaled by `spread`."""

    mean: float
    spread: float
    degrees: int

    def between(self) -> tuple[float, float]:
        """Return the lower and the upper end of the interval that contains the score with a probability of 80 %."""
        # SciPy is imported here, because importing it takes 0.2 s and would delay every start of the service
        from scipy.special import stdtrit

        half = float(stdtrit(self.degrees, 0.9)) * self.spread
        return self.mean - half, self.mean + half


def outlooks(
    levels: int, curves: Mapping[int, Sequence[float]], numbers: Sequence[int]
) -> dict[int, Outlook]:
    """Return the predictions for the trials in `numbers`, by trial number.

    A trial is omitted if it has reached the last level. It is also omitted if it must still pass a level from which fewer than three
    trials have reached the next one, or if scores are so large that their squares exceed the largest float.

    Args:
        levels: Number of levels: the rungs, and the last step as the last level.
        curves: The scores of each trial at the levels that it reached, in order, by trial number. Each trial has at least one score.
    """
    lines = [_line(curves, level) for level in range(levels - 1)]
    outlook_by_number = {number: _outlook(curves[number], lines) for number in numbers}
    return {number: outlook for number, outlook in outlook_by_number.items() if outlook is not None}


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that predicts a trial's score at the next level from its score at one level. Levels are the rungs and the last step.

    `x` and `y` are the mean scores at the two levels. `squares` is the sum of the squared distances of the scores at the first level from `x`.
    """

    slope: float
    x: float
    y: float
    variance: float
    count: int
    squares: float


def _line(curves: Mapping[int, Sequence[float]], level: int) -> _Line | None:
    pairs = _without_diverged(
        [(curve[level], curve[level + 1]) for curve in curves.values() if len(curve) > level + 1]
    )
    count = len(pairs)
    if count < FEWEST:
        return None
    try:
        x, y = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
        squares = sum((a - x) ** 2 for a, _ in pairs)
        own = sum((a - x) * (b - y) for a, b in pairs) / squares if squares > 0 else 1.0
        slope = min(SLOPES[1], max(SLOPES[0], (count * own + SLOPE_WEIGHT) / (count + SLOPE_WEIGHT)))
        left = sum((b - y - slope * (a - x)) ** 2 for a, b in pairs)
    except OverflowError:  # Python raises it for the square of a number above 1e154
        return None
    return _Line(slope, x, y, left / (count - 2), count, squares)


def _without_diverged(pairs: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return the pairs of scores without those of trials that diverged. One of them would determine the line alone."""
    if len(pairs) < FEWEST:
        return pairs
    middles = [median(scores) for scores in zip(*pairs, strict=True)]
    deviations = [
        [abs(score - middle) for score, middle in zip(pair, middles, strict=True)] for pair in pairs
    ]
    spread = max(median(level) for level in zip(*deviations, strict=True))
    if spread == 0:  # most trials have equal scores
        return pairs
    lowest = [middle - FAR * spread for middle in middles]
    return [pair for pair in pairs if pair[0] >= lowest[0] and pair[1] >= lowest[1]]


def _outlook(curve: Sequence[float], lines: Sequence[_Line | None]) -> Outlook | None:
    mean, variance, degrees = curve[-1], 0.0, math.inf
    for line in lines[len(curve) - 1 :]:
        if line is None:
            return None
        try:
            away = (mean - line.x) ** 2 / line.squares if line.squares > 0 else 0.0
        except OverflowError:  # as in `_line`
            return None
        variance = line.slope**2 * variance + line.variance * (1 + 1 / line.count + away)
        mean = line.y + line.slope * (mean - line.x)
        degrees = min(degrees, line.count - 2)
    if degrees == math.inf or not math.isfinite(mean) or not math.isfinite(variance):
        return None
    return Outlook(mean, math.sqrt(variance), int(degrees))
