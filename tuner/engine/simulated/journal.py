"""The journal in memory: the rules of `tuner.domain.ledger`, for one simulated run."""

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind, total
from tuner.domain.errors import BudgetRefused
from tuner.domain.events import Event
from tuner.domain.ids import entry_id
from tuner.domain.job import JobState, StopReason, check_move
from tuner.domain.ledger import Account, Entry
from tuner.domain.money import FREE, Cost
from tuner.domain.objective import Mode
from tuner.domain.records import AttemptRow, CheckpointRow, OpenHold, ReportRow
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState


@dataclass
class Tables:
    account: Account
    job: tuple[JobState, StopReason | None, str] = ("running", None, "")
    events: list[Event] = field(default_factory=list)
    holds: MutableMapping[str, tuple[OpenHold, bool]] = field(default_factory=dict)
    entries: MutableMapping[str, Entry] = field(default_factory=dict)
    trials: MutableMapping[str, tuple[TrialState, Config | None, str]] = field(default_factory=dict)
    attempts: MutableMapping[tuple[str, int], AttemptRow] = field(default_factory=dict)
    reports: MutableMapping[tuple[str, int], ReportRow] = field(default_factory=dict)
    checkpoints: MutableMapping[tuple[str, int], str] = field(default_factory=dict)


KEYED = ("holds", "entries", "trials", "attempts", "reports", "checkpoints")


class MemoryJournal:
    """One job. `running_ns` is kept by the world, whose clock it is."""

    def __init__(self, job: str, budget: Budget) -> None:
        self.job = job
        self.tables = Tables(Account(budget.limit))
        self.ran_ns = 0

    @contextmanager
    def transaction(self) -> Iterator["MemoryTx"]:
        """What it writes lies above the tables, and becomes part of them at its end."""
        base = self.tables
        above: dict[str, Any] = {name: ChainMap({}, getattr(base, name)) for name in KEYED}
        written = Tables(base.account, base.job, **above)
        yield MemoryTx(written, first_number=len(base.events) + 1)
        base.account, base.job = written.account, written.job
        base.events += written.events
        for name, table in above.items():
            getattr(base, name).update(table.maps[0])

    def events(self) -> list[Event]:
        return list(self.tables.events)

    def open_holds(self) -> list[OpenHold]:
        return [hold for hold, is_open in self.tables.holds.values() if is_open]

    def attempts(self) -> list[AttemptRow]:
        newest: dict[str, AttemptRow] = {}
        for row in self.tables.attempts.values():
            if row.trial not in newest or newest[row.trial].attempt < row.attempt:
                newest[row.trial] = row
        return list(newest.values())

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
    def __init__(self, tables: Tables, *, first_number: int) -> None:
        self._t, self._number = tables, first_number

    def append(self, event: Event) -> int:
        self._t.events.append(event)
        self._number += 1
        return self._number - 1

    def hold(self, hold: OpenHold) -> bool:
        if hold.id in self._t.holds:
            return True
        try:
            self._t.account = self._t.account.hold(hold.cost)
        except BudgetRefused:
            return False
        self._t.holds[hold.id] = (hold, True)
        where = (hold.trial, hold.attempt, hold.slice)
        self._enter(Entry(entry_id(hold.id, "hold"), "hold", None, *where, hold.cost, hold.placed_at))
        return True

    def settle(self, hold_id: str, used: Mapping[CostKind, Cost], *, at: Instant) -> None:
        hold, is_open = self._t.holds[hold_id]
        if not is_open:
            return
        spent = total(used)
        self._t.account = self._t.account.settle(held=hold.cost, used=spent)
        self._t.holds[hold_id] = (hold, False)
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
            raise ValueError(f"a correction moves cost between kinds; {costs} adds up to {total(costs)}")
        for kind, cost in costs.items():
            name = entry_id(correction_id, "correct", kind)
            self._enter(Entry(name, "correct", kind, trial, attempt, 0, cost, at))

    def _enter(self, entry: Entry) -> None:
        self._t.entries.setdefault(entry.id, entry)

    def account(self) -> Account:
        return self._t.account

    def put_trial(
        self, trial: str, state: TrialState, *, at: Instant, config: Config | None = None, reason: str = ""
    ) -> None:
        known = self._t.trials.get(trial)
        self._t.trials[trial] = (state, config if known is None else known[1], reason)

    def put_attempt(self, attempt: AttemptRow) -> None:
        self._t.attempts[attempt.trial, attempt.attempt] = attempt

    def put_report(self, report: ReportRow) -> bool:
        is_new = (report.trial, report.step) not in self._t.reports
        if is_new:
            self._t.reports[report.trial, report.step] = report
        return is_new

    def reached(self, trial: str, step: int) -> tuple[Cost, int] | None:
        row = self._t.reports.get((trial, step))
        return None if row is None else (row.cost, row.duration_ns)

    def posted(self, trial: str, attempt: int) -> dict[CostKind, Cost]:
        sums: dict[CostKind, Cost] = {}
        for entry in self._t.entries.values():
            if (entry.trial, entry.attempt) == (trial, attempt) and entry.kind is not None:
                sums[entry.kind] = sums.get(entry.kind, FREE) + entry.cost
        return sums

    def put_checkpoint(self, checkpoint: CheckpointRow) -> None:
        self._t.checkpoints[checkpoint.trial, checkpoint.step] = checkpoint.uri

    def keep_checkpoints(self, trial: str, *, keep: int, mode: Mode) -> None:
        """Only the newest is asked for here, which always stays."""

    def put_job(self, state: JobState, reason: StopReason | None, *, at: Instant, detail: str = "") -> None:
        if state != self._t.job[0]:
            check_move(self._t.job[0], state)
        self._t.job = (state, reason, detail)

    def set_limit(self, budget: Budget) -> None:
        self._t.account = self._t.account.with_limit(budget.limit)
