"""Test what a driver reads and records about its launch, in a database whose connection may break."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.store.builders import JOB, create, new_job
from tuner.database.database import Database
from tuner.domain.errors import Fenced, Unavailable
from tuner.domain.ledger import WORKERS_OUTLIVE_NS
from tuner.domain.time import NS, Instant
from tuner.driver.control_poller import ControlPoller
from tuner.driver.launch_context import Heartbeat, LaunchContext
from tuner.store import jobs, launches
from tuner.store.jobs import Control


def test_driver_whose_launch_was_called_off_does_not_begin(database: Database) -> None:
    create(database, new_job())
    with database.write() as db:
        launches.end(db, JOB, 1)
        jobs.move(db, JOB, "paused", None, at=Instant(1))
    with pytest.raises(Fenced):
        LaunchContext(database, JOB, 1).begin()
    with database.read() as db:
        assert jobs.get(db, JOB).state == "paused"


@pytest.mark.parametrize(("noticed_after_s", "ended_after_s"), [(1, 1.5), (5, 1.5), (30, 31.5)])
def test_workers_of_a_driver_that_was_silent_for_long_are_billed_until_its_death_was_noticed(
    database: Database, noticed_after_s: int, ended_after_s: float
) -> None:
    """Such a driver may have lived on, because the database did not answer or because it was suspended."""
    create(database, new_job())
    beat_at = Instant(1000 * NS)
    with database.write() as db:
        first = launches.get(db, JOB)
        assert first is not None
        assert first.previous_workers_ended_by is None
        launches.record_heartbeat(db, JOB, 1, beat_at)
        dead, noticed_at = launches.get(db, JOB), Instant(beat_at + noticed_after_s * NS)
        assert dead is not None
        launches.again(db, dead, at=noticed_at, not_before=noticed_at, quick_deaths=0)
        launch = launches.get(db, JOB)
        assert launch is not None
        assert launch.previous_workers_ended_by == beat_at + ended_after_s * NS


def test_drivers_that_die_before_they_begin_workers_do_not_extend_the_bill(database: Database) -> None:
    """The second driver sends heartbeats for ten minutes, and dies before it has closed what the first one left open."""
    create(database, new_job())
    beat_at, noticed_at = Instant(1000 * NS), Instant(1005 * NS)
    with database.write() as db:
        launches.record_heartbeat(db, JOB, 1, beat_at)
        for epoch in (1, 2):
            dead = launches.get(db, JOB)
            assert dead is not None
            launches.again(db, dead, at=noticed_at, not_before=noticed_at, quick_deaths=0)
            launches.record_heartbeat(db, JOB, epoch + 1, Instant((1600 + epoch) * NS))
        launch = launches.get(db, JOB)
    assert launch is not None
    assert launch.previous_workers_ended_by == noticed_at + WORKERS_OUTLIVE_NS


@pytest.mark.parametrize(("cuts", "answers"), [(0, True), (1, True), (2, False)])
def test_interrupted_read_of_control_request_is_retried_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, cuts: int, answers: bool
) -> None:
    create(database, new_job())
    whole, left = jobs.control, [None] * cuts

    def cut(*args: object) -> Control:
        if left:
            left.pop()
            raise Unavailable("the server closed the connection")
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(jobs, "control", cut)
    if answers:
        assert LaunchContext(database, JOB, 1).control().request is None
    else:
        with pytest.raises(Unavailable):
            LaunchContext(database, JOB, 1).control()


def test_no_error_ends_the_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without heartbeats, the service would stop a healthy driver."""
    monkeypatch.setattr("tuner.driver.launch_context.HEARTBEAT_S", 0.001)
    errors: list[Exception] = [RuntimeError("a bug"), Fenced("the owner cannot be read"), Unavailable("gone")]
    recorded = threading.Event()

    def record() -> None:
        if errors:
            raise errors.pop(0)
        recorded.set()

    context: Any = SimpleNamespace(record_heartbeat=record, database=SimpleNamespace(read=record))
    heartbeat = Heartbeat(context)
    heartbeat.start()
    try:
        assert recorded.wait(30)
    finally:
        heartbeat.stop()
        heartbeat.join()


def test_each_turn_of_tune_answers_pending_suggestions() -> None:
    answered = list[str]()
    loop: Any = SimpleNamespace(end="ended", answer_suggestions=lambda: answered.append("again"))
    unused: Any = None
    poller = ControlPoller(loop, unused, unused, Heartbeat(unused), unused, 1)
    for _ in range(3):
        poller.turn()
    assert len(answered) == 3
