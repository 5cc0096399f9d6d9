"""Jobs that learn from earlier jobs: which jobs they may name, and what they then know."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.points import points
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService, body
from tuner.domain.records import PastTrial
from tuner.store import jobs
from tuner.store.warm_starts import past_trials

OTHERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "trainable": ({"trainable": "trainables.digits_cnn:train"}, (fakes.ENTRY, "trainables.digits_cnn:train")),
    "metric": ({"objective": {"metric": "loss", "mode": "max"}}, ("max acc", "max loss")),
    "mode": ({"objective": {"metric": "acc", "mode": "min"}}, ("max acc", "min acc")),
    "space": ({"search_space": {"depth": {"type": "int", "low": 1, "high": 9}}}, ("lr, width", "depth")),
}


def warm(*names: str) -> dict[str, Any]:
    return {"warm_start": {"jobs": list(names)}}


def known(service: FakeService, job: str) -> list[PastTrial]:
    with service.database.read() as db:
        row = jobs.get(db, job)
    return past_trials(service.database, job, row.spec)


def faults(client: TestClient, sent: dict[str, Any]) -> list[tuple[str, str]]:
    errors = check_problem(client.post("/v1/jobs", json=sent))["errors"]
    return [(error["pointer"], error["detail"]) for error in errors]


def test_warm_start_knows_every_report_of_the_named_jobs(finished: Finished) -> None:
    named = finished.plain, finished.under_way
    job = fakes.submit(finished.client, **warm(*named))
    assert finished.client.get(f"/v1/jobs/{job}").json()["warm_start"] == {
        "jobs": list(named),
        "checkpoints": False,
    }
    recorded = [point for name in named for point in points(finished.service, name, "max")]
    curve_points = [step for trial in known(finished.service, job) for step in trial.curve]
    assert sorted(curve_points) == sorted((point.step, point.score, point.ns) for point in recorded)


def test_warm_start_from_a_running_job_uses_its_reports_so_far(
    client: TestClient, service: FakeService
) -> None:
    source = fakes.submit(client)
    run = fakes.simulate(service, source, messages=60)
    job = fakes.submit(client, **warm(source))
    before = known(service, job)
    assert before
    run.run()
    assert known(service, job) == before
    assert len(known(service, fakes.submit(client, **warm(source)))) > len(before)


def test_queued_job_may_be_named(client: TestClient, service: FakeService) -> None:
    assert known(service, fakes.submit(client, **warm(fakes.submit(client)))) == []


@pytest.mark.parametrize("name", ["job_0", "job_0123456789abcdef", "", "x" * 500])
def test_unknown_job_is_refused_with_a_pointer(client: TestClient, name: str) -> None:
    there = fakes.submit(client)
    ((pointer, detail),) = faults(client, body(**warm(there, name)))
    assert pointer == "/warm_start/jobs/1"
    assert "leave out the job" in detail


@pytest.mark.parametrize("what", OTHERS)
def test_job_with_another_trainable_objective_or_space_is_refused(client: TestClient, what: str) -> None:
    changes, words = OTHERS[what]
    other, same = fakes.submit(client, **changes), fakes.submit(client)
    ((pointer, detail),) = faults(client, body(**warm(same, other)))
    assert pointer == "/warm_start/jobs/1"
    assert other in detail
    assert all(word in detail for word in words)


def test_duplicate_unknown_or_too_many_jobs_are_refused_all_at_once(client: TestClient) -> None:
    job = fakes.submit(client)
    unknown = [pointer for pointer, _ in faults(client, body(**warm("job_1", "job_2")))]
    assert unknown == ["/warm_start/jobs/0", "/warm_start/jobs/1"]
    assert [pointer for pointer, _ in faults(client, body(**warm(job, job)))] == ["/warm_start/jobs/1"]
    assert [pointer for pointer, _ in faults(client, body(**warm(*["job_0"] * 51)))] == ["/warm_start/jobs"]
