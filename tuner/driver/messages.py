"""The messages that a worker sends to its driver, parsed as they arrive, and the outcome of an attempt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, get_args

from tuner.domain import events as ev
from tuner.domain.cost import Meter
from tuner.domain.environment import Environment
from tuner.domain.objective import number
from tuner.domain.text import storable
from tuner.domain.time import Instant
from tuner.domain.trial import CAUSES, AttemptCause, Outcome
from tuner.domain.usage import Usage
from tuner.worker.orders import ActorMessage, EndState, FailureFields, WorkerState

T = TypeVar("T")
ENDED: frozenset[WorkerState] = frozenset(get_args(EndState))
# A trial fails after this many lost attempts in a row without a new step or a newer checkpoint. Without this limit, a trial that is lost at
# another step each time would use up the budget. The limit is high, because crashes of machines are not the trial's fault. Each `Lost` event
# records the limit, so that recorded jobs replay unchanged after it is changed.
MOST_LOST = 100
# Limits for listing the metrics that were reported instead of the objective.
NAMES_KEPT, NAME_CHARS = 30, 60


@dataclass(frozen=True, slots=True)
class StepReport:
    """One report of a trial. `meter` is the reading of the attempt's meter at this report."""

    step: int
    metrics: Mapping[str, object]
    resumable: bool
    meter: Meter
    at: Instant
    last: bool = False  #: Whether user code has returned, so that the trial is complete with this report.

    def value(self, metric: str) -> float | None:
        """Return the value of `metric` as a number, or None if the report lacks it or it is not a number."""
        return number(self.metrics.get(metric))

    def names(self) -> tuple[str, ...]:
        """Return the names of the first `NAMES_KEPT` metrics, each cut to `NAME_CHARS`, for an error message about a missing objective."""
        return tuple(name[:NAME_CHARS] for name in sorted(self.metrics)[:NAMES_KEPT])


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that became durable."""

    step: int
    uri: str
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SavedPart:
    """A checkpoint that was saved in the middle of a step and has become durable."""

    step: int  #: The last finished step.
    train_ns: int  #: The attempt's training time up to the checkpoint.


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt ended without an order of the driver."""

    kind: str
    type: str
    message: str
    traceback: str = ""

    @classmethod
    def parse(cls, error: FailureFields) -> "AttemptFailure":
        texts = (error["kind"], error["type"], error["message"], error["traceback"])
        return cls(*map(_text, texts))

    @property
    def is_storage_failure(self) -> bool:
        """Whether the storage caused the failure, and not the trial."""
        return self.kind == "storage"

    @property
    def is_of_the_machines(self) -> bool:
        """Whether a machine or its worker caused the failure, and not the trial.

        Another process took the port at which the ranks of the attempt connect, or a node was lost, or a thread of the worker failed, for
        example because too many files were open. The next attempt gets another port, node or process, so it may succeed.
        """
        return self.kind in ("port", "worker", "supervisor")

    @property
    def summary(self) -> str:
        """The failure in one line of at most 500 characters: its type and the first line of its message."""
        first = self.message.strip().splitlines()[0] if self.message.strip() else ""
        return f"{self.type}: {first}"[:500] if self.type else first[:500]


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """One message of a worker."""

    trial: str
    attempt: int
    state: WorkerState
    meter: Meter
    reports: tuple[StepReport, ...] = ()  #: New reports since the last message.
    checkpoints: tuple[Saved, ...] = ()  #: Checkpoints that became durable since the last message.
    need_ns: int = 0  #: By how many nanoseconds the worker requests to extend its lease.
    saved_step: int | None = None  #: The step of the newest durable checkpoint.
    failure: AttemptFailure | None = None
    #: How many nanoseconds of the setup time prepared the worker itself. The worker's next attempt does not repeat this.
    warming_ns: int = 0
    node: str = ""  #: Ray's id of the worker's node. Empty if it is not known.
    has_notice: bool = False  #: Whether the worker's machine is about to be taken away.
    #: The step of the checkpoint that the attempt continued from. 0 if there was none, None if it is not known yet.
    from_step: int | None = None
    #: Time, in nanoseconds, that is not the trial's overhead: retries of the restore and of the last save because the storage failed, and
    #: the part of the setup in which a dataset was downloaded.
    outage_ns: int = 0
    #: Facts about the machine from its cloud, such as its type and region. Empty if they are not known yet.
    machine: Mapping[str, str] = field(default_factory=dict)
    usage: Usage | None = None
    environment: Environment | None = None  #: The attempt's environment, sent in one of its messages.
    #: The newest checkpoint from the middle of a step, if it became durable since the last message.
    part: SavedPart | None = None
    carried_ns: int = (
        0  #: If the attempt began in the middle of a step: how long earlier attempts had trained that step.
    )
    #: The attempt's nodes in addition to `node`, as far as the worker knows them: Ray's id, and the facts that the cloud reports.
    others: tuple[tuple[str, Mapping[str, str]], ...] = ()
    #: Whether the worker can run no more attempts: another node of its trials was lost, or processes of an attempt could not be killed.
    retires: bool = False

    @classmethod
    def parse(cls, message: ActorMessage) -> "WorkerMessage":
        part, error = message["part"], message["error"]
        return cls(
            trial=message["trial"],
            attempt=message["attempt"],
            state=message["state"],
            meter=Meter.of(message["meter"]),
            reports=tuple(
                StepReport(
                    report["step"],
                    {_text(name): _text(value) for name, value in report["metrics"].items()},
                    report["resumable"],
                    Meter.of(report["meter"]),
                    Instant(report["at_ns"]),
                    report["last"],
                )
                for report in message["reports"]
            ),
            checkpoints=tuple(
                Saved(saved["step"], saved["uri"], saved["bytes"], saved["seconds"])
                for saved in message["checkpoints"]
            ),
            part=None if part is None else SavedPart(part["step"], part["train_ns"]),
            carried_ns=message["carried_ns"],
            need_ns=message["need_ns"],
            saved_step=message["saved_step"],
            warming_ns=message["warming_ns"],
            node=message["node"],
            has_notice=message["leaving"],
            from_step=message["from_step"],
            outage_ns=message["outage_ns"],
            machine=message["machine"],
            others=tuple(message["others"]),
            retires=message["retires"],
            usage=Usage.parse(message["usage"]),
            environment=Environment.parse(message["environment"]),
            failure=None if error is None else AttemptFailure.parse(error),
        )


