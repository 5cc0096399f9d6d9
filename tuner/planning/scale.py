"""A logistic scale for scores that are shares, such as accuracies, on which extrapolated scores cannot exceed 1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

EDGE = 0.001  # shares nearer than this to 0 or 1 are treated as if they were this far away, because the logistic scale is infinite there


@dataclass(frozen=True, slots=True)
class Scale:
    """A transformation of scores to places, on which they are extrapolated and smoothed, and back."""

    #: The lowest and the highest score. None means that scores are not transformed.
    bounds: tuple[float, float] | None = None

    def clip(self, score: float) -> float:
        """Limit a score to the range of the scale."""
        return score if self.bounds is None else min(self.bounds[1], max(self.bounds[0], score))

    def place(self, score: float) -> float:
        if self.bounds is None:
            return score
        low, high = self.bounds
        share = min(1 - EDGE, max(EDGE, (score - low) / (high - low)))
        return math.log(share / (1 - share))

    def score(self, place: float) -> float:
        if self.bounds is None:
            return place
        low, high = self.bounds
        return low + (high - low) / (1 + math.exp(-place))


def scale_of(scores: Sequence[float]) -> Scale:
    """Return a logistic scale if all scores are between 0 and 1, or between -1 and 0, as negated losses are.

    Otherwise return a scale that changes nothing.
    """
    if scores and all(0 <= score <= 1 for score in scores):
        return Scale((0.0, 1.0))
    return Scale((-1.0, 0.0)) if scores and all(-1 <= score <= 0 for score in scores) else Scale()
