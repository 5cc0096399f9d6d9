"""A budget that cannot pay for the setup and the first step of a trial is refused before any money is spent.

A top-up that cannot pay for the start of the job's workers is answered with a warning.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeProber, FakeService
from tuner.cluster.nodes import Node
from tuner.domain.errors import Unavailable
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.service.trainables import Described
from tuner.simulator.worker import Overheads

SECOND_USD = 0.1 / 3600  # the price of one second of a trial on the only machine


@dataclass
class MeasuringProber(FakeProber):
    """A prober for which importing any trainable takes 4 s."""

    def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
        return replace(super().describe(entry, package), import_ns=4 * NS)


class BusyProber(FakeProber):
    """A prober that imports too many other trainables."""

    def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
        raise Unavailable("other trainables are being imported")


class SlowSteps(fakes.Curves):
    """Curves whose steps take 3 s."""

    def step_ns(self, config: Config, step: int) -> int:
        return 3 * NS


def refusal(client: TestClient, path: str, usd: float) -> str:
    answer = client.post(path, json=fakes.body(budget={"usd": usd}))
    problem = check_problem(answer, 422)
    assert [error["pointer"] for error in problem["errors"]] == ["/budget/usd"]
    detail: str = problem["detail"]
    return detail


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plans"])
def test_import_time_of_the_trainable_counts_as_setup(service: FakeService, path: str) -> None:
    client = fakes.client_of(replace(service, prober=MeasuringProber()))
    why = refusal(client, path, round(2 * SECOND_USD, 6))
    assert (
        "a trial takes 4.000 s for setup before its first report (the time of importing the trainable alone); give at least $"
        in why
    )
    enough = client.post(path, json=fakes.body(budget={"usd": round(5 * SECOND_USD, 6)}))
    assert enough.status_code in (200, 201), enough.text


def test_setup_measured_in_earlier_jobs_takes_precedence_over_import_time(
    service: FakeService, client: TestClient
) -> None:
    for _ in range(2):
        fakes.simulate(service, fakes.submit(client), training=SlowSteps())
    why = refusal(client, "/v1/jobs", round(2 * SECOND_USD, 6))
    assert "s for setup and " in why
    assert "(the shortest of 4 measured in jobs of the trainable)" in why


SLOW_START = Overheads(warming_ns=10 * NS)  # with SlowSteps, a worker needs 13.2 s until its first report


@pytest.fixture
def ended(service: FakeService, client: TestClient) -> str:
    """A job of two workers that has spent its budget. Its simulated workers start slowly."""
    job = fakes.submit(client, budget={"usd": round(60 * SECOND_USD, 6)})
    fakes.simulate(service, job, training=SlowSteps(), overheads=SLOW_START)
    assert shown(client, job)["stop_reason"] == "budget_usd"
    return job


def shown(client: TestClient, job: str) -> dict[str, Any]:
    job_view: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
    return job_view


def raised(client: TestClient, job: str, **left: float) -> list[str]:
    """Set the job's budget so that this much of it is left, and return the warnings of the answer."""
    spend = shown(client, job)["spend"]
    budget = {unit: round(spend[unit] + amount, 6) for unit, amount in left.items()}
    answer = client.patch(f"/v1/jobs/{job}", json={"budget": budget})
    assert answer.status_code == 200, answer.text
    warnings: list[str] = answer.json()["warnings"]
    return warnings


@pytest.mark.parametrize("seconds", [0, 0.5, 5, 13])
def test_top_up_that_buys_no_step_is_answered_with_a_warning(
    service: FakeService, client: TestClient, ended: str, seconds: float
) -> None:
    steps = shown(client, ended)["progress"]["steps"]
    (warning,) = raised(client, ended, usd=seconds * SECOND_USD)
    assert "starting a worker up to the first report costs at least $0.00038" in warning
    assert ": it takes 10.2" in warning
    assert ", at $0.10 an hour. The rest may buy no step: add at least $0.00" in warning
    assert "measured in this job" in warning
    assert shown(client, ended)["warnings"] == []
    resumed = client.post(f"/v1/jobs/{ended}/resume")
    if seconds >= 1:  # with less, the job is not resumed
        assert resumed.json()["warnings"] == [warning]
        fakes.simulate(service, ended, training=SlowSteps(), overheads=SLOW_START, at=service.now())
        assert shown(client, ended)["stop_reason"] == "budget_usd"
        assert shown(client, ended)["progress"]["steps"] == steps


