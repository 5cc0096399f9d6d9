"""The ports of a job's loop: `World` commands workers, `Clock` returns the time, and `Journal` records what happens.

The loop makes one transaction of the journal per event, so that no event is recorded in part.

`Journal` is implemented by `tuner.store.journal.SqlJournal` for real jobs and by `tuner.simulator.journal.MemoryJournal`
for simulated ones. One test suite covers both.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind
from tuner.domain.events import Event
from tuner.domain.job import JobState, StopReason
from tuner.domain.ledger import Account, Allowance
from tuner.domain.money import FREE, Cost, Rate
from tuner.domain.offer import Offer
from tuner.domain.records import AttemptRow, CheckpointRow, OpenHold, ReportRow
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.domain.usage import Usage


@dataclass(frozen=True, slots=True)
class Assignment:
    """The order to begin an attempt on a worker."""

    trial: str
    attempt: int
    config: Config
    target_step: int | None  #: The step to train to, or None for the trial's last step.
    lease_ns: int  #: The length of its lease: the time that its hold pays for.
    restore_step: int | None  #: The step of the checkpoint to continue from, or None to begin without one.
    not_before_ns: int = 0  #: The earliest start, on the loop's monotonic clock.
    offer: Offer | None = None  #: The offer to run on, or None for any machine.
    reported_step: int = 0  #: The trial's last reported step.
    #: The job's best score so far. A worker always saves the state of a step with a better score.
    job_best: float | None = None

    seed: int = 0  #: A number to add to the job's seed. It is not 0 if the trial repeats the configuration of another trial.

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """Return the labels that the node must have, or () for any node."""
        return self.offer.labels if self.offer is not None else ()


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """The facts about a job that the loop needs in addition to the job's spec. They do not change while the driver runs."""

    job: str
    #: The rate of the most expensive machine that the job's trials may be given. Decisions estimate costs
    #: with it.
    rate: Rate
    concurrency: int
    slice_ns: int  #: The usual length of a lease.


class World(Protocol):
    """Send commands to workers without waiting for them.

    Workers reply with messages, which the caller passes to `Loop.progress`. Methods must not raise.
    """

    def room(self) -> int:
        """Return how many attempts can run at once on the workers that have started. Workers that get no further attempt do not count."""

    def begin(self, assignment: Assignment) -> None: ...

    def continue_to(self, trial: str, target_step: int | None, lease_ns: int, job_best: float | None) -> None:
        """Let the trial's running attempt train up to `target_step`, or to the trial's last step if it is None.

        `lease_ns` is the length of the attempt's whole lease, counted from its beginning. `job_best` is the
        job's best score so far, or None if there is none.
        """

    def pause(self, trial: str) -> None: ...

    def finish(self, trial: str) -> None: ...

    def stop(self, trial: str, *, keep_best: bool) -> None:
        """Stop the trial's attempt at once.

        With `keep_best`, its worker first saves the state of its best step, if this step is the job's best. For this, the trial trains until
        it reports or asks whether to save.
        """


class Clock(Protocol):
    def now(self) -> Instant:
        """Return the wall clock's time. It may jump, so it is used for dates only, never to measure durations."""

    def elapsed_ns(self) -> int:
        """Return the time of a monotonic clock, in nanoseconds, to measure durations. Its zero has no meaning."""


