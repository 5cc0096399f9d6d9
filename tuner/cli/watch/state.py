"""The state of a job as known from its events.

The state depends only on the events. It is the same if events are repeated, or if events of different trials arrive in another order.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.cli.escape import amount, number, plural, span, usd
from tuner.domain.objective import Fidelity

Kind = Literal["best", "promoted", "preempted", "failed", "state"]


@dataclass(frozen=True, slots=True)
class Highlight:
    """An event that is worth showing to the user."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class StaticFacts:
    """The properties of a job that do not change while it runs."""

    job: str
    name: str
    metric: str
    maximise: bool
    unit: str
    last_step: int | None
    rungs: tuple[int, ...]
    usd_per_hour: float
    #: The last step of each stage of the proxies, except that of the last stage. Empty without proxies.
    stage_ends: tuple[int, ...] = ()

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> "StaticFacts":
        """Return the facts of a job from its REST representation."""
        given, objective = job["fidelity"], job["objective"]
        fidelity = Fidelity(
            given["unit"], given["min"], given["max"], given["reduction_factor"], given.get("proxies")
        )
        return cls(
            job["id"],
            job["name"],
            objective["metric"],
            objective["mode"] == "max",
            fidelity.unit,
            fidelity.max,
            tuple(job["rungs"]),
            job["price"]["trial_usd_per_hour"],
            fidelity.stage_ends,
        )


@dataclass(frozen=True, slots=True)
class BestReport:
    """A trial's metric at a step, and the cost of training to that step."""

    trial: str
    step: int
    metric: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class RungCount:
    step: int
    reached: int
    promoted: int


@dataclass(slots=True)
class JobState:
    """The state of a job as known from its events."""

    facts: StaticFacts
    data: Mapping[str, Any] = field(default_factory=dict)  #: The job as REST returns it.
    spend: Mapping[str, Any] = field(default_factory=dict)
    trials: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    best_of: dict[str, BestReport] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)  #: The last step that each trial reported.
    #: The step and the metric of each trial's newest report.
    latest: dict[str, tuple[int, float | None]] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return str(self.data.get("state", ""))

    @property
    def best(self) -> BestReport | None:
        return min(self.best_of.values(), key=self._order, default=None)

    def add(self, kind: str, data: Mapping[str, Any]) -> list[Highlight]:
        """Add an event to the state, and return what to show the user about it. Return [] if it contains nothing new."""
        if kind == "spend":
            self.spend = data
        notes = {"report": self._report, "trial": self._trial, "job": self._job}
        return notes[kind](data) if kind in notes else []

    def leaders(self, count: int) -> list[BestReport]:
        """Return the best report of each of the `count` best trials, best first."""
        return sorted(self.best_of.values(), key=self._order)[:count]

    def latest_of(self, trial: str) -> float | None:
        """Return the metric of the trial's newest report."""
        return self.latest.get(trial, (0, None))[1]

    def rung_counts(self) -> list[RungCount]:
        """Return for each rung how many trials reached it and how many continued beyond it."""
        steps = self.steps.values()
        return [
            RungCount(rung, sum(step >= rung for step in steps), sum(step > rung for step in steps))
            for rung in self.facts.rungs
        ]

    def _order(self, report: BestReport) -> tuple[int, float, float, int, str]:
        """Return a sort key, as `tuner best` uses it: better metrics come first, and among equal metrics the one that is cheapest to train.

        Reports of a later stage of the proxies come before all reports of an earlier stage, because their metrics are not comparable.
        """
        return (
            -bisect_left(self.facts.stage_ends, report.step),
            -report.metric if self.facts.maximise else report.metric,
            report.cost_usd,
            report.step,
            report.trial,
        )

    def _report(self, data: Mapping[str, Any]) -> list[Highlight]:
        trial, step, value = data["trial"], data["step"], data["metric"]
        highlights = self._promotions(trial, step)
        if step >= self.latest.get(trial, (0, None))[0]:
            self.latest[trial] = (step, value)
        if not isinstance(value, int | float) or not math.isfinite(value) or data.get("violation", 0) != 0:
            return highlights
        report, before, known = (
            BestReport(trial, step, value, data["cost_usd"]),
            self.best,
            self.best_of.get(trial),
        )
        if known is None or self._order(report) < self._order(known):
            self.best_of[trial] = report
            # A report with the same metric is not announced, even if it was cheaper.
            if before is None or self._order(report)[:2] < self._order(before)[:2]:
                text = f"best {self.facts.metric} {number(value)} by {trial} at {self.facts.unit} {step}"
                highlights.append(Highlight("best", text))
        return highlights

    def _promotions(self, trial: str, step: int) -> list[Highlight]:
        before = self.steps.get(trial)
        if before is not None and step <= before:
            return []
        self.steps[trial] = step
        passed = [rung for rung in self.facts.rungs if before is not None and before <= rung < step]
        return [Highlight("promoted", f"{trial} promoted beyond {self.facts.unit} {rung}") for rung in passed]

    def _trial(self, data: Mapping[str, Any]) -> list[Highlight]:
        known = self.trials.get(data["id"], {})
        if known and _age(data) <= _age(known):
            return []
        self.trials[data["id"]] = data
        highlights = []
        preempted = data["preemptions"] - known.get("preemptions", 0)
        if preempted > 0:
            at = f"at {self.facts.unit} {data['steps']}"
            often = f" ({plural(data['preemptions'], 'time')})" if data["preemptions"] > 1 else ""
            highlights.append(Highlight("preempted", f"{data['id']} preempted {at}{often}"))
        if data["state"] == "failed" and known.get("state") != "failed":
            highlights.append(
                Highlight("failed", f"{data['id']} failed: {data['reason'] or 'the reason is not known'}")
            )
        return highlights

    def _job(self, data: Mapping[str, Any]) -> list[Highlight]:
        before, self.data = self.data, data
        highlights = []
        if data["state"] != before.get("state"):
            why = data["stop_reason"] or ""
            detail = f": {data['detail']}" if data["detail"] and data["state"] in ("failed", "paused") else ""
            highlights.append(Highlight("state", f"{data['state']} {why}".rstrip() + detail))
        limits = data["budget"]
        if before and limits != before["budget"]:
            highlights.append(Highlight("state", f"the budget is now {budget_line(limits)}"))
        return highlights


