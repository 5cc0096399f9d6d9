"""Test what the end of a driver leaves for the next one: a later launch, an immediate launch, or none, and the
holds that a dead driver left open.
"""

import pytest
from sqlalchemy import select

from tests.store.builders import JOB, cost, hold
from tests.store.test_shared_budget_waits import running
from tuner.database.database import Database
from tuner.database.tables import attempts, trials
from tuner.domain.records import DRIVER_ENDED, AttemptRow
from tuner.domain.time import NS, Instant
from tuner.store import jobs, launches
from tuner.store.jobs import Wish
from tuner.store.journal import end_open, nodes_assigned_at
from tuner.store.launches import Launch

AT, OPENS = Instant(900 * NS), Instant(5000 * NS)
DONE, WAITS = "trial_00000", "trial_00001"


def launch(database: Database) -> Launch:
    with database.read() as db:
        found = launches.get(db, JOB)
    assert found is not None
    return found


def wish(database: Database, wished: Wish) -> None:
    with database.write() as db:
        jobs.set_wish(db, JOB, wished)


def test_a_job_whose_window_closed_is_launched_when_it_opens(database: Database) -> None:
    with running(database).transaction() as tx:
        tx.put_job("paused", None, at=AT, again_at=OPENS)
    found = launch(database)
    assert (found.state, found.epoch, found.not_before) == ("wanted", 2, OPENS)


@pytest.mark.parametrize("wished", ["pause", "cancel"])
def test_one_that_a_person_paused_or_cancelled_meanwhile_is_not(database: Database, wished: Wish) -> None:
    journal = running(database)
    wish(database, wished)
    with journal.transaction() as tx:
        tx.put_job("paused", None, at=AT, again_at=OPENS)
    assert launch(database).state == "ended"


def test_one_that_was_resumed_while_it_was_being_paused_goes_on_at_once(database: Database) -> None:
    journal = running(database)
    wish(database, "resume")
    with journal.transaction() as tx:
        tx.put_job("paused", None, at=AT)
    found = launch(database)
    assert (found.state, found.epoch, found.not_before) == ("wanted", 2, 0)
    with database.read() as db:
        assert jobs.get(db, JOB).state == "running"


def test_a_word_that_a_job_runs_leaves_its_launch(database: Database) -> None:
    with running(database).transaction() as tx:
        tx.put_job("running", None, at=AT, detail="busy")
    assert launch(database).state == "wanted"
    with database.read() as db:
        assert jobs.get(db, JOB).detail == "busy"


def test_what_a_dead_driver_left_open_is_ended_as_lost_with_what_it_cost(database: Database) -> None:
    journal = running(database)
    with journal.transaction() as tx:
        tx.put_trial(DONE, "running", at=AT, config={})
        tx.put_trial(WAITS, "completed", at=AT, config={})
        tx.put_attempt(AttemptRow(DONE, 1, AT, assigned_at=Instant(AT + 1)))
        tx.put_attempt(AttemptRow(WAITS, 1, AT, ended_at=AT, end="completed"))
        tx.put_attempt(AttemptRow(WAITS, 2, AT))
        assert tx.hold(hold(1, cost(9)))
        tx.settle(hold(1, cost(9)).id, {"train": cost(7)}, at=AT)
    with database.read() as db:
        assert nodes_assigned_at(db, JOB) == {(DONE, 1): AT + 1, (WAITS, 2): None}
    with database.write() as db:
        end_open(db, JOB, OPENS)
        assert nodes_assigned_at(db, JOB) == {}
        a, t = attempts.c, trials.c
        rows = db.execute(
            select(a.end, a.reason, a.cause, a.costs).where(a.ended_at == OPENS).order_by(a.trial)
        )
        first, second = rows.all()
        assert (first.end, first.reason, first.cause) == ("lost", DRIVER_ENDED, "driver")
        assert "train" in first.costs
        assert "train" not in second.costs
        states = dict(db.execute(select(t.trial, t.state)).all())  # type: ignore[arg-type]
    assert states == {DONE: "stopped", WAITS: "completed"}
