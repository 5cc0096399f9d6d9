"""Requests with the same Idempotency-Key, one after another or at once, create one job."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.budgeting import put
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService, body
from tuner.database.database import Database
from tuner.schemas.job import JobRequest


def post(client: TestClient, key: str | None, **changes: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/v1/jobs", json=body(**changes), headers=headers)


def test_same_key_and_body_return_the_same_job(client: TestClient) -> None:
    first, second = post(client, "k"), post(client, "k")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert first.headers["location"] == second.headers["location"] == f"/v1/jobs/{first.json()['id']}"
    assert len(client.get("/v1/jobs").json()["items"]) == 1


def test_key_order_and_explicit_defaults_do_not_change_the_request(client: TestClient) -> None:
    first = post(client, "k")
    again = dict(reversed(body(constants={}, tags={}).items()))
    answer = client.post("/v1/jobs", json=again, headers={"Idempotency-Key": "k"})
    assert answer.json()["id"] == first.json()["id"]


def test_same_key_with_another_body_is_a_conflict(client: TestClient) -> None:
    post(client, "k")
    check_problem(post(client, "k", name="other"), 409)
    assert len(client.get("/v1/jobs").json()["items"]) == 1


def test_requests_without_key_or_with_different_keys_create_separate_jobs(client: TestClient) -> None:
    assert len({post(client, key).json()["id"] for key in (None, None, "k", "l")}) == 4


def test_repeated_request_returns_the_current_state_of_the_job(client: TestClient) -> None:
    job = post(client, "k").json()["id"]
    client.post(f"/v1/jobs/{job}/cancel")
    assert post(client, "k").json()["state"] == "cancelled"


def test_repeated_request_is_answered_while_the_cluster_is_down(
    client: TestClient, service: FakeService
) -> None:
    job = post(client, "k").json()["id"]
    service.cluster.is_down = True
    assert post(client, "k").json()["id"] == job
    check_problem(post(client, "l"), 503)


def test_idempotency_key_expires_after_a_day(client: TestClient, service: FakeService) -> None:
    job = post(client, "k").json()["id"]
    service.now.pass_s(24 * 3600)
    assert post(client, "k").json()["id"] == job
    service.now.pass_s(1)
    assert post(client, "k", name="other").json()["id"] != job


def test_refused_request_does_not_use_up_its_key(client: TestClient) -> None:
    assert post(client, "k", name="").status_code == 422
    assert post(client, "k").status_code == 201


def test_empty_or_too_long_key_is_refused(client: TestClient) -> None:
    for key in ("", "k" * 256):
        problem = check_problem(post(client, key), 422)
        assert [error["pointer"] for error in problem["errors"]] == ["Idempotency-Key"]
    assert post(client, "k" * 255).status_code == 201


def test_concurrent_identical_requests_create_one_job(service: FakeService) -> None:
    clients = [fakes.client_of(service) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda client: post(client, "k"), clients))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(clients[0].get("/v1/jobs").json()["items"]) == 1


def test_repeated_request_is_answered_after_the_shared_budget_is_exhausted(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the repeat's first lookup of the key, the first request creates the job and the budget is lowered."""
    put(client)
    first: list[str] = []

    def meanwhile() -> None:
        monkeypatch.undo()
        first.append(post(client, "k").json()["id"])
        put(client, usd=0.000001)

    monkeypatch.setattr(service.cluster, "check_fit", meanwhile)
    second = post(client, "k")
    assert second.status_code == 201, second.text
    assert [second.json()["id"]] == first


def test_new_optional_field_does_not_change_existing_requests(client: TestClient) -> None:
    class Later(JobRequest):
        new_option: str | None = None

    before, after = JobRequest(**body()), Later(**body(constants={}))
    assert before.without_defaults() == after.without_defaults()
    assert Later(**body(), new_option="x").without_defaults() != before.without_defaults()


# Concurrent requests to two replicas of the service. SQLite has one writer at a time, so only PostgreSQL lets them overlap.

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
    replica_clients = [fakes.client_of(replica, own=True) for replica in replicas]
    assert all(client.get("/v1/jobs").is_success for client in replica_clients)
    return replica_clients


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


@pytest.mark.needs("postgresql")
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


@pytest.mark.needs("postgresql")
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
