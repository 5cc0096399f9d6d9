"""A pass of the controller costs the same for any number of running jobs, because it runs four times per second."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, event
from starlette.testclient import TestClient

from tests import fakes
from tests.copies import copy_job
from tests.fakes import EPOCH, FakeCluster, FakeService
from tests.service.passes import give_room, submit
from tuner.cluster.jobs import JobStatus
from tuner.domain.fair_share import Waiting
from tuner.domain.time import Instant
from tuner.service import control
from tuner.service import controller as passes
from tuner.service.controller import ASK_AT_ONCE, Controller
from tuner.service.mirroring import StoredRecord
from tuner.service.reconciler import Reconciler
from tuner.service.views import job_view
from tuner.store import launches, queue

RUNNING = 50
SCANS = ("SCAN jobs", "SCAN launches")  #: Steps of a query plan of SQLite that read all rows.


@pytest.fixture
def queried(service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fill the cluster with `RUNNING` jobs, and return the list that records which drivers Ray is asked for."""
    job = submit(service, client)
    fakes.begin(service, job)
    copy_job(service.database, job, RUNNING - 1)
    give_room(service, cpus=2 * RUNNING)
    queried: list[str] = []

    def status(cluster: FakeCluster, name: str) -> JobStatus:
        queried.append(name)
        return "running"

    monkeypatch.setattr(FakeCluster, "status", status)
    return queried


def test_each_pass_queries_a_few_drivers_in_turn(
    service: FakeService, queried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is fixed, so all passes run at the same instant."""
    monkeypatch.setattr(passes, "time", SimpleNamespace(monotonic=lambda: 100.0))
    controller = Controller(service)
    controller.one_pass()
    assert len(queried) == ASK_AT_ONCE
    while len(queried) < RUNNING:
        controller.one_pass()
    assert len(set(queried)) == len(queried) == RUNNING


def test_silent_driver_is_queried_first(
    service: FakeService, queried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "ASK_EVERY_S", 0.0)
    controller = Controller(service)
    controller.one_pass()
    service.now.pass_s(10)
    with service.database.write() as db:
        for launch in launches.live(db):
            if launch.job != "job_copy30":
                launches.record_heartbeat(db, launch.job, launch.epoch, service.now())
    for _ in range(3):
        del queried[:]
        controller.one_pass()
        assert queried[0] == "job_copy30-1"
        assert len(queried) == ASK_AT_ONCE


def test_running_job_is_read_once_while_others_wait_for_room(
    service: FakeService, client: TestClient, queried: list[str]
) -> None:
    submit(service, client)
    controller, statements = Controller(service), list[str]()
    controller.one_pass()
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    controller.one_pass()
    assert service.cluster.submitted == []
    assert len(statements) < 20


def test_recurring_queries_do_not_read_all_jobs_ever_made(
    service: FakeService, client: TestClient, queried: list[str]
) -> None:
    """The services run these queries at least once per second."""
    submit(service, client)
    record, recurring = StoredRecord(service), list[tuple[str, Any]]()
    event.listen(
        service.database.engine,
        "before_cursor_execute",
        lambda *arguments: recurring.append((arguments[2], arguments[3])),
    )
    Controller(service).one_pass()
    Reconciler(service).one_pass()
    record.heads({"job_copy1"})
    with service.database.read() as db:
        plans = {
            (statement, step.detail)
            for statement, parameters in recurring
            if statement.startswith("SELECT")
            for step in db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        }
    assert len(plans) > 20
    assert [(statement, step) for statement, step in plans if step.startswith(SCANS)] == []


def test_first_pass_reads_waiting_jobs_together(service: FakeService, client: TestClient) -> None:
    """One job has a window, which is closed."""
    job = submit(service, client)
    copy_job(service.database, job, RUNNING)
    hour = {"start": "00:00", "end": "06:00", "timezone": "Europe/Berlin"}
    with_window = fakes.submit(client, window=hour)
    controller, statements = Controller(service), list[str]()
    with service.database.write() as db:
        due = [launch.job for launch in launches.live(db)]
        launches.put_off(
            db,
            next(live_launch for live_launch in launches.live(db) if live_launch.job == with_window),
            EPOCH,
        )
        assert list(queue.windows(db, due)) == [with_window]
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    controller.one_pass()
    assert len(service.cluster.submitted) == 1
    assert len(statements) < RUNNING
    with service.database.read() as db:
        assert next(launch for launch in launches.live(db) if launch.job == with_window).not_before > EPOCH


def test_watching_waiting_jobs_reads_the_queue_once_per_second(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = dataclasses.replace(service, queue_places=queue.QueuePlaces())
    copy_job(service.database, submit(service, client), 200)
    readings = list[int]()
    waiting = queue.waiting

    def counted(db: Connection, now: Instant) -> list[Waiting]:
        readings.append(now)
        return waiting(db, now)

    monkeypatch.setattr(queue, "waiting", counted)
    for _ in range(4):
        places = [job_view(watching, f"job_copy{number}").wait.position for number in range(1, 21)]
        assert len(set(places)) == 20
        service.now.pass_s(0.25)
    assert len(readings) == 1
    job_view(watching, "job_copy1")
    assert len(readings) == 2


def test_new_job_and_changed_priority_have_their_place_at_once(
    service: FakeService, client: TestClient
) -> None:
    watching = dataclasses.replace(service, queue_places=queue.QueuePlaces())
    first, second = submit(service, client), submit(service, client)
    assert [job_view(watching, job).wait.position for job in (first, second)] == [1, 2]
    third = fakes.submit(client)
    assert job_view(watching, third).wait.position == 3
    control.patch(watching, third, priority=5)
    assert [job_view(watching, job).wait.position for job in (first, second, third)] == [2, 3, 1]
