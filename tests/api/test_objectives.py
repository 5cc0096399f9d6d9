"""Answers of a job with two objectives: the Pareto front covers both metrics and the cost."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.points import put_report
from tests.api.test_bad_bodies import check_problem
from tests.api.test_constraints import Reporting
from tests.fakes import FakeService
from tuner.cli import render
from tuner.client.job import Job
from tuner.domain.money import Cost, Money
from tuner.domain.records import CheckpointRow, ReportRow
from tuner.domain.time import NS
from tuner.schemas.best import Pareto
from tuner.store import jobs, stored_files

ACC = {"metric": "acc", "mode": "max", "target": None}
LATENCY = {"metric": "latency_ms", "mode": "min", "target": None}


def drawn(content: Any) -> str:
    from rich.console import Console

    console = Console(width=300)
    with console.capture() as capture:
        console.print(content)
    return capture.get()


def test_front_covers_both_metrics_and_the_cost(service: FakeService, client: TestClient) -> None:
    reporting = Reporting(service, client, objective=None, objectives=[ACC, LATENCY])
    reporting.report(0, 1, 0.6, 12, 0)
    reporting.report(0, 2, 0.8, 12, 0)
    reporting.report(0, 3, 0.9, 30, 0.5)  # infeasible
    reporting.report(1, 2, 0.7, 12, 0)  # worse than trial 0 at the same cost
    reporting.report(2, 3, 0.7, 5, 0)  # slower to train and less accurate, but faster to serve
    front = reporting.get("/pareto")
    places = [(point["trial"][-1], point["step"], point["metrics"]["latency_ms"]) for point in front["items"]]
    assert (front["second_metric"], places) == ("latency_ms", [("0", 1, 12), ("0", 2, 12), ("2", 3, 5)])
    there = reporting.get("/pareto?instance_type=g6.xlarge")
    assert [(point["trial"][-1], point["step"]) for point in there["items"]] == [
        place[:2] for place in places
    ]
    best = reporting.get("/best?forecast=false")
    assert (best["metric"], best["next_better"]) == (0.8, None)
    assert reporting.get("/best?forecast=false&max_cost_usd=0.000001")["next_better"]["metric"] == 0.8
    job = reporting.get("")
    assert (job["objective"], job["objectives"]) == (ACC, [ACC, LATENCY])
    assert "acc (max), latency_ms (min)" in drawn(render.job(Job.model_validate(job)))
    heading, first, *_ = drawn(render.pareto(Pareto.model_validate(front))).splitlines()
    assert "metric  latency_ms" in heading
    assert "0.6     12" in first


def test_files_of_the_best_trial_are_kept_if_it_is_best_by_the_second_objective(
    service: FakeService, client: TestClient
) -> None:
    """Two trials have the same accuracy and cost. The one with the smaller latency trained longer."""
    reporting = Reporting(service, client, objective=None, objectives=[ACC, LATENCY])
    at = service.now()
    with reporting.journal.transaction() as tx:
        for trial, latency, ns in (("trial_00000", 12, NS), ("trial_00001", 5, 2 * NS)):
            tx.put_trial(trial, "running", at=at, config={"lr": 0.1})
            metrics = {"acc": 0.8, "latency_ms": latency}
            put_report(tx, ReportRow(trial, 1, 1, at, 0.8, metrics, Cost(Money(1)), ns, 0))
            tx.put_checkpoint(CheckpointRow(trial, 1, 1, "memory://a", 1, 0.1, at))
    assert reporting.get("/best?forecast=false")["trial"] == "trial_00001"
    with service.database.read() as db:
        spec = jobs.get(db, reporting.job).spec
        kept = stored_files.retained_trials(db, {reporting.job: spec}, "best")
    assert kept == {reporting.job: {"trial_00001"}}


def test_single_entry_of_objectives_is_the_objective(client: TestClient) -> None:
    job = client.get(f"/v1/jobs/{fakes.submit(client, objective=None, objectives=[ACC])}").json()
    assert (job["objective"], job["objectives"]) == (ACC, None)
    assert client.get(f"/v1/jobs/{job['id']}/pareto").json()["second_metric"] is None


@pytest.mark.parametrize(
    ("objectives", "pointer", "detail"),
    [
        (None, "/objective", "is required"),
        ([{**ACC, "metric": " "}], "/objectives/0/metric", "name the metric"),
        ([ACC, ACC], "/objectives/1/metric", "name a metric other than that of the first objective"),
        ([ACC, {**LATENCY, "metric": " "}], "/objectives/1/metric", "name the metric"),
        ([ACC, {**LATENCY, "target": 3}], "/objectives/1/target", "leave this target out"),
    ],
)
def test_wrong_objectives_are_refused(client: TestClient, objectives: Any, pointer: str, detail: str) -> None:
    answer = client.post("/v1/jobs", json=fakes.body(objective=None, objectives=objectives))
    (error,) = check_problem(answer, 422)["errors"]
    assert error["pointer"] == pointer
    assert detail in error["detail"]
