"""Test what a driver reads about its job, from a database whose connection may break."""

import pytest

from tests.store.builders import JOB, create, new_job
from tuner.database.database import Database
from tuner.domain.errors import Fenced, Unavailable
from tuner.domain.time import Instant
from tuner.driver.main import LaunchContext
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
