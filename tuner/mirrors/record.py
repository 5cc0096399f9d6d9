"""The results of jobs that mirrors write, and the ports through which a follower reads jobs and writes them to a mirror."""

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard

from tuner.domain.job import FINAL, JobState
from tuner.domain.money import Cost
from tuner.domain.objective import Mode
from tuner.domain.space import Config, Parameter
from tuner.domain.time import Instant
from tuner.domain.trial import TRIAL_FINAL, TrialState


@dataclass(frozen=True, slots=True)
class Position:
    """How far a job is recorded in the database, or how far it is copied to a mirror. The mirror stores the position with the job's data."""

    seq: int  #: The number of the last event that is included.
    state: str  #: The job's state at this position.
    exports: int = 0  #: How many of the job's exports have succeeded at this position.

    def __str__(self) -> str:
        return f"{self.seq} {self.state} {self.exports}"

    @classmethod
    def parse(cls, text: object) -> Self | None:
        """Parse the text that `str` returns for a position. Return None for any other text.

        A job without a valid position is mirrored from its start.
        """
        match = re.fullmatch(r"(\d+) (\w*) (\d+)", str(text))
        return cls(int(match[1]), match[2], int(match[3])) if match else None


@dataclass(frozen=True, slots=True)
class MirroredJob:
    id: str
    project: str
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
            "project": self.project,
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
class MirroredModel:
    """Files of a trial that become a version of a registered model: a checkpoint, or an exported file."""

    trial: str
    directory: str  #: The directory for these files, relative to the trial's model files.
    tags: Mapping[str, str]  #: Together with the job and the trial, the tags identify the version.
    #: Returns a context manager for a directory with the files. The files must not be changed, and they exist only while the context is
    #: open. The context's value is None if the files are missing or damaged.
    fetch: Callable[[], AbstractContextManager[Path | None]]


#: A function that returns the models of a job, given by its id, that must be registered.
ListModels = Callable[[str], Sequence[MirroredModel]]


@dataclass(frozen=True, slots=True)
class MirroredReport:
    """One report of a trial."""

    step: int
    at: Instant
    value: float | None  #: The value of the objective's metric.
    metrics: Mapping[str, Any]
    cost: Cost  #: The cost of training the trial up to this step.
    best: float | None = None  #: The best feasible value of the objective's metric up to this step.

    def numbers(self, metric: str) -> dict[str, float]:
        """Return every reported metric that is a finite number, the best value so far, and the cost.

        The cost comes last. A mirror that writes the numbers in this order has all numbers of a step as soon as it has the cost of the step.

        Args:
            metric: The name of the objective's metric. The best value so far gets the name `best_METRIC`.
        """
        numbers = {} if self.best is None else {f"best_{metric}": self.best}
        numbers |= {name: value for name, value in self.metrics.items() if _is_number(value)}
        if _is_number(self.value):
            numbers[metric] = self.value
        return {**numbers, "gpu_hours": self.cost.gpu_hours, "cost_usd": self.cost.usd.usd}


@dataclass(frozen=True, slots=True)
class MirroredTrial:
    """The state of a trial after a set of changes, with the reports that are part of this set."""

    id: str
    number: int
    config: Config
    state: TrialState
    reason: str
    value: float | None  #: The objective's metric at the newest step.
    best: float | None  #: The best value of the objective's metric over all steps that violate no constraint.
    violation: float | None  #: The violation of the job's constraints at the newest step.
    cost: Cost
    attempts: int
    preemptions: int
    created_at: Instant
    updated_at: Instant
    reports: Sequence[MirroredReport] = ()  #: Only the reports in this set of changes.

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the trial that mirrors show, without those that are not known."""
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
    """The changes of a job from one position up to the position `upto`."""

    job: MirroredJob
    trials: Sequence[MirroredTrial]
    upto: Position
    has_new_exports: bool = False  #: Whether an export succeeded between the two positions.

    @property
    def is_end(self) -> bool:
        """Whether the job has ended and these changes include its last event.

        Trials that are paused at this point can resume only after a top-up of the job.
        """
        return self.job.state in FINAL and self.upto.state == self.job.state


class ResultSource(Protocol):
    """The port through which mirrors read jobs. It may be called from several threads.

    Its methods raise TunerError if the database does not answer.
    """

    def heads(self, among: Collection[str] | None) -> dict[str, Position]:
        """Return the current recorded positions of jobs, by job.

        The jobs are those that have not ended, and those in `among`. If `among` is None, they are all jobs.
        """

    def changes(self, job: str, after: Position | None) -> MirroredChanges:
        """Return the next changes of a job after the position `after`. None means from the start of the job.

        One call returns a limited number of changes. Call it again with the position `upto` of the result to get more.
        """


class Mirror(Protocol):
    """The port through which a follower writes jobs to another tool. It is used by one thread.

    If a method raises any exception, the follower closes the mirror and opens it again later.
    """

    def positions(self) -> dict[str, Position]:
        """Return the position up to which each job is mirrored, by job."""

    def write(self, changes: MirroredChanges) -> bool:
        """Write the changes that the mirror does not have yet, and then the position.

        The call may be repeated after a failure and must not create duplicates. Return False if the other tool does not allow these changes
        and the mirror has therefore deleted its copy of the job. The follower then mirrors the job again from its start.
        """

    def close(self) -> None: ...


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number. Return False for an integer that is too large for a float, because mirrors store floats."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max
