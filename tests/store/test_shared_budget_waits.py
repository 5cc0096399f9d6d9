"""Test that a job paused by a shared budget resumes when that budget allows more, but never if a user paused
it.
"""

from dataclasses import replace

from sqlalchemy import event

from tests.store.builders import JOB, OFFER, PROJECT, budget, create, hold, new_job
from tests.store.test_shared_budgets import account, check, put
from tuner.database.database import Database
from tuner.domain.cost import Meter
from tuner.domain.job import Resources
from tuner.domain.money import Cost, Money, Price
from tuner.domain.offer import Offer
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import DAY_NS, NS, Instant
from tuner.driver.holds import AttemptLease, HoldService
from tuner.driver.placement import Place
from tuner.ledger import budget_waits, shared_budget_changes
from tuner.store import jobs
from tuner.store.journal import SqlJournal

NOW = Instant(10 * DAY_NS)
ALL = SharedBudget("all", usd=Money(100))


def running(database: Database, name: str = JOB, *, tags: dict[str, str] | None = None) -> SqlJournal:
    create(database, new_job(name, limits=budget(10**6), tags=tags))
    with database.write() as db:
        jobs.begin_running(db, name, at=NOW)
    return SqlJournal(database, name, PROJECT, 1, NOW)


def pause(journal: SqlJournal, *, waits_for: str = "all", at: int = NOW) -> None:
    with journal.transaction() as tx:
        tx.put_job("paused", "budget_usd", at=Instant(at), waits_for=waits_for)


def goes_on(database: Database, at: int) -> bool:
    with database.read() as db:
        return [wait.job for wait in budget_waits.over(db, PROJECT, Instant(at))] == [JOB]


def test_expensive_machine_is_refused_if_only_the_shared_budget_is_too_small(database: Database) -> None:
    journal, hold_service = running(database), HoldService(JOB, 10 * NS)
    cheap = Place(OFFER, OFFER.rate(Resources()))
    expensive = Offer("m5.24xlarge", Price(100_000_000), cpus=2, gpus=0)
    expensive_place = Place(expensive, expensive.rate(Resources()))
    put(database, SharedBudget("all", usd=Money(1000)), at=NOW)
    lease = AttemptLease("trial_00000", 1, cheap, NOW, 10 * NS, 1, cheap.rate.cost(10 * NS), 0, None, 0)
    with journal.transaction() as tx:
        assert tx.hold(hold(1, lease.held))
    lease.meter = Meter({"setup": NS})
    held = lease.held
    with journal.transaction() as tx:
        assert not hold_service.reprice(tx, lease, expensive_place, NOW)
    assert expensive_place.rate.cost(lease.lease_ns).fits(held), "its hold is all that it may use up"
    with journal.transaction() as tx:
        hold_service.close(tx, lease, lost_ns=0, at=NOW)
    check(database)


def test_money_freed_while_the_job_is_pausing_resumes_it(database: Database) -> None:
    """The job takes a while to save everything and pause. Meanwhile the money comes back, and the budget is
    never raised after that.
    """
    journal = running(database)
    put(database, ALL, at=NOW)
    with journal.transaction() as tx:
        assert tx.hold(hold(1, Cost(Money(100))))
        assert not tx.hold(hold(2, Cost(Money(1))))
        tx.settle(hold(1, Cost()).id, {"train": Cost(Money(100))}, at=NOW)
    put(database, SharedBudget("all", usd=Money(10_000)), at=NOW)
    pause(journal)
    assert account(database, "all").left.usd == Money(9_900)
    assert not goes_on(database, NOW + 59 * NS)
    assert goes_on(database, NOW + 61 * NS)


def test_used_up_budget_is_not_retried(database: Database) -> None:
    journal = running(database)
    put(database, ALL, at=NOW)
    with journal.transaction() as tx:
        assert tx.hold(hold(1, Cost(Money(100))))
        tx.settle(hold(1, Cost()).id, {"train": Cost(Money(100))}, at=NOW)
    pause(journal)
    assert not goes_on(database, NOW + 1000 * DAY_NS)
    began_at, _ = ALL.span(NOW)
    with database.read() as db:
        assert budget_waits.used_up(db, PROJECT) == {("all", began_at)}


def test_budget_is_not_used_up_while_money_is_held_or_after_it_was_released(database: Database) -> None:
    other = "job_0000000000000002"
    journal, other_journal = running(database), running(database, other)
    put(database, ALL, at=NOW)
    with other_journal.transaction() as tx:
        assert tx.hold(hold(1, Cost(Money(99)), job=other))
    pause(journal)

    def is_used_up() -> bool:
        with database.read() as db:
            return bool(budget_waits.used_up(db, PROJECT))

    assert not is_used_up()
    with other_journal.transaction() as tx:
        tx.settle(hold(1, Cost(), job=other).id, {"train": Cost(Money(9))}, at=NOW)
    assert not is_used_up()
    with other_journal.transaction() as tx:
        assert tx.hold(hold(2, Cost(Money(90)), job=other))
        tx.settle(hold(2, Cost(), job=other).id, {"train": Cost(Money(90))}, at=NOW)
    assert is_used_up()


