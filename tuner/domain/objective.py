"""What a job optimizes: a metric, a direction and optionally a target, over steps of fidelity."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    #: For each proxy, such as the resolution of images, one value per rung. A trial trains with the value of the rung that it trains for,
    #: and with the last value after the last rung.
    proxies: Mapping[str, Sequence[float]] | None = field(default=None, metadata={"new": True})

    def stage(self, step: int) -> int:
        """Return which of the proxies' values a step is trained with, counted from 0. It is 0 without proxies.

        >>> [Fidelity(max=27, proxies={"resolution": (16, 24, 32)}).stage(step) for step in (1, 2, 3, 4, 27)]
        [0, 1, 1, 2, 2]
        """
        return stage_of(step, self.rungs()) if self.proxies else 0

    @property
    def last_stage(self) -> int:
        return max(0, len(self.rungs()) - 1) if self.proxies else 0

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
        return found or self._proxy_faults()

    def _proxy_faults(self) -> list[Fault]:
        rungs, found = self.rungs(), []
        at = f"the rungs {', '.join(map(str, rungs))}" if rungs else "no rungs"
        for name, values in (self.proxies or {}).items():
            if len(values) != max(1, len(rungs)):
                few = f"has {len(values)} values, but the job has {at}; give {max(1, len(rungs))}"
                found.append(Fault(f"/fidelity/proxies/{name}", few))
            elif not all(map(math.isfinite, values)):
                found.append(Fault(f"/fidelity/proxies/{name}", "must be finite numbers"))
        return found


def stage_of(step: int, rungs: Sequence[int]) -> int:
    """Return the index of the rung that a step leads to. Steps after the last rung have its index. Without rungs it is 0."""
    return min(bisect_left(rungs, step), len(rungs) - 1) if rungs else 0


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
