"""Where trials that were cut short would end, by those that went on from where they stopped.

From each rung to the next a straight line is fitted to the scores of the trials that have both, its slope drawn towards 1 as where
the sampler lifts early scores. What it leaves unexplained, and how uncertain the line itself is, add up along the way, with
Student's t for as many trials as there were. That the trials that went on were the better ones is not corrected for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

FEWEST = 3  # trials that went on: two fit any line
SLOPE_WEIGHT = 3  # pairs of scores that the slope 1 is worth
SLOPES = (0.3, 3.0)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A score at the last step: Student's t with so many degrees of freedom about `mean`, scaled by `spread`."""

    mean: float
    spread: float
    degrees: int

    def between(self) -> tuple[float, float]:
        """The ends of the middle 80 %."""
        from scipy.special import stdtrit  # a fifth of a second, for which no start of the service waits

        half = float(stdtrit(self.degrees, 0.9)) * self.spread
        return self.mean - half, self.mean + half


def outlooks(levels: int, curves: Mapping[int, Sequence[float]], asked: Sequence[int]) -> dict[int, Outlook]:
    """Of the trials asked for, by number; those are left out beyond whose last level fewer than three went on. `curves`: scores at
    the levels (rungs, and the last step as the last of them) that each trial came to, at least one."""
    lines = [_line(curves, level) for level in range(levels - 1)]
    found = {number: _outlook(curves[number], lines) for number in asked}
    return {number: outlook for number, outlook in found.items() if outlook is not None}


@dataclass(frozen=True, slots=True)
class _Line:
    """From a score at one level to that at the next; `squares` are those of the scores' distances from `x`."""

    slope: float
    x: float
    y: float
    variance: float
    count: int
    squares: float


def _line(curves: Mapping[int, Sequence[float]], level: int) -> _Line | None:
    pairs = [(curve[level], curve[level + 1]) for curve in curves.values() if len(curve) > level + 1]
    count = len(pairs)
    if count < FEWEST:
        return None
    x, y = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
    squares = sum((a - x) ** 2 for a, _ in pairs)
    own = sum((a - x) * (b - y) for a, b in pairs) / squares if squares > 0 else 1.0
    slope = min(SLOPES[1], max(SLOPES[0], (count * own + SLOPE_WEIGHT) / (count + SLOPE_WEIGHT)))
    left = sum((b - y - slope * (a - x)) ** 2 for a, b in pairs)
    return _Line(slope, x, y, left / (count - 2), count, squares)


def _outlook(curve: Sequence[float], lines: Sequence[_Line | None]) -> Outlook | None:
    mean, variance, degrees = curve[-1], 0.0, math.inf
    for line in lines[len(curve) - 1 :]:
        if line is None:
            return None
        away = (mean - line.x) ** 2 / line.squares if line.squares > 0 else 0.0
        variance = line.slope**2 * variance + line.variance * (1 + 1 / line.count + away)
        mean = line.y + line.slope * (mean - line.x)
        degrees = min(degrees, line.count - 2)
    return None if degrees == math.inf else Outlook(mean, math.sqrt(variance), int(degrees))
