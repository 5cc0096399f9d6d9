"""The events of a job: a closed union of everything that a decision may depend on, each with its time.

Each event is recorded, in order, before the job acts on it. Passing the recorded events to `tuner.tuning.decide` again returns the
same commands. This is how a job continues after one of its processes was killed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.budget import Budget
from tuner.domain.money import Money, Price
from tuner.domain.space import Config
from tuner.domain.time import Instant

Limit = Literal["budget_usd", "budget_gpu_hours", "wall_clock", "window"]

#: The newest version of the decision rules. Version 0 is the rules of jobs that an earlier release launched. Since version 1, the repeats
#: of a confirmation do not count as trials of the budget. Since version 2, a job that `stop.plateau` or `stop.worth` ended has new
#: patience when it is resumed. Since version 3, a job that ended after a confirmation has new patience of `stop.plateau`, too, and a warm
#: start ignores reports after the new job's last step. Since version 4, `auto` suggests no configuration of a finite space again while its
#: candidates include others. Since version 5, `stop.worth` does not count the cost of repeats in a job that is resumed after a confirmation.
#: Since version 6, a past trial that failed after the new job's last step does not count as failed, and
#: checkpoints of later steps are not continued. Since version 7, a job without a last step starts no trial whose end it cannot pay for.
RULES = 7


@dataclass(frozen=True, slots=True)
class Launched:
    """A driver started, for the first time or again. Attempts of an earlier driver no longer run."""

    at: Instant
    #: Step of the newest checkpoint of each trial that ran before, by trial id. 0 if the trial has no checkpoint.
    saved: Mapping[str, int] = field(default_factory=dict)
    #: How many trials may run at once from now on. None if the number has not changed.
    concurrency: int | None = field(default=None, metadata={"new": True})
    #: Version of the decision rules from now on. Events before this launch are replayed with the version of their own launch.
    rules: int = field(default=0, metadata={"new": True})


@dataclass(frozen=True, slots=True)
class Inherited:
    """The progress of an earlier job's trial, up to the checkpoint that a new trial continues from."""

    job: str
    trial: str
    curve: tuple[tuple[int, float], ...]  #: Step and metric, up to the step of the checkpoint.
    trained_ns: int  #: Training time of these steps.
    #: The total violation of this job's constraints at each step of the curve. None if all steps are feasible.
    violations: tuple[float, ...] | None = field(default=None, metadata={"new": True})

    @classmethod
    def of_reports(
        cls, job: str, trial: str, reports: Iterable[tuple[int, float, float | None]], trained_ns: int
    ) -> "Inherited":
        """Build the progress from the reports of an earlier job's trial.

        Args:
            job: The earlier job.
            trial: The trial of that job.
            reports: Step, metric and violation of each report, in ascending order of steps. An unknown violation (None) counts as infinite.
            trained_ns: Training time up to the last report.
        """
        rows = list(reports)
        curve = tuple((step, value) for step, value, _ in rows)
        violations = tuple(math.inf if violates is None else violates for *_, violates in rows)
        return cls(job, trial, curve, trained_ns, violations if any(violations) else None)

    @property
    def step(self) -> int:
        return self.curve[-1][0]


@dataclass(frozen=True, slots=True)
class Suggested:
    """The sampler suggested the next configuration, or reported that it has no more."""

    at: Instant
    trial: str
    config: Config | None  #: None if the sampler has no more configurations.
    inherited: Inherited | None = None  #: The earlier trial that this one continues.


@dataclass(frozen=True, slots=True)
class Predicted:
    """The sampler's model predicted whether a trial should run to its next rung."""

    at: Instant
    trial: str | None  #: None if the remaining budget cannot bring another trial to its last step.
    go: bool  #: False if the trial should wait.


