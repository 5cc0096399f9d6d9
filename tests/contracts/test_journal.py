"""The contract of every journal, in memory and in SQL: its events, rows and transactions."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contracts.turns import (
    AT,
    FIRST,
    SECOND,
    append,
    forget_checkpoints,
    place,
    posted,
    put_attempt,
    put_checkpoint,
    put_job,
    put_report,
    report,
    seen,
    set_limit,
    spend,
)
from tests.store.builders import budget, cost, hold
from tuner.domain.budget import Budget
from tuner.domain.environment import Environment
from tuner.domain.errors import BudgetRefused, Conflict
from tuner.domain.events import Completed, Event, Reported, Suggested
from tuner.domain.job import JOB_STATES, MOVES, JobState
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Money
from tuner.domain.records import AttemptRow, CheckpointRow
from tuner.domain.time import Instant
from tuner.driver.ports import Journal, JournalTx

EVENTS: list[Event] = [
    Suggested(Instant(1), FIRST, {"lr": 0.1}),
    Reported(Instant(3), FIRST, 1, None, Money(5)),
    Reported(Instant(2), SECOND, 1, 0.5, Money(6)),
    Completed(Instant(2), FIRST),
]


# Events


def test_events_are_numbered_from_one_and_read_in_the_order_recorded(journal: Journal) -> None:
    assert [append(journal, event) for event in EVENTS] == [1, 2, 3, 4]
    assert list(journal.events()) == EVENTS


def test_events_of_later_transactions_continue_the_numbering(journal: Journal) -> None:
    append(journal, EVENTS[0])
    with journal.transaction() as tx:
        assert [tx.append(event) for event in EVENTS[1:3]] == [2, 3]
    assert append(journal, EVENTS[3]) == 4
    assert list(journal.events()) == EVENTS


def test_new_job_has_no_events(journal: Journal) -> None:
    assert list(journal.events()) == []


# Reports


def test_first_report_of_a_step_is_kept(journal: Journal) -> None:
    assert put_report(journal, report(1, 0.5, usd=3))
    assert not put_report(journal, report(1, 0.9, usd=7))
    with journal.transaction() as tx:
        assert tx.reached(FIRST, 1) == (cost(3, 6), 3000)


def test_repeated_report_counts_once(journal: Journal) -> None:
    first = report()
    assert put_report(journal, first)
    assert not put_report(journal, first)


def test_only_reported_steps_are_reached(journal: Journal) -> None:
    put_report(journal, report(2, usd=3))
    put_report(journal, report(2, usd=4, trial=SECOND))
    with journal.transaction() as tx:
        assert [tx.reached(FIRST, step) for step in (1, 2, 3)] == [None, (cost(3, 6), 3000), None]
        assert tx.reached(SECOND, 2) == (cost(4, 8), 4000)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_step_without_a_usable_value_is_reached(journal: Journal, value: float | None) -> None:
    with journal.transaction() as tx:
        tx.put_trial(FIRST, "running", at=AT, config={"lr": 0.1})
    assert put_report(journal, report(1, value))
    with journal.transaction() as tx:
        assert tx.reached(FIRST, 1) is not None


# Attempts and checkpoints


def test_attempts_returns_the_newest_attempt_of_each_trial(journal: Journal) -> None:
    rows = [AttemptRow(trial, number, AT) for trial in (FIRST, SECOND) for number in (1, 2, 10)]
    for row in [rows[2], *rows]:
        put_attempt(journal, row)
    assert sorted(journal.attempts(), key=lambda row: row.trial) == [rows[2], rows[5]]


def test_attempt_row_is_replaced_completely(journal: Journal) -> None:
    put_attempt(journal, AttemptRow(FIRST, 1, AT, node="a"))
    ended = AttemptRow(
        FIRST,
        1,
        AT,
        ended_at=Instant(12),
        end="lost",
        reason="the node went",
        detail="SIGTERM",
        node="b",
        from_step=3,
        to_step=7,
        costs={"train": cost(5, 6), "lost": cost(-1)},
        assigned_at=Instant(10),
        environment=Environment(threads=2, seed=7, versions={"torch": "2.13.0"}, code="c0de"),
    )
    put_attempt(journal, ended)
    assert journal.attempts() == [ended]


def test_newest_checkpoint_of_a_trial_is_at_its_highest_step(journal: Journal) -> None:
    assert journal.newest_checkpoints() == {}
    for trial, step in [(FIRST, 9), (FIRST, 10), (FIRST, 2), (SECOND, 1)]:
        put_checkpoint(journal, trial, step)
    put_checkpoint(journal, SECOND, 1, uri="s3://b")
    assert journal.newest_checkpoints() == {FIRST: 10, SECOND: 1}


def test_damaged_checkpoints_are_forgotten(journal: Journal) -> None:
    for trial, step in [(FIRST, 5), (FIRST, 9), (FIRST, 11), (SECOND, 9)]:
        put_checkpoint(journal, trial, step)
    with journal.transaction() as tx:
        tx.forget_checkpoints(FIRST, after_step=5)
        tx.put_checkpoint(CheckpointRow(FIRST, 9, 2, "s3://again", 10, 0.5, AT))
    assert journal.newest_checkpoints() == {FIRST: 9, SECOND: 9}
    forget_checkpoints(journal, FIRST, after_step=8)
    assert journal.newest_checkpoints() == {FIRST: 5, SECOND: 9}
    forget_checkpoints(journal, FIRST, after_step=0)
    assert journal.newest_checkpoints() == {SECOND: 9}


# The job and its budget


@pytest.mark.parametrize("state", [s for s in JOB_STATES if s not in MOVES["running"] | {"running"}])
def test_forbidden_state_change_is_a_conflict(journal: Journal, state: JobState) -> None:
    with pytest.raises(Conflict):
        put_job(journal, state)
    append(journal, EVENTS[0])
    put_job(journal, "succeeded")


@pytest.mark.parametrize("state", sorted(MOVES["running"] | {"running"}))
def test_allowed_state_change_is_made(journal: Journal, state: JobState) -> None:
    put_job(journal, state)


def test_limit_below_spend_and_holds_is_refused_and_unchanged(journal: Journal) -> None:
    spend(journal, 1, {"train": cost(10, 10)})
    place(journal, hold(2, cost(20, 20)))
    before = journal.account()
    for limits in (budget(29, 100), budget(100, 29)):
        with pytest.raises((BudgetRefused, Conflict)):
            set_limit(journal, limits)
    assert journal.account() == before


def test_new_limit_applies_to_later_holds(journal: Journal) -> None:
    place(journal, hold(1, cost(30, 30)))
    with journal.transaction() as tx:
        tx.set_limit(budget(30, 30))
        assert not tx.hold(hold(2, cost(1)))
        tx.set_limit(Budget(gpu_ms=31))
        assert tx.hold(hold(2, cost(10**12, 1)))
    assert journal.account().held == cost(10**12 + 30, 31)


# Transactions


def turn(tx: JournalTx) -> None:
    """Make one change of every kind."""
    tx.append(EVENTS[0])
    tx.hold(hold(2, cost(10, 10)))
    tx.settle(hold(1, FREE).id, {"train": cost(5, 5)}, at=AT)
    tx.correct("c", trial=FIRST, attempt=1, costs={"train": cost(-1), "lost": cost(1)}, at=AT)
    tx.put_trial(FIRST, "running", at=AT, config={"lr": 0.1})
    tx.put_attempt(AttemptRow(FIRST, 1, AT))
    tx.put_report(report())
    tx.put_checkpoint(CheckpointRow(FIRST, 1, 1, "s3://a", 10, 0.5, AT))
    tx.set_limit(budget(90, 90))
    tx.put_job("succeeded", "trials", at=AT)


def fail(journal: Journal) -> None:
    with journal.transaction() as tx:
        turn(tx)
        raise ZeroDivisionError


def test_exception_in_a_transaction_rolls_everything_back(journal: Journal) -> None:
    place(journal, hold(1, cost(30, 30)))
    before = seen(journal)
    with pytest.raises(ZeroDivisionError):
        fail(journal)
    assert seen(journal) == before
    assert posted(journal) == {}
    with journal.transaction() as tx:
        assert tx.reached(FIRST, 1) is None


def test_rolled_back_transaction_can_be_repeated_with_the_same_numbers(journal: Journal) -> None:
    place(journal, hold(1, cost(30, 30)))
    append(journal, EVENTS[3])
    with pytest.raises(ZeroDivisionError):
        fail(journal)
    with journal.transaction() as tx:
        turn(tx)
    assert list(journal.events()) == [EVENTS[3], EVENTS[0]]
    assert journal.account() == Account(cost(90, 90), posted=cost(5, 5), held=cost(10, 10))


def test_changes_are_invisible_to_other_threads_before_the_transaction_ends(journal: Journal) -> None:
    place(journal, hold(1, cost(30, 30)))
    before = seen(journal)
    with journal.transaction() as tx:
        tx.append(EVENTS[0])
        assert tx.hold(hold(2, cost(10, 10)))
        assert tx.account().held == cost(40, 40)
        with ThreadPoolExecutor(1) as other_thread:
            assert other_thread.submit(seen, journal).result() == before
    assert journal.account().held == cost(40, 40)
