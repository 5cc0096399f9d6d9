"""Submit jobs, run passes of the controller, and read the resulting rows."""

from typing import Any

from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tuner.cluster.jobs import JobStatus
from tuner.cluster.nodes import Node
from tuner.service.controller import Controller
from tuner.store import jobs, launches
from tuner.store.jobs import JobRow
from tuner.store.launches import Launch


def give_room(service: FakeService, cpus: float = 100) -> None:
    """Give the cluster room for many jobs of two trials at once."""
    service.cluster.fake_nodes = [Node("n1", cpus=cpus, gpus=0, memory_bytes=1)]


def submit(service: FakeService, client: TestClient, **more: Any) -> str:
    """Submit a job that takes two CPUs in all, and advance the clock by a second."""
    job = fakes.submit(client, resources={"max_concurrent_trials": 2}, **more)
    service.now.pass_s(1)
    return job


def launch_of(service: FakeService, job: str) -> Launch:
    with service.database.read() as db:
        launch = launches.get(db, job)
    assert launch is not None
    return launch


def row_of(service: FakeService, job: str) -> JobRow:
    with service.database.read() as db:
        return jobs.get(db, job)


def one_pass(service: FakeService) -> None:
    """Advance the clock by five seconds and run one pass of a new controller."""
    service.now.pass_s(5)
    Controller(service).one_pass()


def until_submitted(service: FakeService, job: str) -> None:
    while launch_of(service, job).state != "submitted":
        one_pass(service)


def end(service: FakeService, job: str) -> None:
    fakes.begin(service, job)
    fakes.move(service, job, "succeeded")


def launched(service: FakeService) -> list[str]:
    """Return the jobs in the order of their first submission to Ray."""
    return list(dict.fromkeys(name.partition("-")[0] for name in service.cluster.submitted))


def die(service: FakeService, job: str, status: JobStatus = "failed") -> None:
    service.cluster.statuses[launch_of(service, job).submission_id] = status