def _text(value: T) -> T:
    """Replace the characters of a string from user code that the database does not accept. Return any other value unchanged."""
    return storable(value) if isinstance(value, str) else value  # type: ignore[return-value]


_ENDS: dict[str, Outcome] = {
    "paused": "paused",
    "finished": "completed",
    "ended": "completed",
    "stopped": "stopped",
    "failed": "failed",
    "preempted": "preempted",
}
# After these outcomes the trial continues, so training after its newest checkpoint has to be repeated and counts as lost.
DONE_AGAIN: frozenset[Outcome] = frozenset({"paused", "lost", "preempted"})
# Kinds of failures that a machine's shutdown can cause too: killed processes and failed saves. On a machine with a preemption notice, they
# count as a preemption. If the trial itself was the cause, it fails again on another machine.
_BY_ITS_MACHINE = {"killed", "saving"}


def end_of(progress: WorkerMessage) -> Outcome:
    """Return the outcome of an attempt from its worker's last message.

    If the storage failed, a port was taken, a node was lost or the worker failed, the outcome is "lost", because the trial is not at fault. If the machine
    had a preemption notice, a failure of a kind that its shutdown can cause counts as a preemption.
    """
    if progress.state == "failed" and progress.failure is not None:
        if progress.has_notice and (
            progress.failure.is_storage_failure or progress.failure.kind in _BY_ITS_MACHINE
        ):
            return "preempted"
        if progress.failure.is_storage_failure or progress.failure.is_of_the_machines:
            return "lost"
    return _ENDS[progress.state]


def cause_of(failure: AttemptFailure | None) -> AttemptCause:
    """Return the cause to record for an attempt that was lost or failed. `failure` is None if the worker sent no last message."""
    if failure is None:
        return "worker"
    return next((cause for cause in CAUSES if cause == failure.kind), "other")


def event_of(
    end: Outcome, at: Instant, trial: str, *, saved: int, reason: str, in_step: bool = False
) -> ev.AttemptEnded:
    """Return the event of an attempt's end.

    Args:
        end: How it ended.
        at: When it ended.
        trial: The trial.
        saved: The step of the trial's newest checkpoint. 0 if there is none.
        reason: Why it failed, was lost or was preempted.
        in_step: Whether the attempt saved a checkpoint in the middle of the step after `saved`.
    """
    match end:
        case "completed":
            return ev.Completed(at, trial)
        case "stopped":
            return ev.Stopped(at, trial)
        case "failed":
            return ev.Failed(at, trial, reason)
        case "lost":
            return ev.Lost(at, trial, saved, reason, in_step, MOST_LOST)
        case "preempted":
            return ev.Preempted(at, trial, saved, reason, in_step)
        case "paused":
            return ev.Paused(at, trial, saved)
