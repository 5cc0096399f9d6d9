"""Test what happens when a driver ends: the job is relaunched later, at once or not at all, and holds that a dead
driver left open are closed.
"""

import pytest
from sqlalchemy import select

from tests.store.builders import JOB, PROJECT, budget, cost, hold
from tests.store.test_shared_budget_waits import running
from tuner.database.database import Database
from tuner.database.tables import attempts, trials
from tuner.domain.events import EnqueueRequested
from tuner.domain.job import JobState, StopReason
from tuner.domain.records import DRIVER_ENDED, AttemptRow
from tuner.domain.time import NS, Instant
from tuner.store import jobs, launches
from tuner.store.jobs import ControlAction
from tuner.store.journal import end_open, nodes_assigned_at
from tuner.store.launches import Launch

AT, OPENS = Instant(900 * NS), Instant(5000 * NS)
DONE, WAITS = "trial_00000", "trial_00001"


def launch(database: Database) -> Launch:
    with database.read() as db:
        current = launches.get(db, JOB)
    assert current is not None
    return current


def request_control(database: Database, action: ControlAction) -> None:
    with database.write() as db:
        jobs.set_control_request(db, JOB, action)


def test_job_with_closed_window_is_relaunched_when_it_opens(database: Database) -> None:
    with running(database).transaction() as tx:
        tx.put_job("paused", None, at=AT, again_at=OPENS)
    relaunched = launch(database)
    assert (relaunched.state, relaunched.epoch, relaunched.not_before) == ("wanted", 2, OPENS)


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_job_paused_or_cancelled_by_a_user_is_not_relaunched_for_its_window(
    database: Database, action: ControlAction
) -> None:
    journal = running(database)
    request_control(database, action)
    with journal.transaction() as tx:
        tx.put_job("paused", None, at=AT, again_at=OPENS)
    assert launch(database).state == "ended"


def test_job_resumed_while_pausing_is_relaunched_at_once(database: Database) -> None:
    journal = running(database)
    request_control(database, "resume")
    with journal.transaction() as tx:
        tx.put_job("paused", None, at=AT)
    relaunched = launch(database)
    assert (relaunched.state, relaunched.epoch, relaunched.not_before) == ("wanted", 2, 0)
    with database.read() as db:
        assert jobs.get(db, JOB).state == "running"


@pytest.mark.parametrize("state", ["paused", "succeeded", "failed"])
def test_job_whose_budget_was_raised_while_it_ended_is_relaunched(
    database: Database, state: JobState
) -> None:
    journal = running(database)
    with database.write() as db:
        jobs.set_budget(db, JOB, budget(200))
    with journal.transaction() as tx:
        tx.put_job(state, "budget_usd", at=AT)
    assert launch(database).state == "wanted"
    with database.read() as db:
        assert jobs.get(db, JOB).state == "running"


def enqueue(database: Database) -> int:
    """Enqueue a configuration, and return the number of the request."""
    with database.write() as db:
        jobs.request_trial(db, JOB, PROJECT, AT, lambda number: EnqueueRequested(AT, number, {"lr": 0.1}))
        return jobs.control(db, JOB).newest_request


@pytest.mark.parametrize("reason", ["space_exhausted", "trials", "budget_usd"])
def test_job_with_a_new_request_about_a_trial_is_relaunched_when_it_ends(
    database: Database, reason: StopReason
) -> None:
    journal = running(database)
    handled = enqueue(database)
    enqueue(database)
    with journal.transaction() as tx:
        tx.put_job("succeeded", reason, at=AT, requests=handled)
    assert launch(database).state == "wanted"
    with database.read() as db:
        assert jobs.get(db, JOB).state == "running"


@pytest.mark.parametrize(
    ("reason", "handles", "action"),
    [("target", False, None), ("space_exhausted", True, None), ("space_exhausted", False, "cancel")],
)
def test_job_without_a_new_request_that_matters_ends(
    database: Database, reason: StopReason, handles: bool, action: ControlAction | None
) -> None:
    journal = running(database)
    newest = enqueue(database)
    if action is not None:
        request_control(database, action)
    with journal.transaction() as tx:
        tx.put_job("succeeded", reason, at=AT, requests=newest if handles else 0)
    assert launch(database).state == "ended"


def test_running_state_update_keeps_the_launch(database: Database) -> None:
    with running(database).transaction() as tx:
        tx.put_job("running", None, at=AT, detail="busy")
    assert launch(database).state == "wanted"
    with database.read() as db:
        assert jobs.get(db, JOB).detail == "busy"


def test_open_attempts_of_a_dead_driver_end_as_lost_with_their_cost(database: Database) -> None:
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
