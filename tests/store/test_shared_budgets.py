"""Test that shared budgets are as strict as a job's own budget when jobs race for the last cent, and that a
recount agrees with the ledger.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests import books, fakes
from tests.store import hammer
from tests.store.builders import PROJECT, budget, cost, create, hold, new_job
from tests.store.crowd import crowd
from tests.strategies import examples
from tuner.database.database import Connection, Database
from tuner.domain.cost import total
from tuner.domain.errors import Conflict
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Money
from tuner.domain.records import OpenHold
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import DAY_NS, NS, Instant
from tuner.ledger import ledger, shared_budget_changes, shared_budgets
from tuner.store import jobs

JOBS = [f"job_000000000000000{number}" for number in range(3)]
TAGS: list[dict[str, str]] = [{"p": "a"}, {"p": "b"}, {}]
ORG = SharedBudget("org", usd=Money(100), gpu_ms=60)
A = SharedBudget("a", usd=Money(60), match={"p": "a"}, parent="org", period="day")
NOW = Instant(10 * DAY_NS)


def put(database: Database, *given: SharedBudget, at: Instant = NOW) -> None:
    with database.write() as db:
        for shared_budget in given:
            shared_budgets.lock_exclusive(db)
            shared_budget_changes.put(db, PROJECT, shared_budget, secret="s", at=at)


def place(database: Database, job: str, number: int, usd: int, gpu_ms: int = 0, at: int = NOW) -> bool:
    with database.write() as db:
        placed = ledger.place(db, PROJECT, job, at_time(hold(number, cost(usd, gpu_ms), job=job), at))
        return placed is not None


def at_time(hold: OpenHold, at: int) -> OpenHold:
    return OpenHold(hold.id, hold.trial, hold.attempt, hold.slice, hold.cost, Instant(at), Instant(at + NS))


def settle(database: Database, job: str, number: int, usd: int, at: int = NOW) -> None:
    with database.write() as db:
        name = hold(number, FREE, job=job).id
        ledger.settle(db, PROJECT, job, name, {"train": cost(usd)}, Instant(at))


def account(database: Database, name: str, at: int = NOW) -> Account:
    with database.read() as db:
        return shared_budgets.period_at(
            db, PROJECT, shared_budgets.get(db, PROJECT, name).budget, Instant(at)
        ).account


def make(database: Database, **limits: Any) -> None:
    for job, tags in zip(JOBS, TAGS, strict=True):
        create(database, new_job(job, tags=tags, limits=budget(**{"usd": 10**6, "gpu_ms": 10**6, **limits})))


def check(database: Database, at: Instant = NOW) -> None:
    with database.write() as db:
        assert books.shared_faults(db, PROJECT, at) == []
        assert books.faults(db) == []


def test_hold_counts_in_the_matching_budget_and_its_parent(database: Database) -> None:
    make(database)
    put(database, ORG, A)
    assert place(database, JOBS[0], 1, 30, 5)
    assert place(database, JOBS[1], 1, 20, 5)
    assert account(database, "a").held == cost(30, 5)
    assert account(database, "org").held == cost(50, 10)
    settle(database, JOBS[0], 1, 10)
    assert account(database, "a") == Account(A.limit, posted=cost(10))
    assert account(database, "org") == Account(ORG.limit, posted=cost(10), held=cost(20, 5))
    check(database)


@pytest.mark.parametrize(("usd", "gpu_ms", "fits"), [(60, 60, True), (61, 0, False), (1, 61, False)])
def test_hold_refused_by_one_shared_budget_counts_in_none(
    database: Database, usd: int, gpu_ms: int, fits: bool
) -> None:
    make(database)
    put(database, ORG, A)
    assert place(database, JOBS[0], 1, usd, gpu_ms) is fits
    wanted = cost(usd, gpu_ms) if fits else FREE
    with database.read() as db:
        assert ledger.account(db, JOBS[0]).held == wanted
    assert account(database, "a").held == account(database, "org").held == wanted
    check(database)


def test_hold_refused_by_the_jobs_own_budget_counts_in_no_shared_budget(database: Database) -> None:
    make(database, usd=10)
    put(database, ORG, A)
    assert not place(database, JOBS[0], 1, 11)
    assert account(database, "org").held == FREE
    check(database)


def test_hold_settles_in_the_period_in_which_it_was_placed(database: Database) -> None:
    make(database)
    put(database, A.__class__("a", usd=Money(60), match={"p": "a"}, period="day"))
    midnight = NOW + DAY_NS
    assert place(database, JOBS[0], 1, 50, at=midnight - NS)
    assert not place(database, JOBS[0], 2, 20, at=midnight - 1)
    assert place(database, JOBS[0], 2, 60, at=midnight)
    settle(database, JOBS[0], 1, 45, at=midnight + 1)
    assert account(database, "a", midnight - 1).posted == cost(45)
    assert account(database, "a", midnight) == Account(cost(60, A.limit.gpu_ms), held=cost(60))
    check(database, Instant(midnight))


def test_new_budget_counts_earlier_spend_and_holds_of_its_period(database: Database) -> None:
    make(database)
    place(database, JOBS[0], 1, 30, at=NOW - DAY_NS)
    settle(database, JOBS[0], 1, 25)
    place(database, JOBS[0], 2, 20)
    settle(database, JOBS[0], 2, 15)
    place(database, JOBS[0], 3, 10)
    put(database, ORG, A)
    assert account(database, "a") == Account(A.limit, posted=cost(15), held=cost(10))
    assert account(database, "org") == Account(ORG.limit, posted=cost(40), held=cost(10))
    settle(database, JOBS[0], 3, 10)
    assert account(database, "a").posted == cost(25)
    check(database)


def test_budget_below_its_spend_is_refused_and_changes_nothing(database: Database) -> None:
    make(database)
    put(database, ORG)
    place(database, JOBS[2], 1, 30)
    with pytest.raises(Conflict, match=r"\$0.00003 .* 'org'"):
        put(database, SharedBudget("org", usd=Money(29)))
    assert account(database, "org") == Account(ORG.limit, held=cost(30))
    put(database, SharedBudget("org", usd=Money(30)))
    assert not place(database, JOBS[2], 2, 1)


def test_lowered_budget_limits_a_period_that_a_clock_ahead_has_opened(database: Database) -> None:
    make(database)
    daily, tomorrow = replace(A, parent=None), NOW + DAY_NS
    put(database, daily)
    assert place(database, JOBS[0], 1, 20, at=tomorrow)
    put(database, replace(daily, usd=Money(30)))
    assert account(database, "a", tomorrow) == Account(cost(30, A.limit.gpu_ms), held=cost(20))
    assert not place(database, JOBS[0], 2, 20, at=tomorrow)
    with pytest.raises(Conflict, match="'a' in its next period"):
        put(database, replace(daily, usd=Money(10)))
    check(database)
    check(database, Instant(tomorrow))


def test_changed_tags_move_the_jobs_spend_or_are_refused(database: Database) -> None:
    make(database)
    put(database, A.__class__("b", usd=Money(40), match={"p": "b"}), ORG, A)
    assert place(database, JOBS[0], 1, 30)
    assert place(database, JOBS[1], 1, 11)

    def retag(job: str, tags: dict[str, str]) -> None:
        with database.write() as db:
            before = shared_budgets.tags_of(db, job)
            shared_budgets.lock_budgets(db, PROJECT)
            jobs.set_tags(db, job, PROJECT, tags)
            shared_budget_changes.move(db, PROJECT, job, before, tags, NOW)

    with pytest.raises(Conflict, match="'b'"):
        retag(JOBS[0], {"p": "b"})
    assert account(database, "a").held == cost(30)
    retag(JOBS[1], {"p": "a"})
    assert account(database, "a").held == cost(41)
    assert account(database, "b").held == FREE
    check(database)
    settle(database, JOBS[1], 1, 7)
    assert place(database, JOBS[0], 2, 5, at=NOW + DAY_NS)  # by a machine whose clock is ahead
    retag(JOBS[1], {"p": "b"})
    retag(JOBS[0], {})
    assert account(database, "b").posted == cost(7)
    assert account(database, "a", NOW + DAY_NS).held == FREE
    check(database)
    check(database, Instant(NOW + DAY_NS))


def test_change_of_tags_does_not_read_what_other_jobs_spent(database: Database) -> None:
    make(database)
    put(database, ORG, A)
    steps = []
    for numbers in (range(1, 11), range(11, 111)):
        for number in numbers:
            assert place(database, JOBS[0], number, 1)
            settle(database, JOBS[0], number, 0)
        for before, after in ((TAGS[1], TAGS[0]), (TAGS[0], TAGS[1])):
            with database.write() as db:
                work = partial(shared_budget_changes.move, db, PROJECT, JOBS[1], before, after, NOW)
                steps.append(instructions_of(db, work))
    assert max(steps[2:]) < 2 * max(steps[:2])


def test_budget_with_children_is_not_removed(database: Database) -> None:
    put(database, ORG, A)
    with pytest.raises(Conflict, match="a; remove these budgets first"), database.write() as db:
        shared_budget_changes.remove(db, PROJECT, "org", at=NOW)
    with database.write() as db:
        shared_budget_changes.remove(db, PROJECT, "a", at=NOW)
        shared_budget_changes.remove(db, PROJECT, "org", at=NOW)
        assert shared_budgets.kept(db, PROJECT) == []


def test_concurrent_jobs_fill_a_shared_budget_exactly(database: Database) -> None:
    """Four processes with one job each. The jobs' own budgets would allow everything."""
    make(database)
    create(database, new_job("job_0000000000000003", tags={"p": "a"}, limits=budget(10**6, 10**6)))
    put(database, SharedBudget("all", usd=Money(150)))
    with crowd(hammer.only_hold_for, database, [(number, 15) for number in range(4)]) as processes:
        while any(running.is_alive() for running in processes):
            seen = account(database, "all")
            assert (seen.posted + seen.held).fits(seen.limit)
            time.sleep(0.01)
    fit = 150 // 7
    assert account(database, "all").held.usd == Money(7 * fit)
    check(database)