@pytest.mark.parametrize("seconds", [0, 5, 13])
def test_amount_in_the_warning_is_enough(
    service: FakeService, client: TestClient, ended: str, seconds: float
) -> None:
    left = round(seconds * SECOND_USD, 6)
    (warning,) = raised(client, ended, usd=left)
    amount = re.search(r"add at least \$([\d.]+\d)", warning)
    assert amount is not None
    enough = round(left + float(amount[1]), 6)
    assert raised(client, ended, usd=enough - 0.000001) != []
    steps = shown(client, ended)["progress"]["steps"]
    assert raised(client, ended, usd=enough) == []
    assert client.post(f"/v1/jobs/{ended}/resume").json()["warnings"] == []
    fakes.simulate(service, ended, training=SlowSteps(), overheads=SLOW_START, at=service.now())
    assert shown(client, ended)["progress"]["steps"] > steps


@pytest.mark.usefixtures("ended")
def test_job_without_a_report_is_warned_about_the_start_of_all_workers(client: TestClient) -> None:
    """Its driver does not know how long a start takes, so all workers start. The times are those of another job."""
    job = fakes.submit(client)
    (warning,) = raised(client, job, usd=15 * SECOND_USD)
    assert "starting 2 workers up to the first report costs at least $0.00073" in warning
    assert ": each takes 10.2" in warning
    assert warning.endswith(", or set max_concurrent_trials to 1")
    client.patch(f"/v1/jobs/{job}", json={"max_concurrent_trials": 1})
    assert raised(client, job, usd=15 * SECOND_USD) == []
    (warning,) = raised(client, job, usd=5 * SECOND_USD)
    assert "starting a worker up to the first report" in warning
    assert ": it takes 10.2" in warning
    assert "max_concurrent_trials" not in warning


@pytest.mark.usefixtures("ended")
def test_limit_of_trials_limits_the_workers_that_the_warning_counts(client: TestClient) -> None:
    job = fakes.submit(client, budget={"usd": 1, "trials": 1})
    assert raised(client, job, usd=15 * SECOND_USD) == []
    assert "starting a worker" in raised(client, job, usd=5 * SECOND_USD)[0]


def test_job_whose_workers_run_gets_no_warning(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, budget={"usd": 1})
    fakes.simulate(service, job, messages=60, training=SlowSteps(), overheads=SLOW_START)
    held = shown(client, job)["spend"]["held_usd"]
    assert held > 0
    assert raised(client, job, usd=held) == []


def test_job_that_never_ran_is_warned_with_the_import_time(service: FakeService) -> None:
    client = fakes.client_of(replace(service, prober=MeasuringProber()))
    job = fakes.submit(client)
    (warning,) = raised(client, job, usd=5 * SECOND_USD)
    assert "each takes 4.000 s for setup (the time of importing the trainable alone)" in warning
    assert raised(client, job, usd=8.1 * SECOND_USD) == []


def test_warning_does_not_suggest_fewer_trials_if_the_rest_cannot_begin_one(
    service: FakeService, client: TestClient
) -> None:
    fakes.simulate(service, fakes.submit(client))  # a worker needs 0.8 s until its first report
    job = fakes.submit(client)
    (warning,) = raised(client, job, usd=0.95 * SECOND_USD)
    assert "starting 2 workers" in warning
    assert "max_concurrent_trials" not in warning


def test_busy_service_changes_the_budget_without_a_warning(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client)
    busy = fakes.client_of(replace(service, prober=BusyProber()))
    assert raised(busy, job, usd=0.5 * SECOND_USD) == []
    assert shown(client, job)["budget"]["usd"] == round(0.5 * SECOND_USD, 6)


def test_rest_below_one_second_of_a_trial_is_warned_about(client: TestClient) -> None:
    job = fakes.submit(client)
    (warning,) = raised(client, job, usd=0.5 * SECOND_USD)
    assert "a trial begins only if the budget pays for one second of it" in warning
    assert "max_concurrent_trials" not in warning
    assert raised(client, job, usd=1.1 * SECOND_USD) == []


def test_warning_counts_gpu_hours_if_they_are_limited(service: FakeService) -> None:
    service.cluster.fake_nodes = [Node("g1", cpus=2, gpus=2, memory_bytes=8 << 30)]
    client = fakes.client_of(replace(service, prober=MeasuringProber()))
    job = fakes.submit(client, budget={"gpu_hours": 1}, resources={"gpus": 1})
    (warning,) = raised(client, job, gpu_hours=0.001)
    assert "the budget has 0.001 GPU-hours left" in warning
    assert "costs at least 0.002222222 GPU-hours" in warning
    assert "add at least 0.001223 GPU-hours" in warning
    assert raised(client, job, gpu_hours=0.002223) == []
