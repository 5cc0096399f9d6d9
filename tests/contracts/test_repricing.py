"""Billing of an attempt whose machine has another price than expected, with both journals: recomputed from time and prices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.turns import FIRST, in_memory, in_sql
from tests.store.builders import JOB, budget
from tests.strategies import examples
from tuner.database.database import Database
from tuner.domain.cost import Meter, total
from tuner.domain.money import Price, Rate
from tuner.domain.time import NS, Instant
from tuner.driver.holds import AttemptLease, HoldService, LeaseRequest
from tuner.driver.placement import Place
from tuner.driver.ports import Journal

LIMIT = 10_000
prices = st.integers(0, 20_000_000).map(Price)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(1, 5 * NS)),
        st.tuples(st.just("found"), prices),
        st.tuples(st.just("more"), st.just(0)),
    ),
    max_size=12,
)


def place(price: Price) -> Place:
    return Place(None, Rate(price))


def story(journal: Journal, first: Price, series: list[tuple[str, object]]) -> list[object]:
    """Return the results and the account after each act.

    Asserts after each act that the hold covers the rest of the lease, and that posted and held amounts fit the budget.
    """
    hold_service, results = HoldService(JOB, 10 * NS), list[object]()
    with journal.transaction() as tx:
        opened = hold_service.open(tx, FIRST, 1, [place(first)], LeaseRequest(NS, 1, None, Instant(0)))
        if opened is None:
            return [None]
        lease = AttemptLease(FIRST, 1, opened[0], Instant(0), opened[1], 1, opened[2], 0, None, 0)
        tx.put_attempt(lease.row)
    worked_ns = 0
    for act, value in series:
        with journal.transaction() as tx:
            at = Instant(worked_ns)
            if act == "work":
                worked_ns += value  # type: ignore[operator]
                lease.read(Meter({"train": worked_ns}), last_message_ns=0)
            elif act == "found":
                before, billed = lease.settled.total_ns, total(lease.posted)
                kept = hold_service.reprice(tx, lease, place(value), at)  # type: ignore[arg-type]
                assert lease.rate.price == value
                if kept and lease.settled.total_ns > before:
                    cost = lease.rate.cost(lease.settled.total_ns) - lease.rate.cost(before)
                    assert total(lease.posted) == billed + cost
                results.append(kept)
            else:
                results.append(hold_service.extend(tx, lease, LeaseRequest(NS, 1, None, at)))
            left = lease.rate.cost(lease.lease_ns) - lease.rate.cost(lease.settled.total_ns)
            assert left.fits(lease.held)
        account = journal.account()
        assert (account.posted + account.held).fits(account.limit)
        assert account.held == lease.held
        results.append(account)
    with journal.transaction() as tx:
        hold_service.close(tx, lease, lost_ns=0, at=Instant(worked_ns))
        tx.put_attempt(lease.ended("paused", Instant(worked_ns), reason="", detail=""))
        assert total(tx.posted(FIRST, 1)) == total(lease.posted)
    assert total(lease.posted) == journal.account().posted
    assert not journal.open_holds()
    return [*results, journal.account(), journal.attempts()]


@given(prices, acts)
@examples(150)
def test_repriced_attempt_is_billed_from_its_last_post_within_its_hold(
    first: Price, series: list[tuple[str, object]]
) -> None:
    story(in_memory(budget(LIMIT, 10**6)), first, series)


STORIES: list[list[tuple[str, object]]] = [
    [("found", Price(1_000_000)), ("work", 3 * NS), ("more", 0), ("work", 9 * NS)],
    [("work", 3 * NS), ("found", Price(9_000_000)), ("work", 2 * NS), ("more", 0), ("work", 1)],
    [("work", 9 * NS), ("found", Price(4_000_000_000)), ("work", 5 * NS)],
    [("found", Price(0)), ("work", NS), ("found", Price(3_600_000)), ("more", 0), ("found", Price(1))],
]


@pytest.mark.parametrize("number", range(len(STORIES)))
def test_memory_and_sql_journals_agree_on_repricing(number: int, database: Database) -> None:
    limits, first = budget(LIMIT, 10**6), Price(3_600_000)
    assert story(in_memory(limits), first, STORIES[number]) == story(
        in_sql(database, limits), first, STORIES[number]
    )
