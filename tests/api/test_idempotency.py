"""A repeated request with the same Idempotency-Key creates no second job."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.budgeting import put
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService, body
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


def test_requests_without_key_create_separate_jobs(client: TestClient) -> None:
    assert post(client, None).json()["id"] != post(client, None).json()["id"]


def test_requests_with_different_keys_create_separate_jobs(client: TestClient) -> None:
    assert post(client, "k").json()["id"] != post(client, "l").json()["id"]


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
