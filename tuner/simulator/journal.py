"""An in-memory journal for one simulated run. It follows the rules of `tuner.domain.ledger`."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind, total
from tuner.domain.errors import BudgetRefused
from tuner.domain.events import Event
from tuner.domain.ids import entry_id
from tuner.domain.job import JobState, StopReason, check_move
from tuner.domain.ledger import Account, Allowance, Entry
from tuner.domain.money import FREE, Cost
from tuner.domain.records import AttemptRow, CheckpointRow, OpenHold, ReportRow
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.domain.usage import Usage


@dataclass
class Tables:
    """The recorded tables of one job. Keys are ids. A key of two parts is a trial's id with the number of an attempt or of a step."""

    account: Account
    job: tuple[JobState, StopReason | None, str] = ("running", None, "")
    events: list[Event] = field(default_factory=list)
    #: By the id of a hold: the hold, and whether it is still open.
    holds: dict[str, tuple[OpenHold, bool]] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    trials: dict[str, tuple[TrialState, Config | None, str]] = field(default_factory=dict)
    attempts: dict[tuple[str, int], AttemptRow] = field(default_factory=dict)
    reports: dict[tuple[str, int], ReportRow] = field(default_factory=dict)
    checkpoints: dict[tuple[str, int], str] = field(default_factory=dict)
    usages: dict[tuple[str, int], Usage] = field(default_factory=dict)
    #: The sums of `entries` for each attempt, by cost kind.
    bills: dict[tuple[str, int], dict[CostKind, Cost]] = field(default_factory=dict)


@dataclass(slots=True)
class Committed:
    """The records that one transaction added."""

    events: list[Event]
    entries: list[Entry]
    attempts: list[AttemptRow]


class MemoryJournal:
    """The journal of one job.

    `ran_ns` is the time that earlier drivers ran. The simulated run increases it when a driver dies. Each function in `watchers` is called
    after each commit, with the tables and the records that the transaction added.
    """

    def __init__(self, job: str, budget: Budget) -> None:
        self.job = job
        self.tables = Tables(Account(budget.limit))
        self.ran_ns = 0
        self.watchers: list[Callable[[Tables, Committed], None]] = []

    @contextmanager
    def transaction(self) -> Iterator["MemoryTx"]:
        tx = MemoryTx(self.tables)
        yield tx
        tx.commit()
        for watch in self.watchers:
            watch(self.tables, tx.committed)

    def events(self) -> list[Event]:
        return list(self.tables.events)

    def open_holds(self) -> list[OpenHold]:
        return [hold for hold, is_open in self.tables.holds.values() if is_open]

    def attempts(self) -> list[AttemptRow]:
        """Return the newest attempt of each trial."""
        rows = sorted(self.tables.attempts.values(), key=lambda row: row.attempt)
        return list({row.trial: row for row in rows}.values())

    def newest_checkpoints(self) -> dict[str, int]:
        newest: dict[str, int] = {}
        for trial, step in self.tables.checkpoints:
            newest[trial] = max(step, newest.get(trial, 0))
        return newest

    def running_ns(self) -> int:
        return self.ran_ns

    def account(self) -> Account:
        return self.tables.account


