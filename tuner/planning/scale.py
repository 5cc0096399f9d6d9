"""Scores that are all shares are extended and drawn on a logistic scale: there nothing gains beyond what is whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

EDGE = 0.001  # so near to an end of the scale counts as no nearer


@dataclass(frozen=True, slots=True)
class Scale:
    """Shares between `low` and `high`; None: scores stay as they are."""

    ends: tuple[float, float] | None = None

    def clip(self, score: float) -> float:
        """Return the nearest score that the scale has."""
        return score if self.ends is None else min(self.ends[1], max(self.ends[0], score))

    def place(self, score: float) -> float:
        if self.ends is None:
            return score
        low, high = self.ends
        share = min(1 - EDGE, max(EDGE, (score - low) / (high - low)))
        return math.log(share / (1 - share))

    def score(self, place: float) -> float:
        if self.ends is None:
            return place
        low, high = self.ends
        return low + (high - low) / (1 + math.exp(-place))


def scale_of(scores: Sequence[float]) -> Scale:
    """A loss is seen as a score below zero."""
    if scores and all(0 <= score <= 1 for score in scores):
        return Scale((0.0, 1.0))
    return Scale((-1.0, 0.0)) if scores and all(-1 <= score <= 0 for score in scores) else Scale()
