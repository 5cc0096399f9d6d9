"""Test that the SQL ledger and the in-memory ledger agree after any sequence of operations."""

from collections.abc import Mapping

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests import books, fakes
from tests.store.builders import JOB, PROJECT, cost, create, hold, new_job
from tests.strategies import examples
from tuner.domain.budget import Budget
from tuner.domain.cost import KINDS, CostKind, total
from tuner.domain.errors import BudgetRefused, Conflict
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import EntryPlace, OpenHold
from tuner.domain.time import Instant
from tuner.ledger import ledger
from tuner.store import jobs

AT = Instant(5)
MUCH = 10**15  # used where there is no limit: a billion dollars, the largest budget of a job
costs = st.builds(cost, st.integers(0, 60), st.integers(0, 60))
budgets = st.builds(
    Budget,
    usd=st.none() | st.integers(0, 200).map(Money),
    gpu_ms=st.none() | st.integers(0, 200),
)
kinds = st.sampled_from(KINDS)
Used = dict[CostKind, Cost]


@st.composite
def parts(draw: st.DrawFn, whole: Cost) -> Used:
    """Draw costs by kind that add up to at most `whole`."""
    used: Used = {}
    for kind in draw(st.lists(kinds, max_size=3, unique=True)):
        rest = whole - total(used)
        used[kind] = cost(draw(st.integers(0, rest.usd.micro_usd)), draw(st.integers(0, rest.gpu_ms)))
    return used


class LedgerMachine(RuleBasedStateMachine):
    """`account` and `by_kind` follow the rules on values. `database` holds the SQL ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.database = fakes.database_in_memory()
        self.open: dict[str, OpenHold] = {}
        self.settled: list[str] = []
        self.corrections: list[tuple[EntryPlace, Used]] = []
        self.by_kind: Used = {}
        self.count = 0

    def teardown(self) -> None:
        self.database.dispose()

    @initialize(limits=budgets)
    def open_account(self, limits: Budget) -> None:
        create(self.database, new_job(limits=limits))
        self.account = Account(limits.limit)

    @rule(wanted=costs)
    def place(self, wanted: Cost) -> None:
        self.count += 1
        new = hold(self.count, wanted)
        try:
            self.account = self.account.hold(wanted)
            self.open[new.id] = new
        except BudgetRefused:
            pass
        assert self._place(new) is (new.id in self.open)

    @rule(more=st.sampled_from([FREE, cost(1), cost(0, 1)]))
    def place_what_is_left_and_perhaps_a_little_more(self, more: Cost) -> None:
        left = self.account.left
        self.place(cost(min(left.usd.micro_usd, MUCH), min(left.gpu_ms, MUCH)) + more)

    @precondition(lambda self: self.open or self.settled)
    @rule(data=st.data(), wanted=costs)
    def place_again(self, data: st.DataObject, wanted: Cost) -> None:
        number = data.draw(st.sampled_from([*self.open, *self.settled])).rpartition("/s")[2]
        before = self._written()
        assert self._place(hold(int(number), wanted))
        assert self._written() == before

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        held = self.open.pop(data.draw(st.sampled_from(sorted(self.open))))
        used = data.draw(parts(held.cost))
        self.account = self.account.settle(held=held.cost, used=total(used))
        self.settled.append(held.id)
        self._count(used)
        self._settle(held.id, used)
        before = self._written()
        self._settle(held.id, used)
        assert self._written() == before

    @precondition(lambda self: self.settled)
    @rule(data=st.data(), used=st.dictionaries(kinds, costs, max_size=3))
    def settle_again(self, data: st.DataObject, used: Used) -> None:
        before = self._written()
        self._settle(data.draw(st.sampled_from(self.settled)), used)
        assert self._written() == before

    @precondition(lambda self: self.open)
    @rule(data=st.data(), over=st.sampled_from([cost(1), cost(0, 1), cost(7, 7)]), kind=kinds)
    def settle_above_the_hold(self, data: st.DataObject, over: Cost, kind: CostKind) -> None:
        held = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        with pytest.raises(ValueError, match="only"):
            self._settle(held.id, {kind: held.cost + over})
        with pytest.raises(ValueError, match="only"):
            self.account.settle(held=held.cost, used=held.cost + over)

    @rule(pair=st.lists(kinds, min_size=2, max_size=2, unique=True), moved=costs)
    def correct(self, pair: list[CostKind], moved: Cost) -> None:
        self.count += 1
        costs_moved: Used = {pair[0]: -moved, pair[1]: moved}
        where = hold(self.count, FREE).place
        if not moved.nothing:
            self.corrections.append((where, costs_moved))
            self._count(costs_moved)
        self._correct(where, costs_moved)

    @precondition(lambda self: self.corrections)
    @rule(data=st.data())
    def correct_again(self, data: st.DataObject) -> None:
        before = self._written()
        self._correct(*data.draw(st.sampled_from(self.corrections)))
        assert self._written() == before

    @rule(kind=kinds, added=costs.filter(lambda added: not added.nothing))
    def correct_out_of_nothing(self, kind: CostKind, added: Cost) -> None:
        with pytest.raises(ValueError, match="moves cost between kinds"):
            self._correct(hold(self.count + 1, FREE).place, {kind: added})

    @rule(limits=budgets)
    def change_the_limit(self, limits: Budget) -> None:
        try:
            self.account = self.account.with_limit(limits.limit)
        except BudgetRefused:
            with pytest.raises((BudgetRefused, Conflict)), self.database.write() as db:
                jobs.set_budget(db, JOB, limits)
            return
        with self.database.write() as db:
            jobs.set_budget(db, JOB, limits)

    @invariant()
    def both_agree(self) -> None:
        with self.database.read() as db:
            assert ledger.account(db, JOB) == self.account
            assert {row.id: row for row in ledger.open_holds(db, JOB)} == self.open
            assert _something(ledger.posted_by_kind(db, JOB)) == _something(self.by_kind)

    @invariant()
    def the_bound_holds_and_the_books_are_right(self) -> None:
        with self.database.read() as db:
            account = ledger.account(db, JOB)
            assert (account.posted + account.held).fits(account.limit)
            assert FREE.fits(account.posted)
            assert FREE.fits(account.held)
            assert books.faults(db) == []

    def _count(self, used: Used) -> None:
        for kind, amount in used.items():
            self.by_kind[kind] = self.by_kind.get(kind, FREE) + amount

    def _written(self) -> list[ledger.EntryRow]:
        with self.database.read() as db:
            return ledger.lines(db, JOB)

    def _place(self, wanted: OpenHold) -> bool:
        with self.database.write() as db:
            return ledger.place(db, PROJECT, JOB, wanted) is not None

    def _settle(self, name: str, used: Used) -> None:
        with self.database.write() as db:
            ledger.settle(db, PROJECT, JOB, name, used, AT)

    def _correct(self, where: EntryPlace, moved: Used) -> None:
        with self.database.write() as db:
            ledger.correct(db, PROJECT, JOB, where, moved, AT)


def _something(sums: Mapping[CostKind, Cost]) -> Used:
    return {kind: amount for kind, amount in sums.items() if not amount.nothing}


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = examples(40, gate=15, stateful_step_count=30)