class JournalTx(Protocol):
    """One transaction: the records of one turn of the loop.

    Other readers see the records once the `with` block has ended. An exception undoes all of them.
    """

    def append(self, event: Event) -> int:
        """Record an event and return its sequence number. The numbers of a job start at 1 and have no gaps."""

    def hold(self, hold: OpenHold) -> bool:
        """Place a hold (reserve money) and return True. Also return True if the same hold exists already.

        Return False, and change nothing, if posted + held + cost would exceed the budget.
        """

    def settle(self, hold_id: str, used: Mapping[CostKind, Cost], *, at: Instant) -> None:
        """Settle a hold: post the used part, by cost kind, and release the rest. A second call changes nothing.

        Raises:
            ValueError: The used part exceeds the hold.
        """

    def correct(
        self, correction_id: str, *, trial: str, attempt: int, costs: Mapping[CostKind, Cost], at: Instant
    ) -> None:
        """Move posted cost between cost kinds, such as from `train` to `lost`.

        The amounts in `costs` add up to zero. A second call with the same `correction_id` changes nothing.
        """

    def account(self) -> Account:
        """Return the account as this transaction sees it."""

    def allowance(self, at: Instant, *, freeing: str = "", freed: Cost = FREE) -> Allowance:
        """Return the largest hold that the job's budget and its shared budgets have room for at this time.

        A hold that fits into the result is not refused in the same transaction. With `freeing`, the result assumes that the hold with
        this id has already been settled and has released `freed`.
        """

    def put_trial(
        self, trial: str, state: TrialState, *, at: Instant, config: Config | None = None, reason: str = ""
    ) -> None:
        """Create the trial or change its state."""

    def put_attempt(self, attempt: AttemptRow) -> None:
        """Create or replace the attempt."""

    def put_usage(self, trial: str, attempt: int, usage: Usage) -> None:
        """Create or replace the record of what the attempt has used of its machine so far."""

    def put_report(self, report: ReportRow) -> bool:
        """Record a report. If the trial has reported this step before, keep the first report and return False."""

    def reached(self, trial: str, step: int) -> tuple[Cost, int] | None:
        """Return what the trial took to reach this step: the cost and the nanoseconds in its report. Return None without such a report."""

    def posted(self, trial: str, attempt: int) -> dict[CostKind, Cost]:
        """Return the cost that was posted for the attempt so far, by kind, including corrections."""

    def put_checkpoint(self, checkpoint: CheckpointRow) -> None:
        """Create or replace the checkpoint."""

    def keep_checkpoints(self, trial: str, *, keep: int) -> None:
        """Remove the records of the trial's checkpoints, except the newest `keep` and that of the best reported step.

        The worker applies the same rule to the files.
        """

    def forget_checkpoints(self, trial: str, *, after_step: int) -> None:
        """Remove the records of the trial's checkpoints after step `after_step`, because they are damaged."""

    def put_job(
        self,
        state: JobState,
        reason: StopReason | None,
        *,
        at: Instant,
        detail: str = "",
        again_at: Instant | None = None,
        waits_for: str = "",
        requests: int = 0,
    ) -> None:
        """Change the job's state.

        The service resumes a paused job at `again_at`, or once the shared budget `waits_for` has room, unless a user has
        requested something else. `requests` is the number of the newest request about a trial that the driver has handled.

        Raises:
            Conflict: `tuner.domain.job.MOVES` does not allow this change.
        """

    def set_limit(self, budget: Budget) -> None:
        """Set the limit of the account and the budget of the job.

        Raises:
            Conflict: The limit is below the sum of the posted and held amounts. `MemoryJournal` raises BudgetRefused instead.
        """


@dataclass(slots=True)
class LoopTurn:
    """One transaction, and the commands to send once it is committed."""

    tx: JournalTx
    at: Instant
    began_ns: int  #: When the turn began, on the loop's monotonic clock.
    commands: list[Callable[[], None]] = field(default_factory=list)
    #: The trials that were allowed to continue in this turn. Their workers must be notified, even if their leases are not renewed.
    continued: set[str] = field(default_factory=set)


class Journal(Protocol):
    """The record of one job, used by one thread.

    Every transaction raises `Fenced` if this driver is not the job's current one.
    """

    def transaction(self) -> AbstractContextManager[JournalTx]: ...

    def events(self) -> Iterable[Event]:
        """Return all recorded events, oldest first."""

    def open_holds(self) -> list[OpenHold]: ...

    def attempts(self) -> list[AttemptRow]:
        """Return the newest attempt of each trial."""

    def newest_checkpoints(self) -> dict[str, int]:
        """Return the step of the newest durable checkpoint for each trial that has one."""

    def running_ns(self) -> int:
        """Return how long the job was in the state `running` before the current launch, in nanoseconds."""

    def account(self) -> Account: ...
