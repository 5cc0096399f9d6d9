"""An Idempotency-Key makes one job a day, however many send it at once, to whichever service: on PostgreSQL, which lets them all begin."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes, postgres
from tests.fakes import FakeService, body
from tuner.store.database import Database

pytestmark = pytest.mark.skipif(postgres.programs() is None, reason="this machine has no PostgreSQL")
DAY_S, POSTS = 24 * 3600, 50


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[FakeService]]:
    """Two, with one database and one clock."""
    settings = fakes.service_in(tmp_path_factory.mktemp("home")).settings
    with postgres.server() as url:
        databases = [Database(url) for _ in range(2)]
        databases[0].migrate()
        now = fakes.FakeClock()
        yield [FakeService(settings, database, now=now) for database in databases]
        for database in databases:
            database.dispose()


@pytest.fixture(scope="module")
def clients(replicas: list[FakeService]) -> list[TestClient]:
    """Each has answered: FastAPI puts its routes together for the first who asks, which is not made for many loops at once."""
    found = [fakes.client_of(one, own=True, raises=False) for one in replicas]
    assert all(client.get("/v1/jobs").is_success for client in found)
    return found


def post_at_once(clients: list[TestClient], key: str, names: list[str]) -> list[Any]:
    """To one replica and the other in turn; none is sent before all are ready."""
    ready = threading.Barrier(len(names))

    def post(number: int) -> Any:
        ready.wait()
        client = clients[number % len(clients)]
        return client.post("/v1/jobs", json=body(name=names[number]), headers={"Idempotency-Key": key})

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(post, range(len(names))))


def rows(service: FakeService, table: str) -> int:
    with service.database.read() as db:
        return int(db.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


def made_by(clients: list[TestClient], replicas: list[FakeService], key: str) -> tuple[set[str], int]:
    """The jobs that all were answered with, and how many there are more than before."""
    before = rows(replicas[0], "jobs")
    answers = post_at_once(clients, key, ["one"] * POSTS)
    assert Counter(answer.status_code for answer in answers) == {201: POSTS}
    assert rows(replicas[0], "accounts") == rows(replicas[0], "launches") == rows(replicas[0], "jobs")
    return {answer.json()["id"] for answer in answers}, rows(replicas[0], "jobs") - before


def test_one_job_until_a_day_has_passed_and_one_more_then(
    clients: list[TestClient], replicas: list[FakeService]
) -> None:
    first, new = made_by(clients, replicas, "k")
    assert (len(first), new) == (1, 1)
    replicas[0].now.pass_s(DAY_S - 1)
    assert made_by(clients, replicas, "k") == (first, 0)
    replicas[0].now.pass_s(2)
    second, new = made_by(clients, replicas, "k")
    assert (len(second), new) == (1, 1)
    assert second.isdisjoint(first)
    replicas[0].now.pass_s(DAY_S - 1)
    assert made_by(clients, replicas, "k") == (second, 0)


def test_of_two_requests_with_one_key_one_is_a_job_and_the_other_a_conflict(
    clients: list[TestClient], replicas: list[FakeService]
) -> None:
    before = rows(replicas[0], "jobs")
    names = ["one", "other"] * 10
    # Every second goes to the other replica: both names go to both.
    answers = post_at_once(clients, "both", sorted(names))
    won = {answer.json()["name"] for answer in answers if answer.status_code == 201}
    assert len(won) == 1
    assert Counter(answer.status_code for answer in answers) == {201: 10, 409: 10}
    assert rows(replicas[0], "jobs") - before == 1