def test_raised_budget_resumes_the_job_at_once(database: Database) -> None:
    journal = running(database)
    put(database, ALL, at=NOW)
    pause(journal)
    assert not goes_on(database, NOW)
    put(database, SharedBudget("all", usd=Money(1000)), at=NOW)
    assert goes_on(database, NOW)


def test_job_resumes_when_the_budget_no_longer_covers_it(database: Database) -> None:
    journal = running(database, tags={"p": "a"})
    put(database, SharedBudget("all", usd=Money(100), match={"p": "a"}), at=NOW)
    with journal.transaction() as tx:
        assert tx.hold(hold(1, Cost(Money(100))))
        tx.settle(hold(1, Cost()).id, {"train": Cost(Money(100))}, at=NOW)
    pause(journal)
    assert not goes_on(database, NOW + DAY_NS)
    with database.write() as db:
        jobs.set_tags(db, JOB, PROJECT, {"p": "b"})
        shared_budget_changes.recount(db, PROJECT, NOW)
    assert goes_on(database, NOW)


def test_waiting_jobs_are_checked_with_as_many_statements_for_many_jobs(database: Database) -> None:
    """The reconciler checks them once a second, maybe for the rest of a month."""
    used_up = SharedBudget("all", usd=Money(100), match={"p": "a"})
    put(database, used_up, SharedBudget("other", usd=Money(100), match={"p": "b"}), at=NOW)
    with running(database, tags={"p": "a"}).transaction() as tx:
        assert tx.hold(hold(1, Cost(Money(100))))
        tx.settle(hold(1, Cost()).id, {"train": Cost(Money(100))}, at=NOW)
    for number in range(2, 5):
        pause(running(database, f"job_{number:016d}", tags={"owner": "ada", "p": "a"}))
    statements = list[str]()

    def needed() -> int:
        del statements[:]
        with database.read() as db:
            assert budget_waits.over(db, PROJECT, Instant(NOW + DAY_NS)) == []
        return len(statements)

    event.listen(database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    few = needed()
    for number in range(5, 40):
        pause(running(database, f"job_{number:016d}", tags={"p": "a"}))
    assert needed() == few
    with database.write() as db:
        jobs.set_tags(db, f"job_{7:016d}", PROJECT, {"p": "b"})
        jobs.set_tags(db, f"job_{8:016d}", PROJECT, {})
    with database.read() as db:
        over = budget_waits.over(db, PROJECT, Instant(NOW + DAY_NS))
    assert [wait.job for wait in over] == [f"job_{number:016d}" for number in (7, 8)]


def test_requested_pause_is_kept_when_the_budget_runs_out(database: Database) -> None:
    journal = running(database)
    put(database, ALL, at=NOW)
    with database.write() as db:
        jobs.set_control_request(db, JOB, "pause")
    pause(journal)
    put(database, SharedBudget("all", usd=Money(10_000)), at=NOW)
    assert not goes_on(database, NOW + DAY_NS)


def test_wait_ended_by_a_user_cannot_be_claimed(database: Database) -> None:
    journal = running(database)
    put(database, ALL, at=NOW)
    pause(journal)
    with database.read() as db:
        (wait,) = budget_waits.waiting(db, PROJECT)
    with database.write() as db:
        assert budget_waits.claim(db, wait)
        budget_waits.end(db, JOB)
        assert not budget_waits.claim(db, wait)


def test_job_resumes_in_the_next_period_or_when_its_budget_is_removed(database: Database) -> None:
    journal = running(database)
    put(database, SharedBudget("all", usd=Money(100), period="day"), at=NOW)
    with journal.transaction() as tx:
        assert tx.hold(replace(hold(1, Cost(Money(100))), placed_at=NOW))
    pause(journal)
    assert not goes_on(database, NOW + DAY_NS - 1)
    assert goes_on(database, NOW + DAY_NS)
    with database.write() as db:
        shared_budget_changes.remove(db, PROJECT, "all", at=NOW)
    assert goes_on(database, NOW)


def test_each_failed_retry_doubles_the_wait_up_to_an_hour(database: Database) -> None:
    """The wait grows up to an hour. Another budget, or a change of this one, resets it."""
    running(database)
    with database.write() as db:
        jobs.move(db, JOB, "paused", None, at=NOW)
    put(database, ALL, SharedBudget("other", usd=Money(5)), at=NOW)

    def waits_s(name: str) -> float | None:
        with database.write() as db:
            budget_waits.note(db, PROJECT, JOB, name, NOW)
            waits = budget_waits.waiting(db, PROJECT)
            return (waits[0].not_before - NOW) / NS if waits else None

    assert [waits_s("all") for _ in range(8)] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert waits_s("other") == 60
    assert waits_s("all") == 60
    put(database, ALL, at=NOW)
    assert waits_s("all") == 120
    assert waits_s("gone") is None
