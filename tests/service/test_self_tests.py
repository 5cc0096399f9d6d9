"""A job on spot machines is refused at submission if its trainable failed the restore self-test."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.driver.self_test_actors import FakeActors
from tests.fakes import FakeService
from tests.service.passes import launch_of, one_pass
from tuner.driver.spot_eligibility import SpotEligibility
from tuner.store import jobs, launches
from tuner.worker.self_test import Verdict

LABELS = {"ray.io/market-type": "spot", "usd-per-hour": "0.02"}
WANTED = {"market": "spot", "max_concurrent_trials": 1}


def judged(service: FakeService, job: str, verdict: Verdict) -> str | None:
    """Start the restore self-test of the job with this verdict. Record a refusal, and return its reason or None."""
    one_pass(service)
    epoch = launch_of(service, job).epoch
    with service.database.write() as db:
        launches.record_heartbeat(db, job, epoch, service.now())
        jobs.begin_running(db, job, at=service.now())
        row = jobs.get(db, job)
    seen = service.cluster.codes[-1]
    eligibility = SpotEligibility(
        database=service.database,
        row=row,
        epoch=epoch,
        may_continue=lambda: True,
        wait_s=60.0,
        seen=seen,
        start_actor=FakeActors(list(row.offers), [verdict]),
        find=lambda machine: None,
    )
    why = eligibility.refusal(died_at=None)
    if why is not None:
        eligibility.refuse(why, died_at=None)
    return why


@pytest.mark.parametrize("elsewhere", [False, True])
def test_code_that_failed_the_self_test_is_refused_on_spot_until_it_changes(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    if elsewhere:
        monkeypatch.setattr("tuner.driver.spot_eligibility.code_of", lambda *_: "0" * 64)
    service.cluster.fake_nodes = [replace(fakes.SMALL, labels=LABELS)]
    job = fakes.submit(client, resources=WANTED)
    assert "it forgets" in str(judged(service, job, Verdict(False, "it forgets")))
    answer = client.post("/v1/jobs", json=fakes.body(resources=WANTED))
    assert answer.status_code == 422
    assert "it forgets" in answer.text
    fixed = "1" * 64
    monkeypatch.setattr("tuner.service.submit.code_of", lambda *_: fixed)
    fakes.submit(client, resources=WANTED)


def test_code_that_passes_a_later_self_test_is_accepted_again(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code was fixed on the cluster alone, while jobs that were submitted earlier waited."""
    service.cluster.fake_nodes = [replace(fakes.SMALL, cpus=8, labels=LABELS)]
    first, second = (fakes.submit(client, resources=WANTED) for _ in range(2))
    for job, code, verdict in ((first, "0", Verdict(False, "it forgets")), (second, "1", Verdict(True))):
        digest = code * 64
        monkeypatch.setattr("tuner.driver.spot_eligibility.code_of", lambda *_, found=digest: found)
        judged(service, job, verdict)
    fakes.submit(client, resources=WANTED)


def test_on_demand_job_has_no_code_digest(service: FakeService, client: TestClient) -> None:
    fakes.submit(client)
    one_pass(service)
    assert service.cluster.codes == [None]