class MemoryTx:
    """A transaction. Its writes are kept apart from the tables until `commit`."""

    def __init__(self, tables: Tables) -> None:
        self._t = tables
        self._account, self._job = tables.account, tables.job
        self._written: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        self._forgotten: set[tuple[str, int]] = set()
        self.committed = Committed([], [], [])

    def commit(self) -> None:
        """Write the transaction's records to the tables. Call this once, at the end of the transaction."""
        self._t.account, self._t.job = self._account, self._job
        self._t.events += self.committed.events
        for name, written in self._written.items():
            getattr(self._t, name).update(written)
        for where in self._forgotten:
            self._t.checkpoints.pop(where, None)

    def _get(self, table: str, key: object) -> Any:
        above = self._written.get(table, ())
        return self._written[table][key] if key in above else getattr(self._t, table).get(key)

    def append(self, event: Event) -> int:
        self.committed.events.append(event)
        return len(self._t.events) + len(self.committed.events)

    def hold(self, hold: OpenHold) -> bool:
        if self._get("holds", hold.id) is not None:
            return True
        try:
            self._account = self._account.hold(hold.cost)
        except BudgetRefused:
            return False
        self._written["holds"][hold.id] = (hold, True)
        where = (hold.trial, hold.attempt, hold.slice)
        self._enter(Entry(entry_id(hold.id, "hold"), "hold", None, *where, hold.cost, hold.placed_at))
        return True

    def settle(self, hold_id: str, used: Mapping[CostKind, Cost], *, at: Instant) -> None:
        stored_hold = self._get("holds", hold_id)
        if stored_hold is None:
            raise KeyError(hold_id)
        hold, is_open = stored_hold
        if not is_open:
            return
        spent = total(used)
        self._account = self._account.settle(held=hold.cost, used=spent)
        self._written["holds"][hold_id] = (hold, False)
        where = (hold.trial, hold.attempt, hold.slice)
        for kind, cost in used.items():
            self._enter(Entry(entry_id(hold_id, "post", kind), "post", kind, *where, cost, at))
        rest = hold.cost - spent
        if not rest.nothing:
            self._enter(Entry(entry_id(hold_id, "release"), "release", None, *where, rest, at))

    def correct(
        self, correction_id: str, *, trial: str, attempt: int, costs: Mapping[CostKind, Cost], at: Instant
    ) -> None:
        if not total(costs).nothing:
            raise ValueError(
                f"a correction moves cost between kinds, so its costs must add up to zero, not to {total(costs)}: {costs}"
            )
        for kind, cost in costs.items():
            name = entry_id(correction_id, "correct", kind)
            self._enter(Entry(name, "correct", kind, trial, attempt, 0, cost, at))

    def _enter(self, entry: Entry) -> None:
        if self._get("entries", entry.id) is not None:
            return
        self._written["entries"][entry.id] = entry
        self.committed.entries.append(entry)
        if entry.kind is not None:
            where = (entry.trial, entry.attempt)
            bill = self._get("bills", where) or {}
            self._written["bills"][where] = bill | {entry.kind: bill.get(entry.kind, FREE) + entry.cost}

    def account(self) -> Account:
        return self._account

    def allowance(self, at: Instant, *, freeing: str = "", freed: Cost = FREE) -> Allowance:
        """Return what the job may still hold: the rest of its account, plus the cost `freed` that the end of the hold `freeing` will release.

        A simulated job has no shared budget.
        """
        return Allowance(self._account.left + freed)

    def put_trial(
        self, trial: str, state: TrialState, *, at: Instant, config: Config | None = None, reason: str = ""
    ) -> None:
        known = self._get("trials", trial)
        self._written["trials"][trial] = (state, config if known is None else known[1], reason)

    def put_attempt(self, attempt: AttemptRow) -> None:
        self._written["attempts"][attempt.trial, attempt.attempt] = attempt
        self.committed.attempts.append(attempt)

    def put_usage(self, trial: str, attempt: int, usage: Usage) -> None:
        self._written["usages"][trial, attempt] = usage

    def put_report(self, report: ReportRow) -> bool:
        key = (report.trial, report.step)
        is_new = self._get("reports", key) is None
        if is_new:
            self._written["reports"][key] = report
        return is_new

    def reached(self, trial: str, step: int) -> tuple[Cost, int] | None:
        row = self._get("reports", (trial, step))
        return None if row is None else (row.cost, row.duration_ns)

    def posted(self, trial: str, attempt: int) -> dict[CostKind, Cost]:
        return dict(self._get("bills", (trial, attempt)) or {})

    def put_checkpoint(self, checkpoint: CheckpointRow) -> None:
        where = checkpoint.trial, checkpoint.step
        self._written["checkpoints"][where] = checkpoint.uri
        self._forgotten.discard(where)

    def keep_checkpoints(self, trial: str, *, keep: int) -> None:
        """Do nothing: the simulation uses only the newest checkpoint, which is always kept."""

    def forget_checkpoints(self, trial: str, *, after_step: int) -> None:
        known = {*self._t.checkpoints, *self._written["checkpoints"]}
        self._forgotten |= {where for where in known if where[0] == trial and where[1] > after_step}

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
        if state != self._job[0]:
            check_move(self._job[0], state)
        self._job = (state, reason, detail)

    def set_limit(self, budget: Budget) -> None:
        self._account = self._account.with_limit(budget.limit)
