"""The port through which a job's loop remembers: one transaction a turn, so that nothing is half recorded.

Fulfilled by `tuner.store.journal.SqlJournal` for real jobs and by `tuner.engine.simulated.journal.MemoryJournal` for
simulated ones; one suite of tests holds for both.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from tuner.domain.budget import Budget
from tuner.domain.commands import Suggest
from tuner.domain.cost import CostKind
from tuner.domain.events import Event
from tuner.domain.job import JobState, StopReason
from tuner.domain.ledger import Account, Allowance
from tuner.domain.money import FREE, Cost
from tuner.domain.objective import Mode
from tuner.domain.records import AttemptRow, CheckpointRow, OpenHold, ReportRow
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.domain.usage import Usage


class JournalTx(Protocol):
    """One turn's records. Nothing is visible to others until the block is left; an exception undoes all of it."""

    def append(self, event: Event) -> int:
        """Records an event under the job's next sequence number, which is returned (from 1, without gaps)."""

    def hold(self, hold: OpenHold) -> bool:
        """False, and nothing changed, where posted + held + cost would pass the budget. Repeating a hold that exists is True."""

    def settle(self, hold_id: str, used: Mapping[CostKind, Cost], *, at: Instant) -> None:
        """Posts what was used, kind by kind, and releases the rest. Settling a settled hold again changes nothing.

        Raises ValueError where more was used than held.
        """

    def correct(
        self, correction_id: str, *, trial: str, attempt: int, costs: Mapping[CostKind, Cost], at: Instant
    ) -> None:
        """Moves posted cost between kinds (train to lost); the amounts add up to nothing. A repeat changes nothing."""

    def account(self) -> Account:
        """As of this transaction."""

    def allowance(self, at: Instant, *, freeing: str = "", freed: Cost = FREE) -> Allowance:
        """What may be held at this time, once the hold `freeing` is settled and gives back `freed`. A hold of no more than that,
        in the same transaction, is not refused."""

    def put_trial(
        self, trial: str, state: TrialState, *, at: Instant, config: Config | None = None, reason: str = ""
    ) -> None:
        """Creates the trial or changes its state."""

    def put_attempt(self, attempt: AttemptRow) -> None:
        """Creates or replaces."""

    def put_usage(self, trial: str, attempt: int, usage: Usage) -> None:
        """What it used of its machine so far. Creates or replaces."""

    def put_report(self, report: ReportRow) -> bool:
        """False where this trial has reported this step before: the first report stays."""

    def reached(self, trial: str, step: int) -> tuple[Cost, int] | None:
        """Cost and duration of the trial's report of this step; None where there is no such report."""

    def posted(self, trial: str, attempt: int) -> dict[CostKind, Cost]:
        """What the attempt's slices were billed so far, kind by kind, corrections included."""

    def put_checkpoint(self, checkpoint: CheckpointRow) -> None:
        """Creates or replaces."""

    def keep_checkpoints(self, trial: str, *, keep: int, mode: Mode) -> None:
        """Forgets all but the trial's `keep` newest and that of the best reported step, as its worker removes them."""

    def forget_checkpoints(self, trial: str, *, above: int) -> None:
        """Forgets those of later steps, which turned out to be damaged."""

    def put_job(
        self,
        state: JobState,
        reason: StopReason | None,
        *,
        at: Instant,
        detail: str = "",
        again_at: Instant | None = None,
        waits_for: str = "",
    ) -> None:
        """Moves the job; a move that `tuner.domain.job.MOVES` does not have raises Conflict. A job that pauses goes
        on by itself at `again_at`, or once the budget `waits_for` above it allows more, unless a person has asked for
        something else."""

    def set_limit(self, budget: Budget) -> None:
        """The account's new bound, and the job's new budget. Raises Conflict or BudgetRefused below what is posted and held."""


@dataclass(slots=True)
class Turn:
    """One transaction, and the orders to send once it is committed."""

    tx: JournalTx
    at: Instant
    orders: list[Callable[[], None]] = field(default_factory=list)
    go: set[str] = field(default_factory=set)
    suggest: Suggest | None = None


class Journal(Protocol):
    """Used by one thread. Every transaction of a driver that is not the job's present one raises `Fenced`."""

    def transaction(self) -> AbstractContextManager[JournalTx]: ...

    def events(self) -> Iterable[Event]:
        """All recorded events, oldest first."""

    def open_holds(self) -> list[OpenHold]: ...

    def attempts(self) -> list[AttemptRow]:
        """The newest attempt of each trial."""

    def newest_checkpoints(self) -> dict[str, int]:
        """The newest durable step of each trial that has one."""

    def running_ns(self) -> int:
        """How long the job was `running` before the present launch."""

    def account(self) -> Account: ...
