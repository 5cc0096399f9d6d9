"""Advice over REST: its findings are computed from the recorded usage of a job's attempts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.api.test_bills_and_trials import on_the_cheaper_of_two_types
from tests.fakes import FakeService, body
from tuner.cluster.nodes import INSTANCE_TYPE, Node
from tuner.domain.money import Price
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.domain.usage import Usage
from tuner.ledger import ledger
from tuner.service.advice import evidence_of
from tuner.store import attempt_rows, evidence, jobs
from tuner.store.earlier_jobs import Histories

service, client = fakes.fixtures("module")


def advice(client: TestClient, job: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}/advice")
    assert answer.status_code == 200, answer.text
    advice_view: dict[str, Any] = answer.json()
    return advice_view


def use(service: FakeService, job: str, used: Usage) -> None:
    """Record the same usage for every attempt of the job."""
    with service.database.write() as db:
        for row, _ in list(attempt_rows.of_trials(db, job, list(evidence.trials_of(db, job)))):
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


def test_plan_takes_the_time_of_one_save_from_an_attempt_with_several(tmp_path: Path) -> None:
    service = fakes.service_in(tmp_path)
    job = fakes.submit(fakes.client_of(service))
    fakes.simulate(service, job)
    save_s = []
    for saves in (1, 4):
        use(service, job, Usage(saves=saves))
        reader = replace(service, histories=Histories())
        answer = fakes.client_of(reader).post("/v1/plans", json=body(planning={"steps_from": [job]}))
        save_s.append(answer.json()["inputs"]["evidence"]["checkpoint_seconds"])
    assert save_s[0] > 0
    assert save_s[1] == pytest.approx(save_s[0] / 4, rel=1e-6)
    service.database.dispose()


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


def test_advice_uses_the_prices_of_the_type_with_most_spend(tmp_path: Path) -> None:
    used, job = on_the_cheaper_of_two_types(fakes.service_in(tmp_path))
    with used.database.read() as db:
        row = jobs.get(db, job)
    of_job = evidence_of(used, row)
    assert (row.offer.instance_type, of_job.offer.instance_type) == ("m.expensive", "m.cheap")
    assert (of_job.demand, of_job.spot) == (Price(100_000), Price(25_000))
    used.database.dispose()


def test_advice_for_unknown_job_is_404(client: TestClient) -> None:
    check_problem(client.get("/v1/jobs/job_0000000000000000/advice"), 404)


class OnGpus(fakes.Curves):
    """Curves of trials on several GPUs."""

    def __init__(self, speedup: float) -> None:
        self.speedup = speedup

    def step_ns(self, config: Config, step: int) -> int:
        return round(super().step_ns(config, step) * 60 / self.speedup)


def estimate(client: TestClient, **parts: Any) -> Any:
    answer = client.post("/v1/estimates", json=parts)
    assert answer.status_code in (200, 422), answer.text
    return answer.json()


def test_scaling_is_measured_and_used_by_advice_estimates_and_plans(
    service: FakeService, client: TestClient
) -> None:
    labels = {INSTANCE_TYPE[0]: "p4d.24xlarge"}
    service.cluster.fake_nodes = [Node("n1", cpus=96, gpus=8, memory_bytes=1 << 40, labels=labels)]
    sizes = {"trainable": "trainables.digits_cnn:train", "budget": {"usd": 50, "trials": 12}}
    many = fakes.submit(client, **sizes, resources={"gpus": 4})
    fakes.simulate(service, many, training=OnGpus(4 * 0.61))
    scaling = {"accelerator": "A100", "parameters": 1e9, "step_seconds": 1, "gpus": [1, 2, 4], "job": many}
    refused = estimate(client, scaling=scaling)
    assert [error["pointer"] for error in refused["errors"]] == ["/scaling/job"]
    assert "run a pilot" in refused["errors"][0]["detail"]

    single = client.post(
        "/v1/pilots", json=body(**sizes, planning={"pilot": {"usd": 5}}, resources={"gpus": 1})
    )
    fakes.simulate(service, single.json()["id"], training=OnGpus(1))
    (finding,) = [
        finding for finding in advice(client, many)["findings"] if finding["kind"] == "scaling_inefficient"
    ]
    efficiency = finding["evidence"]["efficiency"]
    assert finding["evidence"]["relative_error"] < 0.1
    assert efficiency == pytest.approx(0.61, rel=2 * finding["evidence"]["relative_error"])
    assert finding["change"]["then"] == "1"
    train = client.get(f"/v1/jobs/{many}/bill").json()["by_kind"]["train"]
    assert finding["saves_usd"] == pytest.approx(train * (1 - efficiency), rel=1e-3)
    one = advice(client, single.json()["id"])
    assert "scaling_inefficient" not in {finding["kind"] for finding in one["findings"]}

    points = estimate(client, scaling=scaling)["scaling"]["points"]
    measured = {point["gpus"]: point["measured"] for point in points if point["link"] == "nvlink"}
    between = 1 / (1 + (1 / efficiency - 1) / 3)
    assert measured == {1: 1, 2: pytest.approx(between, abs=1e-5), 4: pytest.approx(efficiency, abs=1e-5)}
    assert {point["measured"] for point in points if point["link"] == "pcie"} == {None}
    run = {"samples": 1e6, "throughput": [{"accelerator": "A100", "per_second": 100}], "gpus": 4}
    answer = estimate(client, run={**run, "scaling_job": many, "instance_types": ["p4d.24xlarge"]})
    assert answer["run"]["cheapest"]["efficiency"] == measured[4]
    wrong = estimate(client, run={**run, "scaling_job": "job_0"})
    assert [error["pointer"] for error in wrong["errors"]] == ["/run/scaling_job"]

    few = {**sizes, "budget": {"usd": 50, "trials": 2}}
    without = fakes.submit(client, **few)
    fakes.simulate(service, without, training=OnGpus(1))
    refused = estimate(client, scaling={**scaling, "job": without})
    assert "used no whole GPU" in refused["errors"][0]["detail"]
    plans = [
        client.post("/v1/plans", json=body(**few, resources={"gpus": gpus})).json() for gpus in (1, 2, 4)
    ]
    seconds = [plan["inputs"]["evidence"]["step_seconds"] for plan in plans]
    assert [plan["inputs"]["evidence"]["jobs"] for plan in plans[::2]] == [[single.json()["id"]], [many]]
    assert seconds[2] < seconds[1] < seconds[0], "step times of other numbers of GPUs are converted"
    (converted,) = [
        warning for warning in plans[1]["warnings"] if "on 4 GPUs, but this job uses 2 GPUs" in warning
    ]
    assert converted.endswith("times as long, as measured")
