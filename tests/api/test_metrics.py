"""Figures for Prometheus: equal to what the API tells, and without a series for each id."""

from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.fakes import FakeService

STATES = {"queued", "running", "paused", "succeeded", "cancelled", "failed"}


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return fakes.client_of(service, own=True)


@pytest.fixture(scope="module")
def full(finished: Finished) -> TestClient:
    """Over the finished jobs."""
    return fakes.client_of(finished.service, own=True)


def scraped(client: TestClient) -> dict[str, list[Any]]:
    """Samples by the name of their family."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        found.setdefault(family.name, []).extend(family.samples)
    return found


def by_label(samples: list[Any], label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in samples}


def value(samples: list[Any]) -> float:
    (only,) = samples
    return float(only.value)


def test_a_service_without_jobs_has_figures(client: TestClient) -> None:
    found = scraped(client)
    assert by_label(found["tuner_jobs"], "state") == dict.fromkeys(STATES, 0)
    assert value(found["tuner_held_usd"]) == 0


def test_jobs_and_trials_are_counted_by_state(full: TestClient) -> None:
    found, jobs = scraped(full), full.get("/v1/jobs", params={"limit": 500}).json()
    counted = Counter(job["state"] for job in jobs["items"])
    assert by_label(found["tuner_jobs"], "state") == {state: counted[state] for state in STATES}
    trials: Counter[str] = Counter()
    for job in jobs["items"]:
        trials.update(job["progress"]["trials"])
    assert by_label(found["tuner_trials"], "state") == {state: n for state, n in trials.items() if n}


def test_money_is_that_of_all_bills(full: TestClient) -> None:
    found = scraped(full)
    jobs = full.get("/v1/jobs", params={"limit": 500}).json()["items"]
    bills = [full.get(f"/v1/jobs/{job['id']}/bill").json() for job in jobs]
    for kind, usd in by_label(found["tuner_spend_usd"], "kind").items():
        assert usd == pytest.approx(sum(bill["by_kind"][kind] for bill in bills), abs=1e-7)
    held = sum(bill["held_usd"] for bill in bills)
    assert held > 0
    assert value(found["tuner_held_usd"]) == pytest.approx(held, abs=1e-7)


def test_preemptions_are_those_of_all_bills(full: TestClient) -> None:
    jobs = full.get("/v1/jobs", params={"limit": 500}).json()["items"]
    bills = [full.get(f"/v1/jobs/{job['id']}/bill").json() for job in jobs]
    assert value(scraped(full)["tuner_preemptions"]) == sum(bill["preemptions"] for bill in bills) > 0


def test_waits_are_from_submission_to_the_first_driver(client: TestClient, service: FakeService) -> None:
    first, second, _ = (fakes.submit(client) for _ in range(3))
    service.now.pass_s(4)
    fakes.begin(service, first)
    service.now.pass_s(2.5)
    fakes.begin(service, second)
    samples = {sample.name: sample.value for sample in scraped(client)["tuner_queue_wait_seconds"]}
    assert samples == {"tuner_queue_wait_seconds_count": 2, "tuner_queue_wait_seconds_sum": 10.5}


def calls(client: TestClient) -> dict[tuple[str, str, str], float]:
    samples = scraped(client)["tuner_http_request_seconds"]
    return {
        (sample.labels["method"], sample.labels["route"], sample.labels["status"]): sample.value
        for sample in samples
        if sample.name.endswith("_count")
    }


def test_requests_are_timed_by_the_template_of_their_route(client: TestClient) -> None:
    job = fakes.submit(client)
    for _ in range(3):
        client.get(f"/v1/jobs/{job}")
    client.get("/v1/jobs/job_0")
    client.get(f"/v1/jobs/{job}/trials/trial_00000")
    client.post("/v1/jobs", json={})
    client.get("/healthz")
    client.get(f"/{job}")
    client.get("/v1/jobs", headers={"Authorization": "Bearer wrong"})
    counted = calls(client)
    assert counted["GET", "/v1/jobs/{job}", "200"] == 3
    assert counted["GET", "/v1/jobs/{job}", "404"] == 1
    assert counted["GET", "/v1/jobs/{job}/trials/{trial}", "404"] == 1
    assert counted["POST", "/v1/jobs", "201"] == counted["POST", "/v1/jobs", "422"] == 1
    assert counted["GET", "/v1/jobs", "401"] == 1
    assert counted["GET", "/healthz", "200"] == 1
    assert not any(job in route or "job_0" in route for _, route, _ in counted)


def test_strange_methods_and_paths_make_no_series_at_will(client: TestClient) -> None:
    for number in range(20):
        client.get(f"/nothing/{number}")
        client.get(f"/v1/nothing/{number}")
    routes = {route for _, route, _ in calls(client)}
    assert not any("nothing" in route for route in routes)


def test_made_up_methods_make_no_series_at_will(client: TestClient) -> None:
    for number in range(20):
        client.request(f"METHOD{number}", "/healthz")
    assert len({method for method, _, _ in calls(client)}) <= 2
