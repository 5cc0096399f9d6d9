"""Prometheus metrics: equal to the API's values, and without a series per id."""

import asyncio
import re
from collections import Counter
from typing import Any, get_args
from unittest.mock import patch

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from tests import fakes
from tests.api.conftest import Finished
from tests.copies import copy_job
from tests.fakes import FakeService
from tuner.api import metric_families
from tuner.api.metric_families import OF_PROCESS as families_of_process
from tuner.api.metric_families import OWN
from tuner.api.metrics import LatencyMiddleware, Metrics
from tuner.database.database import Database
from tuner.domain.errors import Unavailable
from tuner.domain.trial import TrialState
from tuner.service.periodic import ServiceHealth

STATES = {"queued", "running", "paused", "succeeded", "cancelled", "failed"}


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return fakes.client_of(service, own=True)


@pytest.fixture(scope="module")
def full(finished: Finished) -> TestClient:
    """Return a client of the service with the finished jobs."""
    return fakes.client_of(finished.service, own=True)


def scraped(client: TestClient) -> dict[str, list[Any]]:
    """Return the samples by the name of their family."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        samples.setdefault(family.name, []).extend(family.samples)
    return samples


def by_label(samples: list[Any], label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in samples}


def value(samples: list[Any]) -> float:
    (only,) = samples
    return float(only.value)


def test_service_without_jobs_exports_metrics(client: TestClient) -> None:
    samples = scraped(client)
    assert by_label(samples["tuner_jobs"], "state") == dict.fromkeys(STATES, 0)
    assert value(samples["tuner_held_usd"]) == 0


def test_jobs_and_trials_are_counted_by_state(full: TestClient) -> None:
    samples, jobs = scraped(full), full.get("/v1/jobs", params={"limit": 500}).json()
    counted = Counter(job["state"] for job in jobs["items"])
    assert by_label(samples["tuner_jobs"], "state") == {state: counted[state] for state in STATES}
    trials: Counter[str] = Counter()
    for job in jobs["items"]:
        trials.update(job["progress"]["trials"])
    assert by_label(samples["tuner_trials"], "state") == {
        state: trials[state] for state in get_args(TrialState)
    }
    assert value(samples["tuner_steps"]) == sum(job["progress"]["steps"] for job in jobs["items"])


def bills(client: TestClient) -> list[Any]:
    jobs = client.get("/v1/jobs", params={"limit": 500}).json()["items"]
    return [client.get(f"/v1/jobs/{job['id']}/bill").json() for job in jobs]


def test_money_metrics_equal_the_sum_of_all_bills(full: TestClient) -> None:
    samples, all_bills = scraped(full), bills(full)
    by_kind: Counter[str] = Counter()
    for sample in samples["tuner_bill_usd"]:
        by_kind[sample.labels["kind"]] += sample.value
    for kind, usd in by_kind.items():
        assert usd == pytest.approx(sum(bill["by_kind"][kind] for bill in all_bills), abs=1e-7)
    spent = sum(by_label(samples["tuner_spend_usd"], "market").values())
    assert spent == pytest.approx(full.get("/v1/spend").json()["total"]["usd"], abs=1e-7)
    held = sum(bill["held_usd"] for bill in all_bills)
    assert held > 0
    assert value(samples["tuner_held_usd"]) == pytest.approx(held, abs=1e-7)


def test_preemption_metrics_equal_the_sum_of_all_bills(full: TestClient) -> None:
    samples = scraped(full)
    by_notice = by_label(samples["tuner_preemptions"], "notice")
    total = sum(sample.value for sample in samples["tuner_preemptions"])
    assert total == sum(bill["preemptions"] for bill in bills(full)) > 0
    assert by_notice["unknown"] == 0
    ended = {
        (sample.labels["end"], sample.labels["cause"]): sample.value
        for sample in samples["tuner_attempts_ended"]
    }
    assert sum(count for (end, _), count in ended.items() if end == "preempted") == total
    assert ended["lost", "driver"] > 0
    assert ended["completed", "none"] > 0


def test_shared_budgets_are_exported_by_name(client: TestClient, service: FakeService) -> None:
    for name, limits in (("lab", {"usd": 1.0}), ("gpus", {"gpu_hours": 2.0})):
        assert client.put(f"/v1/budgets/{name}", json=limits).status_code in (200, 201)
    fakes.simulate(service, fakes.submit(client))
    samples = scraped(client)
    assert by_label(samples["tuner_budget_limit_usd"], "budget") == {"lab": 1.0}
    assert by_label(samples["tuner_budget_limit_gpu_seconds"], "budget") == {"gpus": 7200.0}
    spent = client.get("/v1/spend").json()["total"]["usd"]
    assert by_label(samples["tuner_budget_spent_usd"], "budget") == {"lab": pytest.approx(spent)}
    assert by_label(samples["tuner_budget_used_ratio"], "budget") == {"lab": pytest.approx(spent), "gpus": 0}


def test_openmetrics_format_is_sent_on_request(full: TestClient) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = full.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics.text_string_to_metric_families(answer.text)}
    assert {"tuner_jobs", "tuner_spend_usd", "process_cpu_seconds"} <= names


def test_every_documented_metric_is_exported(full: TestClient) -> None:
    samples = scraped(full)
    families = [
        *(family for family, _ in metric_families.RECORDED),
        *(family for family, _ in families_of_process),
        *OWN,
    ]
    assert {family.name.removesuffix("_total") for family in families} <= samples.keys()
    assert {"process_resident_memory_bytes", "python_info", "python_gc_collections"} <= samples.keys()


def test_number_of_series_is_bounded_after_a_thousand_jobs(client: TestClient, service: FakeService) -> None:
    """This holds after requests of every kind to every path, and with more budgets than are exported."""
    job = fakes.submit(client)
    client.post(f"/v1/jobs/{job}/cancel")  # so that its stream of events ends
    for number in range(25):
        client.put(f"/v1/budgets/b{number}", json={"usd": 1.0, "gpu_hours": 2.0})
    paths = client.get("/openapi.json").json()["paths"]
    for path in paths:
        for method in ("GET", "POST", "PATCH", "BREW"):
            client.request(method, re.sub(r"\{\w+\}", "n", path.replace("{job}", job)), json={})
    for number in range(100):
        client.get(f"/v1/jobs/job_{number}")
    copy_job(service.database, fakes.submit(client), 1000)
    service.now.pass_s(6)
    scraped_samples = scraped(client)
    assert by_label(scraped_samples["tuner_jobs"], "state")["queued"] == 1001
    assert by_label(scraped_samples["tuner_budget_limit_usd"], "budget").keys() == {
        f"b{n}" for n in sorted(range(25), key=str)[:20]
    }
    of_paths = sum(
        len(samples) for name, samples in scraped_samples.items() if name.startswith("tuner_http_")
    )
    assert of_paths < 6 * len(paths)
    assert sum(len(samples) for samples in scraped_samples.values()) - of_paths < 210


def test_unreachable_database_is_reported_in_metrics(client: TestClient, service: FakeService) -> None:
    with patch.object(Database, "read", side_effect=Unavailable("away")):
        samples = scraped(client)
    assert value(samples["tuner_database_up"]) == 0
    assert "tuner_jobs" not in samples
    assert value(scraped(client)["tuner_database_up"]) == 1


def test_open_event_streams_are_counted() -> None:
    metrics = Metrics(lambda: pytest.fail("nothing is read"), ServiceHealth())

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        assert metrics.watchers._value.get() == 1
        raise ConnectionError("it went away")

    async def send(message: Message) -> None:
        return

    scope = {"type": "http", "method": "GET", "path": "/v1/jobs/a/events"}
    with pytest.raises(ConnectionError):
        asyncio.run(LatencyMiddleware(stream, metrics)(scope, None, send))  # type: ignore[arg-type]
    assert metrics.watchers._value.get() == 0


def test_queue_wait_is_from_submission_to_the_first_driver(client: TestClient, service: FakeService) -> None:
    first, second, _ = (fakes.submit(client) for _ in range(3))
    service.now.pass_s(4)
    fakes.begin(service, first)
    service.now.pass_s(2.5)
    fakes.begin(service, second)
    samples = {sample.name: sample.value for sample in scraped(client)["tuner_queue_wait_seconds"]}
    assert samples == {"tuner_queue_wait_seconds_count": 2, "tuner_queue_wait_seconds_sum": 10.5}


def calls(client: TestClient) -> dict[tuple[str, str, str], float]:
    samples = scraped(client)["tuner_http_requests"]
    return {
        (sample.labels["method"], sample.labels["route"], sample.labels["code"]): sample.value
        for sample in samples
    }


def test_requests_are_counted_by_route_template_and_known_method(client: TestClient) -> None:
    job = fakes.submit(client)
    for _ in range(3):
        client.get(f"/v1/jobs/{job}")
    client.get("/v1/jobs/job_0")
    client.get(f"/v1/jobs/{job}/trials/trial_00000")
    client.post("/v1/jobs", json={})
    client.get("/healthz")
    for number in range(20):
        client.get(f"/{job}/{number}")
        client.get(f"/v1/nothing/{number}")
        client.request(f"METHOD{number}", "/healthz")
    client.get("/v1/jobs", headers={"Authorization": "Bearer wrong"})
    counted = calls(client)
    assert counted["GET", "/v1/jobs/{job}", "2xx"] == 3
    assert counted["GET", "/v1/jobs/{job}", "4xx"] == 1
    assert counted["GET", "/v1/jobs/{job}/trials/{trial}", "4xx"] == 1
    assert counted["POST", "/v1/jobs", "2xx"] == counted["POST", "/v1/jobs", "4xx"] == 1
    assert counted["GET", "/v1/jobs", "4xx"] == 1
    assert counted["GET", "/healthz", "2xx"] == 1
    assert not any(word in route for _, route, _ in counted for word in (job, "job_0", "nothing"))
    assert {method for method, _, _ in counted} == {"GET", "POST", "other"}


def test_requests_are_timed_by_method(client: TestClient) -> None:
    client.get("/healthz")
    samples = scraped(client)["tuner_http_request_duration_seconds"]
    assert [sample.value for sample in samples if sample.name.endswith("_count")] == [1]
    assert not any("created" in sample.name for family in scraped(client).values() for sample in family)
