"""Jobs with a window: launched, paused and launched again by the real controller."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import EPOCH, FakeService
from tests.service.passes import launch_of, one_pass, row_of
from tuner.domain.time import NS, Instant, parse_rfc3339
from tuner.service.controller import Controller
from tuner.store import exports, jobs

# The clock starts at 22:13:20 UTC, which is 23:13:20 in Berlin.
OPEN = {"start": "23:00", "end": "23:14", "timezone": "Europe/Berlin"}
LATER = {"start": "00:00", "end": "06:00", "timezone": "Europe/Berlin"}
OPENS_LATER = "2023-11-14T23:00:00.000000Z"
OPENS_AGAIN = "2023-11-15T22:00:00.000000Z"


def shown(client: TestClient, job: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
    assert client.get("/v1/jobs").json()["items"][0] == answer
    return answer


def waits(client: TestClient, job: str) -> tuple[str, int | None, str | None]:
    job_view = shown(client, job)
    return job_view["state"], job_view["queue_position"], job_view["next_opening"]


def look(service: FakeService, at: str | None = None) -> list[str]:
    """Run one pass of the controller at this time, and return all submissions so far."""
    if at is not None:
        service.now.at = parse_rfc3339(at)
    Controller(service).one_pass()
    return service.cluster.submitted


@pytest.fixture
def closed(service: FakeService, client: TestClient) -> str:
    """Return a job whose window closed while it ran."""
    job = fakes.submit(
        client, window=OPEN, budget={"usd": 0.02, "wall_clock": 60}, resources={"max_concurrent_trials": 1}
    )
    look(service)
    fakes.simulate(service, job)
    service.now.pass_s(60)
    return job


def test_job_outside_its_window_stays_queued_until_it_opens(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, window=LATER)
    assert waits(client, job) == ("queued", None, OPENS_LATER)
    assert "window" in shown(client, job)["detail"]
    assert look(service) == []
    assert look(service, "2023-11-14T22:59:59.9Z") == []
    assert waits(client, job) == ("queued", None, OPENS_LATER)
    assert look(service, OPENS_LATER) == [f"{job}-1"]
    assert waits(client, job) == ("queued", None, None)


def test_job_starts_in_its_window_after_the_clock_was_set_back(
    service: FakeService, client: TestClient
) -> None:
    """The launch was put off until a time that is wrong by then."""
    job = fakes.submit(client, window=LATER)
    assert look(service) == []
    assert launch_of(service, job).not_before == parse_rfc3339(OPENS_LATER)
    assert look(service, "2023-11-12T22:00:00Z") == []
    assert waits(client, job) == ("queued", None, "2023-11-12T23:00:00.000000Z")
    assert look(service, "2023-11-12T23:30:00Z") == [f"{job}-1"]


def test_job_waiting_for_its_window_does_not_block_other_jobs(
    service: FakeService, client: TestClient
) -> None:
    later = fakes.submit(client, window=LATER)
    service.now.pass_s(1)
    now = fakes.submit(client)
    assert waits(client, now) == ("queued", 1, None)
    assert look(service) == [f"{now}-1"]
    assert launch_of(service, later).state == "wanted"


def test_job_is_paused_when_its_window_closes_and_resumes_when_it_opens(
    service: FakeService, client: TestClient, closed: str
) -> None:
    before = shown(client, closed)
    assert waits(client, closed) == ("paused", None, OPENS_AGAIN)
    assert before["stop_reason"] is None
    assert before["progress"]["trials"]["running"] == 0
    assert before["progress"]["trials"]["paused"] > 0
    assert before["spend"]["held_usd"] == 0
    assert before["progress"]["running_seconds"] == pytest.approx(40, abs=3)
    assert look(service, "2023-11-15T21:59:59Z") == [f"{closed}-1"]
    assert look(service, OPENS_AGAIN) == [f"{closed}-1", f"{closed}-2"]
    fakes.simulate(service, closed, at=Instant(service.now.at))
    after = shown(client, closed)
    assert after["progress"]["steps"] > before["progress"]["steps"]
    assert (after["state"], after["stop_reason"]) == ("succeeded", "wall_clock")
    assert after["progress"]["running_seconds"] == pytest.approx(60, abs=3)


def test_paused_job_is_not_resumed_when_its_window_opens(
    service: FakeService, client: TestClient, closed: str
) -> None:
    assert client.post(f"/v1/jobs/{closed}/pause").status_code == 202
    assert waits(client, closed) == ("paused", None, None)
    assert shown(client, closed)["detail"] == ""
    assert look(service, OPENS_AGAIN) == [f"{closed}-1"]
    assert client.post(f"/v1/jobs/{closed}/resume").json()["state"] == "running"
    assert look(service) == [f"{closed}-1", f"{closed}-3"]


def test_pause_while_the_driver_starts_at_the_opening_is_kept(
    service: FakeService, client: TestClient, closed: str
) -> None:
    look(service, OPENS_AGAIN)
    assert launch_of(service, closed).state == "submitted"
    assert client.post(f"/v1/jobs/{closed}/pause").json()["state"] == "paused"
    with service.database.read() as db:
        assert jobs.get(db, closed).control_request == "pause"
    assert client.post(f"/v1/jobs/{closed}/resume").json()["state"] == "running"
    with service.database.read() as db:
        assert jobs.get(db, closed).control_request is None


def test_job_is_launched_at_the_opening_only_after_its_export(
    service: FakeService, client: TestClient, closed: str
) -> None:
    """The trials of the job could replace the checkpoint that is exported."""
    answer = client.post(f"/v1/jobs/{closed}/exports", json={})
    assert answer.status_code == 202, answer.text
    assert f"{closed}-2" not in look(service, OPENS_AGAIN)
    with service.database.write() as db:
        export = exports.live_of(db, closed)
        assert export is not None
        assert exports.end(db, export, "failed", service.now(), code="cancelled")
    assert f"{closed}-2" in look(service)
    assert shown(client, closed)["state"] == "paused", "its driver has not begun yet"
    assert "driver" in check_problem(client.post(f"/v1/jobs/{closed}/exports", json={}), 409)["detail"]


def test_job_resumed_outside_its_window_waits_for_it(
    service: FakeService, client: TestClient, closed: str
) -> None:
    client.post(f"/v1/jobs/{closed}/pause")
    for _ in range(2):
        client.post(f"/v1/jobs/{closed}/resume")
        assert waits(client, closed) == ("paused", None, OPENS_AGAIN)
    assert look(service) == [f"{closed}-1"]
    assert look(service, OPENS_AGAIN) == [f"{closed}-1", f"{closed}-3"]


def test_job_waiting_for_its_window_is_cancelled_at_once(
    service: FakeService, client: TestClient, closed: str
) -> None:
    assert client.post(f"/v1/jobs/{closed}/cancel").json()["state"] == "cancelled"
    assert waits(client, closed) == ("cancelled", None, None)
    assert look(service, OPENS_AGAIN) == [f"{closed}-1"]


def test_pause_requested_while_the_window_closes_is_kept(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, window=OPEN, budget={"usd": 0.004})
    look(service)
    run = fakes.simulate(service, job, messages=1)
    while run.loop.state.exhausted_limit != "window":
        assert run.clock.run_next()
    assert client.post(f"/v1/jobs/{job}/pause").json()["state"] == "running"
    run.run()
    service.now.at = run.clock.now()
    assert waits(client, job) == ("paused", None, None)


def test_replacement_driver_pauses_the_job_outside_its_window(
    service: FakeService, client: TestClient
) -> None:
    job = fakes.submit(client, window=OPEN)
    look(service)
    fakes.simulate(service, job, messages=40)
    service.cluster.statuses[f"{job}-1"] = "failed"
    look(service, "2023-11-14T22:20:00Z")
    one_pass(service)
    assert service.cluster.submitted == [f"{job}-1", f"{job}-2"]
    fakes.simulate(service, job, at=Instant(service.now.at))
    assert waits(client, job) == ("paused", None, OPENS_AGAIN)
    assert shown(client, job)["spend"]["held_usd"] == 0


def test_finished_job_with_a_top_up_resumes_in_its_window(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, window=OPEN, budget={"usd": 0.0005})
    look(service)
    fakes.simulate(service, job)
    assert row_of(service, job).state == "succeeded"
    service.now.at = EPOCH + 3600 * NS
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.01}})
    client.post(f"/v1/jobs/{job}/resume")
    assert shown(client, job)["next_opening"] == OPENS_AGAIN
    assert look(service) == [f"{job}-1"]
    with service.database.read() as db:
        ran_ns = jobs.get(db, job).running_ns(service.now())
    service.now.pass_s(1000)
    with service.database.read() as db:
        assert jobs.get(db, job).running_ns(service.now()) == ran_ns
    assert look(service, OPENS_AGAIN) == [f"{job}-1", f"{job}-2"]