def budget_line(limits: Mapping[str, Any]) -> str:
    """Return the limits of a budget as text. A limit that is None is left out.

    >>> budget_line({"usd": 2, "gpu_hours": None, "wall_clock": None, "trials": 9})
    '$2.00, 9 trials'
    """
    parts = [
        usd(limits["usd"]) if limits["usd"] is not None else "",
        f"{amount(limits['gpu_hours'])} GPU-hours" if limits["gpu_hours"] is not None else "",
        f"{span(limits['wall_clock'])} of wall clock" if limits["wall_clock"] is not None else "",
        plural(limits["trials"], "trial") if limits["trials"] is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _age(row: Mapping[str, Any]) -> tuple[str, int, int, int, str]:
    return row["updated_at"], row["steps"], row["attempts"], row["preemptions"], row["state"]


# The rate is averaged over this time, because spend grows in jumps: it is posted once per lease.
WINDOW_S = 300.0
LEAST_S = 30.0  # A rate over a shorter time would vary too much.


class SpendRate:
    """The rate at which a job spends money, from samples of its spend. The times of the samples are in seconds, by any monotonic clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def note(self, at_s: float, usd: float) -> None:
        self._samples.append((at_s, usd))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - WINDOW_S:
            self._samples.popleft()

    def usd_per_hour(self, at_s: float, running_s: float) -> float | None:
        """Return the rate of spending over the last five minutes. Return the mean rate of the whole job if nothing was spent in these
        minutes, or if the samples cover less than 30 s.

        Return None if the job has spent nothing, or has run for less than a second.
        """
        if not self._samples:
            return None
        (began, first), (_, last) = self._samples[0], self._samples[-1]
        if at_s - began >= LEAST_S and last > first:
            return (last - first) / (at_s - began) * 3600
        return last / running_s * 3600 if last and running_s >= 1 else None


@dataclass(frozen=True, slots=True)
class FirstLimit:
    """The limit that will be reached first, and the seconds until then."""

    limit: str
    seconds: float


def first_limit(
    budget: Mapping[str, Any], spend: Mapping[str, Any], running_s: float, usd_per_hour: float | None
) -> FirstLimit | None:
    """Return the limit that will be reached first, or None if none can be predicted.

    The time until the money runs out is computed from `usd_per_hour`. The time until the GPU-hours run out is computed from their mean rate over
    the whole job.
    """
    limits = []
    if budget["wall_clock"] is not None:
        limits.append(FirstLimit("wall clock", max(0.0, budget["wall_clock"] - running_s)))
    if budget["usd"] is not None and usd_per_hour:
        limits.append(FirstLimit("money", max(0.0, budget["usd"] - spend["usd"]) / usd_per_hour * 3600))
    if budget["gpu_hours"] is not None and spend["gpu_hours"] and running_s >= 1:
        left = max(0.0, budget["gpu_hours"] - spend["gpu_hours"])
        limits.append(FirstLimit("GPU-hours", left / spend["gpu_hours"] * running_s))
    return min(limits, key=lambda limit: limit.seconds, default=None)
