"""The results of jobs that mirrors write, and the port through which a follower reads it."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from tuner.domain.job import FINAL, JobState
from tuner.domain.money import Cost
from tuner.domain.objective import Mode
from tuner.domain.space import Config, Parameter
from tuner.domain.time import Instant
from tuner.domain.trial import TRIAL_FINAL, TrialState


@dataclass(frozen=True, slots=True)
class Position:
    """How far a job is mirrored. A mirror stores it with the job's data."""

    seq: int  #: The number of the last mirrored event.
    state: str  #: The job's state then.
    exports: int = 0  #: How many of its exports had succeeded.

    def __str__(self) -> str:
        return f"{self.seq} {self.state} {self.exports}"

    @classmethod
    def parse(cls, text: object) -> Self | None:
        """Return the position, or None if the text is not a position. The job is then mirrored from its start."""
        match = re.fullmatch(r"(\d+) (\w*) (\d+)", str(text))
        return cls(int(match[1]), match[2], int(match[3])) if match else None


@dataclass(frozen=True, slots=True)
class MirroredJob:
    id: str
    name: str
    owner: str | None
    tags: Mapping[str, str]
    trainable: str
    metric: str
    mode: Mode
    parameters: Mapping[str, Parameter]
    max_step: int | None
    rungs: tuple[int, ...]
    budget_usd: float | None
    budget_gpu_hours: float | None
    state: JobState
    stop_reason: str | None
    spent: Cost
    page: str
    created_at: Instant
    ended_at: Instant | None
    best: tuple[str, float] | None = None  #: The trial with the best metric, and that metric.

    def attributes(self) -> dict[str, Any]:
        best_trial, best_metric = self.best or (None, None)
        return {
            "owner": self.owner,
            "trainable": self.trainable,
            "budget_usd": self.budget_usd,
            "budget_gpu_hours": self.budget_gpu_hours,
            "spent_usd": self.spent.usd.usd,
            "spent_gpu_hours": round(self.spent.gpu_hours, 9),
            "best_trial": best_trial,
            "best_metric": best_metric,
            "state": self.state,
            "stop_reason": self.stop_reason,
        }


@dataclass(frozen=True, slots=True)
class Model:
    """Files of a trial that become a version of a registered model: a checkpoint, or an exported file."""

    trial: str
    directory: str  #: The directory for the files among those of the trial.
    tags: Mapping[str, str]  #: They identify the version, together with the job and the trial.
    #: Fetches the files, which must not be changed and exist as long as the context is open. It is None if they are gone or damaged.
    fetch: Callable[[], AbstractContextManager[Path | None]]


#: Returns the models of a job that must be registered.
ListModels = Callable[[str], Sequence[Model]]


@dataclass(frozen=True, slots=True)
class MirroredReport:
    """One report: `value` is the objective's metric, `best` the best up to this step, `cost` what training to this step costs."""

    step: int
    at: Instant
    value: float | None
    metrics: Mapping[str, Any]
    cost: Cost
    best: float | None = None

    def numbers(self, metric: str) -> dict[str, float]:
        """Return every reported metric that is a number, the objective's best value so far as `best_METRIC`, and the cost.

        The cost comes last: if a mirror that writes them in this order has the cost of a step, it has the whole step.
        """
        numbers = {} if self.best is None else {f"best_{metric}": self.best}
        numbers |= {name: value for name, value in self.metrics.items() if _is_number(value)}
        if self.value is not None:
            numbers[metric] = self.value
        return {**numbers, "gpu_hours": self.cost.gpu_hours, "cost_usd": self.cost.usd.usd}


@dataclass(frozen=True, slots=True)
class MirroredTrial:
    """A trial after a set of changes, and its `reports` in these changes.

    `value` is the objective's metric of its newest step, `violation` that step's violation of the job's constraints, and `best` the best
    metric of all steps that violate none.
    """

    id: str
    number: int
    config: Config
    state: TrialState
    reason: str
    value: float | None
    best: float | None
    violation: float | None
    cost: Cost
    attempts: int
    preemptions: int
    created_at: Instant
    updated_at: Instant
    reports: Sequence[MirroredReport] = ()

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that are known."""
        attributes = {
            "paid_usd": self.cost.usd.usd,
            "gpu_hours": round(self.cost.gpu_hours, 9),
            "attempts": self.attempts,
            "preemptions": self.preemptions,
            "latest_metric": self.value,
            "reason": self.reason or None,
        }
        return {name: value for name, value in attributes.items() if value is not None}

    @property
    def is_final(self) -> bool:
        return self.state in TRIAL_FINAL


@dataclass(frozen=True, slots=True)
class MirroredChanges:
    """The changes of a job from one position to another."""

    job: MirroredJob
    trials: Sequence[MirroredTrial]
    upto: Position
    has_new_exports: bool = False  #: Whether an export has succeeded since the position before.

    @property
    def is_end(self) -> bool:
        """Return whether the job has ended and these changes include its last event.

        Trials that are still paused then can resume only after a top-up.
        """
        return self.job.state in FINAL and self.upto.state == self.job.state


class ResultSource(Protocol):
    """The port through which mirrors read jobs. It may be called from several threads.

    Its methods raise TunerError if the database does not answer.
    """

    def heads(self, among: Collection[str] | None) -> dict[str, Position]:
        """Return the current positions of the jobs that have not ended and of those in `among`, or of all jobs if it is None."""

    def changes(self, job: str, after: Position | None) -> MirroredChanges:
        """Return the next changes of a job after a position. Their number is bounded."""


class Mirror(Protocol):
    """The port through which a follower writes jobs to another tool. It is used by one thread.

    After any exception the mirror counts as failed and is opened again.
    """

    def positions(self) -> dict[str, Position]:
        """Return the position of each job in the mirror."""

    def write(self, changes: MirroredChanges) -> bool:
        """Write the changes that the mirror does not have yet, then the position, so that a repeat creates no duplicates.

        Return False if the mirror had to delete the job, which must then be mirrored from its start.
        """

    def close(self) -> None: ...


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0
