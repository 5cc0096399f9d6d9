"""Answers of a job with constraints: only feasible reports count for the best result."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.points import put_report
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.domain.money import Cost, Money
from tuner.domain.records import CheckpointRow, ReportRow
from tuner.domain.retention import Retain
from tuner.domain.time import NS
from tuner.service.checkpoints import choose
from tuner.store import jobs
from tuner.store.best import results
from tuner.store.journal import SqlJournal
from tuner.store.stored_files import retained_trials

LIMIT = {"metric": "latency_ms", "min": None, "max": 20.0}


class Reporting:
    """A running job with a constraint, whose reports a test records. `fields` are further ones of its request."""

    def __init__(self, service: FakeService, client: TestClient, **fields: Any) -> None:
        self.service, self.client = service, client
        self.job = fakes.submit(client, constraints=[{"metric": "latency_ms", "max": 20}], **fields)
        fakes.begin(service, self.job)
        self.journal = SqlJournal(service.database, self.job, service.project, 1, service.now())

    def report(self, number: int, step: int, value: float, latency: float, violation: float | None) -> None:
        trial, at = f"trial_{number:05d}", self.service.now()
        metrics, cost = {"acc": value, "latency_ms": latency}, Cost(Money(step))
        with self.journal.transaction() as tx:
            tx.put_trial(trial, "running", at=at, config={"lr": 0.1})
            put_report(tx, ReportRow(trial, 1, step, at, value, metrics, cost, step * NS, violation))
            tx.put_checkpoint(CheckpointRow(trial, step, 1, "memory://a", 1, 0.1, at))
            tx.keep_checkpoints(trial, keep=1)

    def get(self, path: str) -> Any:
        answer = self.client.get(f"/v1/jobs/{self.job}{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def reporting(service: FakeService, client: TestClient) -> Reporting:
    return Reporting(service, client)


def test_only_feasible_reports_are_the_best(reporting: Reporting) -> None:
    reporting.report(0, 1, 0.9, 30, 0.5)
    reporting.report(1, 1, 0.7, 10, 0)
    reporting.report(1, 2, 0.8, 25, 0.25)
    reporting.report(2, 1, 0.6, 20, 0)
    job = reporting.get("")
    assert (job["constraints"], job["best"]["trial"], job["best"]["metric"]) == ([LIMIT], "trial_00001", 0.7)
    best = reporting.get("/best?forecast=false")
    assert (best["trial"], best["step"], best["metrics"]["latency_ms"]) == ("trial_00001", 1, 10)
    assert [(point["trial"], point["step"]) for point in reporting.get("/pareto")["items"]] == [
        ("trial_00001", 1)
    ]
    shown = [
        (trial["id"], trial["metric"], trial["latest_metric"], trial["violation"])
        for trial in reporting.get("/trials?sort=-metric")["items"]
    ]
    assert shown == [
        ("trial_00001", 0.7, 0.8, 0.25),
        ("trial_00002", 0.6, 0.6, 0),
        ("trial_00000", None, 0.9, 0.5),
    ]
    charted = reporting.get("/curves")["trials"]
    assert [trial["best_metric"] for trial in charted] == [None, 0.7, 0.6]
    report = reporting.get("/report")
    assert report["best"]["metric"] == 0.7
    assert len(report["best_curve"]) == 1
    assert [point["violation"] for point in reporting.get("/trials/trial_00001")["curve"]] == [0, 0.25]


def test_job_without_a_feasible_report_names_the_nearest(reporting: Reporting) -> None:
    reporting.report(0, 1, 0.9, 30, 0.5)
    reporting.report(1, 1, 0.7, 24, 0.2)
    reason = (
        "no trial has met the constraints (latency_ms at most 20) yet; "
        "the trial that comes nearest is trial_00001 at step 1, with latency_ms 24"
    )
    assert reporting.get("")["best"] is None
    assert reporting.get("/pareto")["items"] == []
    best = reporting.client.get(f"/v1/jobs/{reporting.job}/best")
    assert reason in check_problem(best, best.status_code)["detail"]
    with reporting.journal.transaction() as tx:
        tx.put_job("succeeded", "trials", at=reporting.service.now())
    export = reporting.client.post(f"/v1/jobs/{reporting.job}/exports", json={})
    assert reason in check_problem(export, 404)["detail"]


def test_best_checkpoint_is_kept_and_chosen_among_feasible_ones(reporting: Reporting) -> None:
    for step, (value, violation) in enumerate([(0.5, 0.0), (0.6, 0.0), (0.9, 0.5), (0.8, 0.2)], start=1):
        reporting.report(0, step, value, 20 * (1 + violation), violation)
    with reporting.service.database.read() as db:
        row = jobs.get(db, reporting.job)
        assert choose(db, row, "trial_00000", None).step == 2
    assert reporting.journal.best_checkpoint("trial_00000") == (0.6, 2)


@pytest.mark.parametrize("retain", ["best", "front"])
def test_nearest_trial_keeps_its_files_if_none_is_feasible(reporting: Reporting, retain: Retain) -> None:
    for number, violation in enumerate([0.5, 0.2, 0.0]):
        with reporting.service.database.read() as db:
            kept = retained_trials(db, {reporting.job: jobs.get(db, reporting.job).spec}, retain)
        assert kept == {reporting.job: set() if number == 0 else {f"trial_{number - 1:05d}"}}
        reporting.report(number, 1, 0.9, 20 * (1 + violation), violation)
    with reporting.service.database.read() as db:
        kept = retained_trials(db, {reporting.job: jobs.get(db, reporting.job).spec}, retain)
    assert kept == {reporting.job: {"trial_00002"}}


def test_forecast_of_the_next_dollar_counts_feasible_trials_only(reporting: Reporting) -> None:
    for number, (value, violation) in enumerate([(0.5, 0.0), (0.9, 0.5), (0.6, 0.0)]):
        reporting.report(number, 1, value, 20 * (1 + violation), violation)
    with reporting.service.database.read() as db:
        assert results(db, reporting.job, jobs.get(db, reporting.job).spec)[0] == [0.5, 0.6]


def test_constraint_without_a_limit_is_refused(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json=fakes.body(constraints=[{"metric": "latency_ms"}]))
    problem = check_problem(answer, 422)
    assert problem["errors"] == [{"pointer": "/constraints/0", "detail": "give min, max or both"}]
