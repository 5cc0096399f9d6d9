"""The rungs of a job, the ranking of trials on each, and predictions of where paused trials would end.

`outlooks` predicts from the trials that continued past the same rungs. From each rung to the next, a straight line is
fitted to the scores of the trials that have a score at both. Its slope is drawn towards 1, as the sampler does for early
scores. The residual variance and the uncertainty of the line add up from rung to rung. The prediction is a Student's t
distribution, with degrees of freedom by the number of trials. There is no correction for the fact that the trials that
continued were the better ones.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from tuner.domain.job import JobSpec
from tuner.domain.objective import Fidelity

# The rungs of `auto`: the first at a twelfth of all steps, each next one four times as high
# (docs/decisions/0006-search-by-a-model-of-curves.md).
AUTO_FIRST = 12
AUTO_FACTOR = 4


def ladder(spec: JobSpec) -> Fidelity:
    """Return the fidelity that the scheduler uses. `auto` chooses its own rungs, not below `min`, unless the values of proxies name them."""
    fidelity = spec.fidelity
    if spec.algorithm.scheduler != "auto" or fidelity.max is None or fidelity.proxies:
        return fidelity
    first = max(fidelity.min, round(fidelity.max / AUTO_FIRST))
    return Fidelity(fidelity.unit, first, fidelity.max, AUTO_FACTOR)


Rank = tuple[float, float]  # the violation of the constraints, and the negated score: the lower, the better


@dataclass(slots=True)
class Rung:
    """The trials that reached `step`."""

    step: int
    #: All trials that reached the step, best first, as (violation, -score, number), so that ties go to the older trial.
    ranked: list[tuple[float, float, int]] = field(default_factory=list)
    #: The trials that were not promoted, in the same order, so that the next one to promote is found without a search of all.
    waiting: list[tuple[float, float, int]] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    recorded: dict[int, Rank] = field(default_factory=dict)  #: The rank by trial number.

    def record(self, number: int, score: float, violation: float = 0.0) -> None:
        """Record the score of a trial. Each trial counts once, with its first score at this rung.

        Trials that violate no constraint come first, by their scores. The others follow by how much they violate.
        """
        if number not in self.recorded:
            self.recorded[number] = (violation, -score)
            insort(self.ranked, (violation, -score, number))
            insort(self.waiting, (violation, -score, number))

    def promote(self, number: int) -> None:
        """Record that a trial was promoted from this rung. A repeat changes nothing."""
        if number not in self.promoted:
            self.promoted.add(number)
            del self.waiting[bisect_left(self.waiting, (*self.recorded[number], number))]

    def promotable(self, reduction_factor: int) -> list[int]:
        """Return the waiting trials that are among the best 1/η (rounded down) of all recorded trials."""
        count = len(self.ranked) // reduction_factor
        if not count:
            return []
        return [number for *_, number in self.waiting[: bisect_right(self.waiting, self.ranked[count - 1])]]

    def keeps(self, number: int, reduction_factor: int) -> bool:
        """Return whether the trial is among the best 1/η (rounded up) of the trials recorded so far. Ties count as best."""
        kept = max(1, -(-len(self.ranked) // reduction_factor))
        *worst_kept, _ = self.ranked[min(kept, len(self.ranked)) - 1]
        return self.recorded[number] <= tuple(worst_kept)


FEWEST = 3  # trials that a line is fitted to: with two, every line fits exactly, and its error is unknown
SLOPE_WEIGHT = 3  # weight of the prior slope 1, in pairs of scores
SLOPES = (0.3, 3.0)  # bounds of a fitted slope


@dataclass(frozen=True, slots=True)
class Outlook:
    """A predicted score at the last step: Student's t with `degrees` degrees of freedom around `mean`, scaled by `spread`."""

    mean: float
    spread: float
    degrees: int

    def between(self) -> tuple[float, float]:
        """Return the ends of the central 80 % interval."""
        # imported here because it takes 0.2 s, which would delay every start of the service
        from scipy.special import stdtrit

        half = float(stdtrit(self.degrees, 0.9)) * self.spread
        return self.mean - half, self.mean + half


def outlooks(
    levels: int, curves: Mapping[int, Sequence[float]], numbers: Sequence[int]
) -> dict[int, Outlook]:
    """Return the predictions for the trials in `numbers`, by trial number.

    A trial is omitted if fewer than three trials continued from one of its remaining levels.

    Args:
        levels: Number of levels: the rungs, and the last step as the last level.
        curves: The scores of each trial at the levels that it reached, at least one.
    """
    lines = [_line(curves, level) for level in range(levels - 1)]
    outlook_by_number = {number: _outlook(curves[number], lines) for number in numbers}
    return {number: outlook for number, outlook in outlook_by_number.items() if outlook is not None}


@dataclass(frozen=True, slots=True)
class _Line:
    """The fitted line from the score at one level (a rung or the last step) to the score at the next.

    `squares` is the sum of the squared distances of the scores from their mean `x`.
    """

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
