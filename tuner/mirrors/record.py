"""What a mirror is told of jobs, and the port by which a follower reads it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from tuner.domain.job import FINAL, JobState
from tuner.domain.money import Cost
from tuner.domain.objective import Mode
from tuner.domain.space import Config, Parameter
from tuner.domain.time import Instant
from tuner.domain.trial import TRIAL_FINAL, TrialState


@dataclass(frozen=True, slots=True)
class Position:
    """How far a job is told: up to which of its events, and in which state. A mirror keeps it with what it holds."""

    seq: int
    state: str

    def __str__(self) -> str:
        return f"{self.seq} {self.state}"

    @classmethod
    def parse(cls, text: object) -> Self | None:
        """None for what is none: the job is told from its beginning then."""
        seq, _, state = str(text).partition(" ")
        return cls(int(seq), state) if seq.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Job:
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


@dataclass(frozen=True, slots=True)
class Point:
    """One report: `value` is the objective's metric, `best` the best up to this step, `cost` what training to this step costs."""

    step: int
    at: Instant
    value: float | None
    metrics: Mapping[str, Any]
    cost: Cost
    best: float | None = None

    def numbers(self, metric: str) -> dict[str, float]:
        """Return every metric that is a number, the objective's among them, and `best_METRIC`: the best of it so far."""
        found = {name: value for name, value in self.metrics.items() if _is_number(value)}
        if self.best is not None:
            found = {f"best_{metric}": self.best, **found}
        return found if self.value is None else {**found, metric: self.value}


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial as it stood at the end of these changes, and what it has reported since the ones before.

    `value` is the objective's metric of its newest step, and `best` the best of all its steps.
    """

    id: str
    number: int
    config: Config
    state: TrialState
    reason: str
    value: float | None
    best: float | None
    cost: Cost
    attempts: int
    preemptions: int
    created_at: Instant
    updated_at: Instant
    points: Sequence[Point] = ()

    @property
    def is_final(self) -> bool:
        return self.state in TRIAL_FINAL


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to a job behind a position, up to another one."""

    job: Job
    trials: Sequence[Trial]
    upto: Position

    @property
    def is_end(self) -> bool:
        """Whether the job has ended, and is told to its end. Trials that wait on a rung then wait for nothing but a top-up."""
        return self.job.state in FINAL and self.upto.state == self.job.state


class Record(Protocol):
    """May be called from several threads. Raises TunerError where the database does not answer."""

    def heads(self, among: Collection[str] | None) -> dict[str, Position]:
        """How far jobs are by now: those that have not ended, and these; all for None."""

    def changes(self, job: str, after: Position | None) -> Changes:
        """The next ones, a bounded number of them."""


class Mirror(Protocol):
    """Used by one thread. Any exception means that it is out of order; it is opened anew then."""

    def positions(self) -> dict[str, Position]:
        """How far it holds each job."""

    def write(self, changes: Changes) -> bool:
        """Writes what it does not hold yet, then the position, so that a repeat makes no doubles. False where it had to forget the
        job, which is to be told from its beginning."""

    def close(self) -> None: ...


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value - value == 0