def instructions_of(db: Connection, work: Callable[[], None]) -> int:
    """Return how many instructions SQLite needs for the work, in hundreds."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection: Any = db.connection.driver_connection
    connection.set_progress_handler(count, 100)
    try:
        work()
    finally:
        connection.set_progress_handler(None, 0)
    return counted


def instructions_of_recount(database: Database) -> int:
    with database.write() as db:
        return instructions_of(db, partial(shared_budget_changes.recount, db, PROJECT, NOW))


def test_recount_takes_time_proportional_to_the_holds(database: Database) -> None:
    make(database)
    put(database, SharedBudget("all", usd=Money(10**6)))
    counted = []
    for numbers in (range(1, 151), range(151, 301)):
        for number in numbers:
            assert place(database, JOBS[0], number, 1)
            settle(database, JOBS[0], number, 1)
        counted.append(instructions_of_recount(database))
    assert counted[1] < 3 * counted[0]
    check(database)


def test_recount_reads_the_entries_of_a_period_once(database: Database) -> None:
    make(database)
    put(database, SharedBudget("all", usd=Money(10**6)))
    for number in range(1, 101):
        assert place(database, JOBS[0], number, 1)
        settle(database, JOBS[0], number, 1)
    before = instructions_of_recount(database)
    put(database, *(SharedBudget(f"also-{number}", usd=Money(10**6)) for number in range(5)))
    assert instructions_of_recount(database) < 2 * before
    check(database)


class Machine(RuleBasedStateMachine):
    """Hold, settle, tag and budget in any order: no limit is exceeded, and a recount finds the same amounts."""

    def __init__(self) -> None:
        super().__init__()
        self.database = fakes.database_in_memory()
        self.count, self.at = 0, int(NOW)
        self.open: list[tuple[str, OpenHold]] = []

    def teardown(self) -> None:
        self.database.dispose()

    @initialize()
    def begin(self) -> None:
        make(self.database, usd=300, gpu_ms=300)
        put(self.database, ORG, A)
        for job in JOBS:
            self.place(job=job, usd=15, gpu_ms=5)

    @rule(hours=st.integers(1, 30))
    def time_passes(self, hours: int) -> None:
        self.at += hours * 3600 * NS

    @rule(job=st.sampled_from(JOBS), usd=st.integers(0, 40), gpu_ms=st.integers(0, 20))
    def place(self, job: str, usd: int, gpu_ms: int) -> None:
        self.count += 1
        with self.database.write() as db:
            own = ledger.account(db, job).left
            wanted = at_time(hold(self.count, cost(usd, gpu_ms), job=job), self.at)
            allowed = shared_budgets.allowance(db, PROJECT, job, Instant(self.at), own)
            placed = ledger.place(db, PROJECT, job, wanted) is not None
        assert placed == wanted.cost.fits(allowed.left)
        if placed:
            self.open.append((job, wanted))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        """Settle a hold and place the next one, no larger than the amount that was left."""
        job, held = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        used = {"train": cost(data.draw(st.integers(0, held.cost.usd.micro_usd)))}
        self.count += 1
        with self.database.write() as db:
            freed = held.cost - total(used)  # type: ignore[arg-type]
            own = ledger.account(db, job).left + freed
            allowed = shared_budgets.allowance(
                db, PROJECT, job, Instant(self.at), own, freeing=held.id, freed=freed
            ).left
            ledger.settle(db, PROJECT, job, held.id, used, Instant(self.at))  # type: ignore[arg-type]
            following = at_time(hold(self.count, allowed, job=job), self.at)
            assert ledger.place(db, PROJECT, job, following)
        self.open.append((job, following))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        job, held = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        with self.database.write() as db:
            used = cost(data.draw(st.integers(0, held.cost.usd.micro_usd)))
            ledger.settle(db, PROJECT, job, held.id, {"train": used}, Instant(self.at))

    @rule(job=st.sampled_from(JOBS), tags=st.sampled_from(TAGS))
    def retag(self, job: str, tags: dict[str, str]) -> None:
        with suppress(Conflict), self.database.write() as db:
            before = shared_budgets.tags_of(db, job)
            shared_budgets.lock_budgets(db, PROJECT)
            jobs.set_tags(db, job, PROJECT, tags)
            shared_budget_changes.move(db, PROJECT, job, before, tags, Instant(self.at))

    @rule(
        name=st.sampled_from(["org", "a", "c"]),
        usd=st.none() | st.integers(1, 150).map(Money),
        gpu_ms=st.integers(1, 100),
        period=st.sampled_from(["day", "month", None]),
        match=st.sampled_from([{}, {"p": "a"}, {"p": "b"}]),
    )
    def change(self, name: str, usd: Money | None, gpu_ms: int, period: Any, match: dict[str, str]) -> None:
        parent = "org" if name != "org" else None
        new = SharedBudget(name, usd=usd, gpu_ms=gpu_ms, period=period, match=match, parent=parent)
        with suppress(Conflict):
            put(self.database, new, at=Instant(self.at))

    @invariant()
    def a_recount_finds_what_is_kept(self) -> None:
        check(self.database, Instant(self.at))


TestSharedBudgetMachine = Machine.TestCase
TestSharedBudgetMachine.settings = examples(20, gate=8, stateful_step_count=20)
