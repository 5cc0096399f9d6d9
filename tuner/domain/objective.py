"""What a job optimizes: a metric, a direction and optionally a target, over steps of fidelity."""

import math
from dataclasses import dataclass
from typing import Literal

from tuner.domain.errors import Fault

MAX_STEPS = 10_000_000


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The steps of a trial. If `max` is None, the trainable runs until it returns, and there are no rungs."""

    unit: str = "step"
    min: int = 1
    max: int | None = None
    reduction_factor: int = 3

    def rungs(self) -> tuple[int, ...]:
        """Return the steps at which trials are compared, lowest first: min·η^k below max (Li et al. 2018).

        >>> Fidelity(min=1, max=27).rungs()
        (1, 3, 9)
        """
        if self.max is None:
            return ()
        found, step = [], self.min
        while step < self.max:
            found.append(step)
            step *= self.reduction_factor
        return tuple(found)

    def faults(self) -> list[Fault]:
        found = []
        if not 1 <= self.min <= MAX_STEPS:
            found.append(Fault("/fidelity/min", f"must be between 1 and {MAX_STEPS} steps"))
        if self.max is not None and not 1 <= self.max <= MAX_STEPS:
            found.append(Fault("/fidelity/max", f"must be between 1 and {MAX_STEPS} steps"))
        elif self.max is not None and self.max < self.min:
            found.append(Fault("/fidelity/max", f"must be at least min ({self.min})"))
        if not 2 <= self.reduction_factor <= 100:
            found.append(Fault("/fidelity/reduction_factor", "must be between 2 and 100"))
        if not self.unit.strip():
            found.append(Fault("/fidelity/unit", "name the unit, such as epoch"))
        return found


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