@dataclass(frozen=True, slots=True)
class Reported:
    """A trial finished a step."""

    at: Instant
    trial: str
    step: int
    value: float | None  #: The objective's metric. None if the report has no number for it.
    spent: Money  #: Spend of the job so far, including what running attempts have used of their holds.
    resumable: bool = True  #: Whether a checkpoint of this step can be saved.
    train_ns: int = 0  #: Training time since the last report.
    price: Price | None = None  #: Price of the attempt's machine. None if it is the job's own price.
    #: Names of all reported metrics, if a metric that the job needs is missing. None if none is missing.
    names: tuple[str, ...] | None = field(default=None, metadata={"new": True})
    #: Total time to train the configuration to this step. None if the job has no limits for single trials.
    duration_ns: int | None = field(default=None, metadata={"new": True})
    #: Total cost of training the configuration to this step. None if the job has no limits for single trials.
    cost: Money | None = field(default=None, metadata={"new": True})
    #: The total violation of the job's constraints. None if the job has none, or if one of their metrics is missing.
    violation: float | None = field(default=None, metadata={"new": True})
    #: The first metric of a constraint or the second objective that was not reported as a finite number. None if none is missing.
    lacks: str | None = field(default=None, metadata={"new": True})
    #: The time in which the attempt's new worker prepared itself. 0 if the worker was not new, or if this is not the attempt's first report.
    warming_ns: int = field(default=0, metadata={"new": True})
    #: The attempt's setup and restore until this report, including `warming_ns` but not the time spent waiting for a storage that failed. 0 if
    #: this is not the attempt's first report.
    start_ns: int = field(default=0, metadata={"new": True})
    #: Whether user code has returned, so that the trial is complete with this report.
    last: bool = field(default=False, metadata={"new": True})


@dataclass(frozen=True, slots=True)
class Paused:
    """An attempt ended because its trial was paused. The trial may resume."""

    at: Instant
    trial: str
    step: int  #: Step of the newest checkpoint. 0 if there is none.


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt ended because its trial is complete: its trainable returned, or its last step is finished and the model is saved."""

    at: Instant
    trial: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """An attempt was ended by a `Stop` command. The trial cannot resume."""

    at: Instant
    trial: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code failed."""

    at: Instant
    trial: str
    reason: str  #: One line, equal for failures of the same kind.


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt was lost through no fault of the trial, for example because its worker died."""

    at: Instant
    trial: str
    step: int  #: Step of the newest checkpoint. 0 if there is none.
    reason: str = ""
    #: Whether the attempt saved a checkpoint in the middle of the step after `step`.
    in_step: bool = field(default=False, metadata={"new": True})
    #: The trial fails once this many attempts in a row were lost without progress. None means no limit, as in records of older
    #: releases.
    most: int | None = field(default=None, metadata={"new": True})


@dataclass(frozen=True, slots=True)
class Preempted:
    """The attempt's machine was preempted, with or without a notice."""

    at: Instant
    trial: str
    step: int  #: Step of the newest checkpoint. 0 if there is none.
    reason: str = ""
    #: Whether the attempt saved a checkpoint in the middle of the step after `step`.
    in_step: bool = field(default=False, metadata={"new": True})


@dataclass(frozen=True, slots=True)
class Refused:
    """A hold was refused, because the rest of the budget does not pay for the trial to start or to continue."""

    at: Instant
    trial: str
    limit: Limit  #: The limit that does not allow the hold.
    running: bool = (
        False  #: Whether the trial was running and asked to continue. False if it was about to start.
    )
    above: str = ""  #: The shared budget that refused the hold. Empty if the job's own budget refused it.


@dataclass(frozen=True, slots=True)
class WallClockEnded:
    """The job used up its wall-clock budget."""

    at: Instant


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """The job's time window closed."""

    at: Instant


@dataclass(frozen=True, slots=True)
class ControlRequested:
    """A user made a control request."""

    at: Instant
    what: Literal["pause", "resume", "cancel"]


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    at: Instant
    budget: Budget


@dataclass(frozen=True, slots=True)
class ConcurrencyChanged:
    """A user changed how many trials may run at once."""

    at: Instant
    concurrency: int


@dataclass(frozen=True, slots=True)
class EnqueueRequested:
    """A user wants a configuration to be tried next."""

    at: Instant
    request: int  #: Number of the request, counted within the job from 1.
    config: Config


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user wants a trial to stop for good."""

    at: Instant
    request: int
    trial: str


@dataclass(frozen=True, slots=True)
class PromoteRequested:
    """A user wants a trial to run to its next rung."""

    at: Instant
    request: int
    trial: str


AttemptEnded = Paused | Completed | Stopped | Failed | Lost | Preempted
"""The event that ends an attempt."""
TrialRequest = EnqueueRequested | StopRequested | PromoteRequested
Event = (
    Launched
    | Suggested
    | Predicted
    | Reported
    | AttemptEnded
    | Refused
    | WallClockEnded
    | WindowClosed
    | ControlRequested
    | BudgetChanged
    | ConcurrencyChanged
    | EnqueueRequested
    | StopRequested
    | PromoteRequested
)
