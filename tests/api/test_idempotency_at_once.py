"""Concurrent requests with one Idempotency-Key to two replicas of the service, on PostgreSQL.

SQLite has one writer at a time, so only PostgreSQL lets the requests overlap.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService, body
from tuner.database.database import Database

pytestmark = pytest.mark.needs("postgresql")
DAY_S, POSTS = 24 * 3600, 16


@pytest.fixture(scope="module")
def replicas(
    tmp_path_factory: pytest.TempPathFactory, postgres_module_url: str
) -> Iterator[list[FakeService]]:
    """Two services with one database and one clock."""
    settings = fakes.service_in(tmp_path_factory.mktemp("home")).settings
    databases = [Database(postgres_module_url) for _ in range(2)]
    now = fakes.FakeClock()
    yield [FakeService(settings, database, now=now) for database in databases]
    for database in databases:
        database.dispose()


@pytest.fixture(scope="module")
def clients(replicas: list[FakeService]) -> list[TestClient]:
    """Return a client of each replica.

    Each client sends one request first, because FastAPI builds its routes at the first request, which is not safe in several event loops
    at once.
    """
    found = [fakes.client_of(replica, own=True) for replica in replicas]
    assert all(client.get("/v1/jobs").is_success for client in found)
    return found


def post_at_once(clients: list[TestClient], key: str, names: list[str]) -> list[Any]:
    """Post a job for each name, to the replicas in turn. All threads start together."""
    ready = threading.Barrier(len(names))

    def post(number: int) -> Any:
        ready.wait()
        client = clients[number % len(clients)]
        return client.post("/v1/jobs", json=body(name=names[number]), headers={"Idempotency-Key": key})

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(post, range(len(names))))


def count(service: FakeService, table: str) -> int:
    with service.database.read() as db:
        return int(db.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


def submit_at_once(clients: list[TestClient], replicas: list[FakeService], key: str) -> tuple[set[str], int]:
    """Return the job ids in the answers, and the number of jobs created."""
    before = count(replicas[0], "jobs")
    answers = post_at_once(clients, key, ["one"] * POSTS)
    assert Counter(answer.status_code for answer in answers) == {201: POSTS}
    assert count(replicas[0], "accounts") == count(replicas[0], "launches") == count(replicas[0], "jobs")
    return {answer.json()["id"] for answer in answers}, count(replicas[0], "jobs") - before


def test_requests_with_one_key_create_one_job_per_day(
    clients: list[TestClient], replicas: list[FakeService]
) -> None:
    first, new = submit_at_once(clients, replicas, "k")
    assert (len(first), new) == (1, 1)
    replicas[0].now.pass_s(DAY_S - 1)
    assert submit_at_once(clients, replicas, "k") == (first, 0)
    replicas[0].now.pass_s(2)
    second, new = submit_at_once(clients, replicas, "k")
    assert (len(second), new) == (1, 1)
    assert second.isdisjoint(first)
    replicas[0].now.pass_s(DAY_S - 1)
    assert submit_at_once(clients, replicas, "k") == (second, 0)


def test_different_requests_with_one_key_create_one_job_and_conflicts(
    clients: list[TestClient], replicas: list[FakeService]
) -> None:
    before = count(replicas[0], "jobs")
    # Sorted, so that each name is sent to both replicas.
    answers = post_at_once(clients, "both", sorted(["one", "other"] * 10))
    names = {answer.json()["name"] for answer in answers if answer.status_code == 201}
    assert len(names) == 1
    assert Counter(answer.status_code for answer in answers) == {201: 10, 409: 10}
    assert count(replicas[0], "jobs") - before == 1
