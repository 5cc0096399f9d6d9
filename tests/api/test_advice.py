"""Advice over REST: its findings are computed from the recorded usage of a job's attempts."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.domain.time import NS
from tuner.domain.usage import Usage
from tuner.ledger import ledger
from tuner.store import attempt_rows, evidence

service, client = fakes.fixtures("module")


def advice(client: TestClient, job: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/advice")
    assert answer.status_code == 200, answer.text
    advice_view: dict[str, Any] = answer.json()
    return advice_view


def use(service: FakeService, job: str, used: Usage) -> None:
    """Record the same usage for every attempt of the job."""
    with service.database.write() as db:
        for row, _ in list(evidence.attempts_of(db, job, list(evidence.trials_of(db, job)))):
            attempt_rows.put(db, service.project, (job, row.trial, row.attempt), used)


@pytest.fixture(scope="module")
def measured(service: FakeService, client: TestClient) -> str:
    job = fakes.submit(client, resources={"cpus": 2})
    fakes.simulate(service, job)
    used = Usage(
        wall_ns=60 * NS,
        cpu_ns=30 * NS,
        memory_peak_bytes=1 << 30,
        data_wait_ns=20 * NS,
        compute_ns=40 * NS,
        facts={"loader_workers": 0},
    )
    use(service, job, used)
    return job


def test_findings_are_computed_from_measured_usage_and_the_bill(client: TestClient, measured: str) -> None:
    job_advice, bill = advice(client, measured), client.get(f"/v1/jobs/{measured}/bill").json()
    assert job_advice["spent_usd"] == job_advice["measured_usd"] == bill["total_usd"]
    by_kind = {finding["kind"]: finding for finding in job_advice["findings"]}
    cpus = by_kind["cpu_underused"]
    assert cpus["evidence"]["cores_used"] == 0.5
    assert cpus["change"]["setting"] == "resources.cpus"
    assert (cpus["change"]["now"], cpus["change"]["then"]) == ("2", "1")
    assert cpus["saves_usd"] == pytest.approx(bill["total_usd"] / 2, abs=1e-6)
    waits = by_kind["input_bound"]
    assert waits["saves_usd"] == pytest.approx(bill["by_kind"]["train"] / 3, abs=2e-6)
    assert all((finding["saves_usd"] or 0) <= job_advice["spent_usd"] for finding in job_advice["findings"])
    assert {"checkpoint interval"} <= {gap["what"] for gap in job_advice["not_measured"]}
    assert not {"processor use", "waiting for data"} & {gap["what"] for gap in job_advice["not_measured"]}


def test_trial_shows_the_usage_of_each_attempt(client: TestClient, measured: str) -> None:
    trial = client.get(f"/v1/jobs/{measured}/trials").json()["items"][0]["id"]
    attempts = client.get(f"/v1/jobs/{measured}/trials/{trial}").json()["attempt_list"]
    for attempt in attempts:
        assert (attempt["usage"]["cpu_seconds"], attempt["usage"]["wall_seconds"]) == (30, 60)
        assert attempt["usage"]["gpu_samples"] is None
        assert attempt["usage"]["facts"] == {"loader_workers": 0}


def test_every_kind_of_job_has_advice(finished: Finished) -> None:
    for job in finished.all:
        job_advice = advice(finished.client, job)
        assert job_advice["measured_usd"] == 0
        assert {"processor use", "waiting for data"} <= {gap["what"] for gap in job_advice["not_measured"]}


def test_bills_of_attempts_add_up_to_the_posted_spend(finished: Finished) -> None:
    for job in finished.ended:
        with finished.service.database.read() as db:
            bills = evidence.bills(db, job, list(evidence.trials_of(db, job)))
            posted = ledger.account(db, job).posted.usd
        assert sum(usd.micro_usd for bill in bills.values() for usd in bill.values()) == posted.micro_usd


def test_advice_for_unknown_job_is_404(client: TestClient) -> None:
    check_problem(client.get("/v1/jobs/job_0000000000000000/advice"), 404)
