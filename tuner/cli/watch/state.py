"""The state of a job as known from its events.

The state depends only on the events. It is the same if events are repeated, or if events of different trials arrive in another order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.cli.escape import config, number, plural, span, usd

Kind = Literal["best", "promoted", "preempted", "failed", "state"]


@dataclass(frozen=True, slots=True)
class Happening:
    """An event that is worth showing to the user."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a job that do not change while it runs."""

    job: str
    name: str
    metric: str
    maximise: bool
    unit: str
    last_step: int | None
    rungs: tuple[int, ...]
    usd_per_hour: float

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> "Facts":
        """Return the facts of a job from its REST representation."""
        fidelity, objective = job["fidelity"], job["objective"]
        return cls(
            job["id"],
            job["name"],
            objective["metric"],
            objective["mode"] == "max",
            fidelity["unit"],
            fidelity["max"],
            tuple(job["rungs"]),
            job["price"]["trial_usd_per_hour"],
        )


@dataclass(frozen=True, slots=True)
class Reached:
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
class Watched:
    facts: Facts
    job: Mapping[str, Any] = field(default_factory=dict)
    spend: Mapping[str, Any] = field(default_factory=dict)
    trials: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    best_of: dict[str, Reached] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    """The last step that each trial reported."""
    latest: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    """The step and the metric of each trial's newest report."""

    @property
    def state(self) -> str:
        return str(self.job.get("state", ""))

    @property
    def best(self) -> Reached | None:
        return min(self.best_of.values(), key=self._order, default=None)

    def take(self, kind: str, data: Mapping[str, Any]) -> list[Happening]:
        """Add an event to the state, and return what to show the user about it. Return [] if it contains nothing new."""
        if kind == "spend":
            self.spend = data
        notes = {"report": self._report, "trial": self._trial, "job": self._job}
        return notes[kind](data) if kind in notes else []

    def leaders(self, count: int) -> list[Reached]:
        """Return the best report of each of the `count` best trials, best first."""
        return sorted(self.best_of.values(), key=self._order)[:count]

    def latest_of(self, trial: str) -> float | None:
        """Return the metric of the trial's newest report."""
        return self.latest.get(trial, (0, None))[1]

    def ladder(self) -> list[RungCount]:
        """Return for each rung how many trials reached it and how many continued beyond it."""
        steps = self.steps.values()
        return [
            RungCount(rung, sum(step >= rung for step in steps), sum(step > rung for step in steps))
            for rung in self.facts.rungs
        ]

    def _order(self, one: Reached) -> tuple[float, float, int, str]:
        """Return a sort key: better metrics first, and the cheapest of equal ones first, as in `tuner best`."""
        return (-one.metric if self.facts.maximise else one.metric, one.cost_usd, one.step, one.trial)

    def _report(self, data: Mapping[str, Any]) -> list[Happening]:
        trial, step, value = data["trial"], data["step"], data["metric"]
        happenings = self._climbed(trial, step)
        if step >= self.latest.get(trial, (0, None))[0]:
            self.latest[trial] = (step, value)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return happenings
        found, before, known = (
            Reached(trial, step, value, data["cost_usd"]),
            self.best,
            self.best_of.get(trial),
        )
        if known is None or self._order(found) < self._order(known):
            self.best_of[trial] = found
            if before is None or (found.metric != before.metric and self._order(found) < self._order(before)):
                text = f"best {self.facts.metric} {number(value)} by {trial} at {self.facts.unit} {step}"
                happenings.append(Happening("best", text))
        return happenings

    def _climbed(self, trial: str, step: int) -> list[Happening]:
        before = self.steps.get(trial)
        if before is not None and step <= before:
            return []
        self.steps[trial] = step
        passed = [rung for rung in self.facts.rungs if before is not None and before <= rung < step]
        return [Happening("promoted", f"{trial} promoted beyond {self.facts.unit} {rung}") for rung in passed]

    def _trial(self, data: Mapping[str, Any]) -> list[Happening]:
        known = self.trials.get(data["id"], {})
        if known and _age(data) <= _age(known):
            return []
        self.trials[data["id"]] = data
        happenings = []
        preempted = data["preemptions"] - known.get("preemptions", 0)
        if preempted > 0:
            at = f"at {self.facts.unit} {data['steps']}"
            often = f" ({plural(data['preemptions'], 'time')})" if data["preemptions"] > 1 else ""
            happenings.append(Happening("preempted", f"{data['id']} preempted {at}{often}"))
        if data["state"] == "failed" and known.get("state") != "failed":
            happenings.append(
                Happening("failed", f"{data['id']} failed: {data['reason'] or 'for no known reason'}")
            )
        return happenings

    def _job(self, data: Mapping[str, Any]) -> list[Happening]:
        before, self.job = self.job, data
        happenings = []
        if data["state"] != before.get("state"):
            why = data["stop_reason"] or ""
            detail = f": {data['detail']}" if data["detail"] and data["state"] in ("failed", "paused") else ""
            happenings.append(Happening("state", f"{data['state']} {why}".rstrip() + detail))
        limits = data["budget"]
        if before and limits != before["budget"]:
            happenings.append(Happening("state", f"the budget is now {budget_line(limits)}"))
        return happenings


def budget_line(limits: Mapping[str, Any]) -> str:
    """Return the limits that are set as text.

    >>> budget_line({"usd": 2, "gpu_hours": None, "wall_clock": None, "trials": 9})
    '$2.00, 9 trials'
    """
    parts = [
        usd(limits["usd"]) if limits["usd"] is not None else "",
        f"{number(limits['gpu_hours'])} GPU-hours" if limits["gpu_hours"] is not None else "",
        f"{span(limits['wall_clock'])} of wall clock" if limits["wall_clock"] is not None else "",
        plural(limits["trials"], "trial") if limits["trials"] is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def config_of(seen: Watched, trial: str) -> str:
    known = seen.trials.get(trial)
    return "" if known is None else config(known["config"])


def _age(row: Mapping[str, Any]) -> tuple[str, int, int, int, str]:
    return row["updated_at"], row["steps"], row["attempts"], row["preemptions"], row["state"]
