"""The objective: a metric, a direction, and optionally a target."""

import math
from dataclasses import dataclass
from typing import Literal

from tuner.domain.errors import Fault

Mode = Literal["max", "min"]


@dataclass(frozen=True, slots=True)
class Objective:
    metric: str
    mode: Mode = "max"
    target: float | None = None

    def score(self, value: float) -> float:
        """Return the value, negated if lower is better, so that a higher score is always better."""
        return value if self.mode == "max" else -value

    def reached(self, value: float) -> bool:
        return self.target is not None and self.score(value) >= self.score(self.target)

    def faults(self) -> list[Fault]:
        found = []
        if not self.metric.strip():
            found.append(Fault("/objective/metric", "name the metric that the trainable reports"))
        if self.target is not None and not math.isfinite(self.target):
            found.append(Fault("/objective/target", "must be a finite number"))
        return found
