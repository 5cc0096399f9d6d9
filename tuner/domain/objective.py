"""The objectives of a job (one or two metrics, each with a direction), its steps of fidelity, and its constraints on other metrics."""

import math
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.errors import Fault
from tuner.domain.money import Money

MAX_STEPS = 10_000_000


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The steps of a trial. If `max` is None, the trainable runs until it returns, and trials have no rungs."""

    unit: str = "step"
    min: int = 1
    max: int | None = None
    reduction_factor: int = 3
    #: The values of each proxy, such as the resolution of images, by name: one value per rung. Up to a rung, a trial trains with the
    #: value of that rung. After the last rung, it trains with the last value.
    proxies: Mapping[str, Sequence[float]] | None = field(default=None, metadata={"new": True})

    def stage(self, step: int) -> int:
        """Return the stage of the proxies at a step: the index, from 0, of the value that each proxy has then. Return 0 without proxies.

        A proxy is a setting with a cheaper value in early steps, such as a lower resolution of images. Its value changes after a rung.

        >>> [Fidelity(max=27, proxies={"resolution": (16, 24, 32)}).stage(step) for step in (1, 2, 3, 4, 27)]
        [0, 1, 1, 2, 2]
        """
        return stage_of(step, self.rungs()) if self.proxies else 0

    @property
    def stage_ends(self) -> tuple[int, ...]:
        """The last step of each stage, except that of the last stage. Empty without proxies.

        A proxy is a setting with a cheaper value in early steps. A stage is a range of steps with the same values of the proxies.
        """
        return self.rungs()[:-1] if self.proxies else ()

    @property
    def last_stage(self) -> int:
        return max(0, len(self.rungs()) - 1) if self.proxies else 0

    def rungs(self) -> tuple[int, ...]:
        """Return the steps at which trials are compared, lowest first: min·η^k below max, where η is `reduction_factor` (Li et al. 2018).

        >>> Fidelity(min=1, max=27).rungs()
        (1, 3, 9)
        """
        if self.max is None:
            return ()
        steps, step = [], self.min
        while step < self.max:
            steps.append(step)
            step *= self.reduction_factor
        return tuple(steps)

    def faults(self) -> list[Fault]:
        faults = []
        if not 1 <= self.min <= MAX_STEPS:
            faults.append(Fault("/fidelity/min", f"must be between 1 and {MAX_STEPS} steps"))
        if self.max is not None and not 1 <= self.max <= MAX_STEPS:
            faults.append(Fault("/fidelity/max", f"must be between 1 and {MAX_STEPS} steps"))
        elif self.max is not None and self.max < self.min:
            faults.append(Fault("/fidelity/max", f"must be at least min ({self.min})"))
        if not 2 <= self.reduction_factor <= 100:
            faults.append(Fault("/fidelity/reduction_factor", "must be between 2 and 100"))
        if not self.unit.strip():
            faults.append(Fault("/fidelity/unit", "name the unit, such as epoch"))
        return faults or self._proxy_faults()

    def _proxy_faults(self) -> list[Fault]:
        rungs, faults = self.rungs(), []
        at = f"the rungs {', '.join(map(str, rungs))}" if rungs else "no rungs"
        for name, values in (self.proxies or {}).items():
            if len(values) != max(1, len(rungs)):
                few = f"has {len(values)} values, but the job has {at}; the number of values must be {max(1, len(rungs))}"
                faults.append(Fault(f"/fidelity/proxies/{name}", few))
            elif not all(map(math.isfinite, values)):
                faults.append(Fault(f"/fidelity/proxies/{name}", "must be finite numbers"))
        return faults


def stage_of(step: int, rungs: Sequence[int]) -> int:
    """Return the index of the first rung at or above `step`, counted from 0.

    Return the index of the last rung if the step is above all rungs, and 0 without rungs.
    """
    return min(bisect_left(rungs, step), len(rungs) - 1) if rungs else 0


Mode = Literal["max", "min"]


def gain_of_next(points_per_usd: float) -> str:
    """Describe how many points the next dollar, or a smaller amount, is expected to gain. A point is 0.01 of the metric.

    The amount is the largest of $1, $0.1, $0.01 and so on that is expected to gain at most one point. The gain per dollar holds only for
    small gains, and is meaningless if the budget is a few cents.

    >>> gain_of_next(0.0206), gain_of_next(193)
    ('the next $1.00 is expected to gain 0.0206 points', 'the next $0.001 is expected to gain 0.193 points')
    """
    amount = Money(1_000_000)
    while amount.micro_usd > 1 and points_per_usd * amount.usd > 1:
        amount = Money(amount.micro_usd // 10)
    return f"the next {amount} is expected to gain {points_per_usd * amount.usd:.3g} points"


# The texts of the numbers that JSON cannot express.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


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

    def faults(self, at: str = "/objective") -> list[Fault]:
        faults = []
        if not self.metric.strip():
            faults.append(Fault(f"{at}/metric", "name the metric that the trainable reports"))
        if self.target is not None and not math.isfinite(self.target):
            faults.append(Fault(f"{at}/target", "must be a finite number"))
        return faults


@dataclass(frozen=True, slots=True)
class Constraint:
    """The range in which a metric must be for a report to be feasible. `min`, `max` or both are given."""

    metric: str
    min: float | None = None
    max: float | None = None

    def violation(self, value: float) -> float:
        """Return by how much a value is outside the range, as a share of the exceeded limit. Return 0 if it is within the range.

        If the exceeded limit is 0, return the distance from it.

        >>> [Constraint("latency_ms", max=20).violation(value) for value in (20, 25)]
        [0.0, 0.25]
        """
        if self.max is not None and value > self.max:
            return (value - self.max) / (abs(self.max) or 1.0)
        if self.min is not None and value < self.min:
            return (self.min - value) / (abs(self.min) or 1.0)
        return 0.0

    def __str__(self) -> str:
        least = [] if self.min is None else [f"at least {self.min:g}"]
        most = [] if self.max is None else [f"at most {self.max:g}"]
        return f"{self.metric} {' and '.join([*least, *most])}"


def number(reported: object) -> float | None:
    """Convert a reported value to a float. Return None if it is not a number. NaN and infinities may be given as text."""
    if isinstance(reported, str):
        return NOT_FINITE.get(reported)
    if isinstance(reported, bool) or not isinstance(reported, int | float):
        return None
    try:
        return float(reported)
    except OverflowError:  # an integer too large for a float
        return math.inf if reported > 0 else -math.inf


def violation(constraints: Sequence[Constraint], metrics: Mapping[str, object]) -> float | None:
    """Return the sum of the violations of the constraints by the metrics of a report. A sum of 0 means that the report is feasible.

    Return None if the metric of a constraint is missing or is not a finite number.
    """
    if lacking((limit.metric for limit in constraints), metrics) is not None:
        return None
    values = ((limit, number(metrics[limit.metric])) for limit in constraints)
    total = sum((limit.violation(value) for limit, value in values if value is not None), start=0.0)
    return min(total, sys.float_info.max)  # because JSON has no infinity


def lacking(names: Iterable[str], metrics: Mapping[str, object]) -> str | None:
    """Return the first of the metrics `names` that is missing or not a finite number. Return None if all are finite numbers."""
    values = {name: number(metrics.get(name)) for name in names}
    return next((name for name, value in values.items() if value is None or not math.isfinite(value)), None)


#: Metrics of the cost of predictions: the latency, and the dollars per million predictions. The worker measures them if the job needs
#: them and the trainable does not report them.
SERVING_METRICS = ("latency_ms", "usd_per_million")


def constraint_faults(constraints: Sequence[Constraint]) -> list[Fault]:
    faults, seen = [], set[str]()
    for i, limit in enumerate(constraints):
        at, ends = f"/constraints/{i}", [end for end in (limit.min, limit.max) if end is not None]
        if not limit.metric.strip():
            faults.append(Fault(f"{at}/metric", "name a metric that the trainable reports"))
        elif limit.metric in seen:
            detail = f"{limit.metric!r} already has a constraint; give min and max in the same constraint"
            faults.append(Fault(f"{at}/metric", detail))
        seen.add(limit.metric)
        if not ends:
            faults.append(Fault(at, "give min, max or both"))
        elif not all(map(math.isfinite, ends)):
            faults.append(Fault(at, "min and max must be finite numbers"))
        elif ends[0] > ends[-1]:
            faults.append(Fault(at, f"min must be at most max ({limit.max:g})"))
    return faults
