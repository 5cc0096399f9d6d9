"""Invariants of every simulated job, checked after each transaction, after each turn of the driver loop and at the end.

I1   conservation       the account equals the sum of the ledger entries; corrections add up to zero
I2   bound              posted + held <= limit after each transaction
I3   monotone           the posted amount never falls
I4   one resolution     a hold is posted and its rest released exactly once, at the latest when its attempt ends
I5   leases             the lease numbers of an attempt are consecutive; posted is at most the cost of the workers' time
I6   held work          each running attempt has a hold that covers its lease; each open hold belongs to an attempt
I7   idempotent         placing and settling each hold again changes nothing
I8   replay             the state rebuilt from the events equals the state
I9   no open hold       no hold is open when the job has ended
I11  amounts            never negative and below 2^63

I10 is left out: it is about sums over several tenants, but only one job is simulated.
"""

from typing import NoReturn

from tuner.domain.ledger import Entry
from tuner.domain.money import FREE, Cost
from tuner.driver.loop import Loop
from tuner.simulator.journal import Committed, Tables
from tuner.simulator.world import SimulatedRun
from tuner.tuning.decide import decide
from tuner.tuning.state import State

LARGEST = 2**63
Slice = tuple[str, int, int]


class InvariantBroken(AssertionError):
    """The simulated ledger or job violates an invariant. `name` is the number of the invariant, such as I2."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name


class Invariants:
    """Checks the invariants of one run: call `recorded` after each transaction, `after_turn` after each turn of the driver loop, then `at_end`."""

    def __init__(self) -> None:
        self._posted = FREE
        self._open: dict[Slice, Cost] = {}
        self._slices: dict[tuple[str, int], int] = {}
        self.transactions = 0

    # After each transaction

    def recorded(self, tables: Tables, committed: Committed) -> None:
        before, self.transactions = self._posted, self.transactions + 1
        changed: set[Slice] = set()
        corrected = FREE
        for entry in committed.entries:
            _check_amount(entry)
            where = (entry.trial, entry.attempt, entry.slice)
            match entry.entry:
                case "hold":
                    self._on_hold(where, entry.cost)
                case "post" | "release":
                    self._on_resolved(where, entry)
                    changed.add(where)
                case "correct":
                    corrected = corrected + entry.cost
        if not corrected.nothing:
            _broken("I1", f"corrections add up to {corrected}")
        for where in changed:
            left = self._open.pop(where, FREE)
            if not left.nothing:
                _broken("I4", f"the hold of {where} was settled, but {left} of it is still open")
        self._check_ended(committed)
        self._check_account(tables, before)

    def _on_hold(self, where: Slice, cost: Cost) -> None:
        trial, attempt, number = where
        last = self._slices.get((trial, attempt), 0)
        if number != last + 1:
            _broken("I5", f"{trial}, attempt {attempt}: leases {last} and {number} are not consecutive")
        if last and not self._open.pop((trial, attempt, last), FREE).nothing:
            _broken("I5", f"{trial}, attempt {attempt}: leases {last} and {number} both have an open hold")
        self._slices[trial, attempt] = number
        self._open[where] = cost

    def _on_resolved(self, where: Slice, entry: Entry) -> None:
        left = self._open.get(where)
        if left is None:
            _broken("I4", f"{entry.id} settles a hold that does not exist or is settled already")
        if not entry.cost.fits(left):
            _broken("I4", f"{entry.id} settles {entry.cost}, but only {left} of its hold is left")
        self._open[where] = left - entry.cost
        if entry.entry == "post":
            self._posted = self._posted + entry.cost

    def _check_ended(self, committed: Committed) -> None:
        for row in committed.attempts:
            last = (row.trial, row.attempt, self._slices.get((row.trial, row.attempt), 0))
            # Settling a hold of zero writes no ledger entry, so the hold may still be in `_open`.
            if row.ended_at is not None and not self._open.pop(last, FREE).nothing:
                _broken("I4", f"attempt {row.attempt} of {row.trial} ended, but its hold is still open")

    def _check_account(self, tables: Tables, before: Cost) -> None:
        account = tables.account
        held = sum(cost.usd.micro_usd for cost in self._open.values())
        held_gpu_ms = sum(cost.gpu_ms for cost in self._open.values())
        if account.posted != self._posted or (account.held.usd.micro_usd, account.held.gpu_ms) != (
            held,
            held_gpu_ms,
        ):
            _broken(
                "I1", f"{account} differs from the sum of its entries: {self._posted} posted, {held} µ$ held"
            )
        if not (account.posted + account.held).fits(account.limit):
            _broken("I2", f"{account} exceeds its limit")
        if not before.fits(account.posted):
            _broken("I3", f"the posted amount fell from {before} to {account.posted}")
        for cost in (account.posted, account.held):
            if min(cost.usd.micro_usd, cost.gpu_ms) < 0 or max(cost.usd.micro_usd, cost.gpu_ms) >= LARGEST:
                _broken("I11", f"{account} has an amount that is negative or not below 2^63")

    # After each turn

    def after_turn(self, run: SimulatedRun) -> None:
        loop = run.loop
        leases = {(lease.trial, lease.attempt, lease.slice) for lease in loop.leases.values()}
        if leases != set(self._open):
            _broken("I6", f"the open holds are {sorted(self._open)}, but the leases are {sorted(leases)}")
        for attempt in filter(None, (worker.busy for worker in run.fleet.workers)):
            lease = loop.leases.get(attempt.given.trial)
            mine = lease is not None and lease.attempt == attempt.given.attempt
            if lease is None or not mine or attempt.lease_ns > lease.lease_ns:
                _broken("I6", f"attempt {attempt.given.attempt} of {attempt.given.trial} runs without a hold")
        if loop.end is not None and self._open:
            _broken("I9", f"the job ended, but {sorted(self._open)} are still held")
        self._check_time(run)

    def _check_time(self, run: SimulatedRun) -> None:
        """Check that the posted amount is at most the cost of all workers for the time that has passed.

        The check is skipped if the wall clock may jump. In that case, a hold that was open when a driver died may be billed in full.
        """
        if run.faults.clock_jump:
            return
        paid = run.loop_config.rate.cost(run.clock.elapsed_ns() * run.loop_config.concurrency)
        if self._posted.usd.micro_usd > paid.usd.micro_usd + len(self._slices):
            _broken(
                "I5",
                f"{self._posted} was posted, more than {run.clock.elapsed_ns()} ns of {run.loop_config.concurrency} workers cost",
            )

    # At the end

    def at_end(self, run: SimulatedRun) -> None:
        self.after_turn(run)
        check_books(run.journal.tables)
        self._check_repeats(run)
        self._check_replay(run)

    def _check_repeats(self, run: SimulatedRun) -> None:
        before = run.journal.account()
        with run.journal.transaction() as tx:
            for hold, is_open in list(run.journal.tables.holds.values()):
                again = tx.hold(hold)
                if not is_open:
                    tx.settle(hold.id, {"lost": hold.cost}, at=hold.ends_at)
                if not again or tx.account() != before or tx.committed.entries:
                    _broken("I7", f"placing the hold {hold.id} a second time changed the account")

    def _check_replay(self, run: SimulatedRun) -> None:
        state = rebuilt(run.loop, run)
        for name in State.__dataclass_fields__:
            there, rebuilt_value = getattr(run.loop.state, name), getattr(state, name)
            if name != "changed" and there != rebuilt_value:
                _broken(
                    "I8",
                    f"state.{name} is {str(there)[:200]}, but replaying the events gives {str(rebuilt_value)[:200]}",
                )


def watch(run: SimulatedRun) -> Invariants:
    """Check the records that a run has so far, and then check the run's invariants as it continues.

    Call `at_end` of the result when the run has ended.
    """
    invariants = Invariants()
    tables = run.journal.tables
    invariants.recorded(tables, Committed([], list(tables.entries.values()), list(tables.attempts.values())))
    run.journal.watchers.append(invariants.recorded)
    run.on_turn = lambda: invariants.after_turn(run)
    return invariants


def rebuilt(loop: Loop, run: SimulatedRun) -> State:
    """Return the state of a job, rebuilt from the loop's recorded events alone. `run` provides the job's spec and settings."""
    state = State.fresh(run.spec, concurrency=run.loop_config.concurrency, rate=run.loop_config.rate)
    for event in loop.journal.events():
        state, _ = decide(state, event)
    return state


def check_books(tables: Tables) -> None:
    """Recompute the account and the bill of each attempt from the ledger entries.

    Raises:
        InvariantBroken: The recorded account or an attempt's recorded costs differ, or a bill has a negative amount.
    """
    posted = held = FREE
    bills: dict[tuple[str, int], dict[str, Cost]] = {}
    for entry in tables.entries.values():
        if entry.entry == "hold":
            held = held + entry.cost
        elif entry.entry != "correct":
            held = held - entry.cost
        if entry.kind is not None:
            posted = posted + entry.cost
            bill = bills.setdefault((entry.trial, entry.attempt), {})
            bill[entry.kind] = bill.get(entry.kind, FREE) + entry.cost
    if (posted, held) != (tables.account.posted, tables.account.held):
        _broken("I1", f"{tables.account} differs from the sum of all entries: {posted} posted, {held} held")
    for where, bill in bills.items():
        wrong = {kind: cost for kind, cost in bill.items() if not FREE.fits(cost)}
        if wrong:
            _broken("I11", f"the bill of {where} has negative amounts: {wrong}")
        ended = tables.attempts.get(where)
        if ended is not None and ended.ended_at is not None and _sum(ended.costs) != _sum(bill):
            _broken(
                "I1", f"the attempt {where} is recorded with {ended.costs}, but its entries add up to {bill}"
            )


def _sum(costs: object) -> dict[str, Cost]:
    assert isinstance(costs, dict)
    return {kind: cost for kind, cost in costs.items() if not cost.nothing}


def _check_amount(entry: Entry) -> None:
    amounts = (entry.cost.usd.micro_usd, entry.cost.gpu_ms)
    if entry.entry != "correct" and min(amounts) < 0:
        _broken("I11", f"{entry.id} is negative: {entry.cost}")
    if max(map(abs, amounts)) >= LARGEST:
        _broken("I11", f"{entry.id} is too large: {entry.cost}")


def _broken(name: str, detail: str) -> NoReturn:
    raise InvariantBroken(name, detail)
