"""Configurations that users give, and requests about single trials and the number of trials at once."""

from dataclasses import replace

import pytest
from sqlalchemy import event, update
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem, pointers
from tests.api.test_control import stand
from tests.fakes import FakeService
from tuner.database.tables import trials
from tuner.domain import events as ev
from tuner.service import control
from tuner.store import jobs, launches


def test_start_configurations_are_checked_and_shown(client: TestClient) -> None:
    start = [{"lr": 0.5, "width": 16}, {"config": {"lr": 1, "width": 8}, "metric": 0.7}]
    job = fakes.submit(client, start=start)
    assert client.get(f"/v1/jobs/{job}").json()["start"] == start
    wrong = [{"lr": 0.5, "width": 7}, {"config": {"lr": 0.1}, "metric": 1}, {"lr": 0.2, "width": 8, "x": 1}]
    answer = client.post("/v1/jobs", json=fakes.body(start=[*wrong, wrong[0]]))
    assert pointers(answer) == [
        "/start/0/width",
        "/start/1/config/width",
        "/start/2/x",
        "/start/3/width",
        "/start/3",
    ]


@pytest.mark.parametrize("count", [2, 3])
def test_start_configurations_count_as_trials(client: TestClient, count: int) -> None:
    start = [{"lr": 0.5, "width": 8 + n} for n in range(count)]
    known = {"config": {"lr": 0.5, "width": 20}, "metric": 0.7}
    answer = client.post("/v1/jobs", json=fakes.body(start=[*start, known], budget={"usd": 1, "trials": 2}))
    assert answer.status_code == (201 if count == 2 else 422)
    if count == 3:
        assert pointers(answer) == ["/start"]
        check_problem(answer)


def test_priors_are_checked_and_shown(client: TestClient) -> None:
    space = fakes.body()["search_space"]
    space["lr"]["prior"], space["width"]["prior"] = {"center": 1}, {"center": 16, "confidence": "high"}
    job = fakes.submit(client, search_space=space, algorithm={"sampler": "auto"})
    shown = client.get(f"/v1/jobs/{job}").json()["search_space"]
    assert shown["lr"]["prior"] == {"center": 1.0, "confidence": "medium"}
    assert shown["width"]["prior"] == space["width"]["prior"]
    space["lr"]["prior"]["center"] = 2
    assert pointers(client.post("/v1/jobs", json=fakes.body(search_space=space))) == [
        "/search_space/lr/prior/center"
    ]
    space["lr"]["prior"]["center"] = 0.5
    ignored = client.post("/v1/jobs", json=fakes.body(search_space=space, algorithm={"sampler": "tpe"}))
    assert pointers(ignored) == ["/search_space/lr/prior", "/search_space/width/prior"]


def test_limits_of_trials_are_shown(client: TestClient) -> None:
    limits = {"patience": 5, "min_gain": 0.001, "max_duration": "2h", "max_cost_usd": 1}
    job = fakes.submit(client, stop={"trial": limits})
    assert client.get(f"/v1/jobs/{job}").json()["stop"]["trial"] == {**limits, "max_duration": 7200.0}


CONFIG = {"lr": 0.5, "width": 20}


def requests(service: FakeService, job: str) -> list[ev.TrialRequest]:
    with service.database.read() as db:
        return jobs.trial_requests_of(db, job)


@pytest.fixture
def running(client: TestClient, service: FakeService) -> str:
    """A running job with running and paused trials."""
    job = fakes.submit(client, algorithm={"scheduler": "asha", "sampler": "random"})
    fakes.simulate(service, job, messages=150)
    return job


def trials_in(client: TestClient, job: str, state: str) -> list[str]:
    listed = client.get(f"/v1/jobs/{job}/trials", params={"limit": 500}).json()["items"]
    return [trial["id"] for trial in listed if trial["state"] == state]


def test_width_of_a_job_is_limited_by_machines_and_shown(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    before = client.get(f"/v1/jobs/{job}").json()
    assert (before["concurrency"], before["resources"]["max_concurrent_trials"]) == (2, None)
    for wanted, fits in ((1, 1), (7, 2)):
        shown = client.patch(f"/v1/jobs/{job}", json={"max_concurrent_trials": wanted}).json()
        assert (shown["concurrency"], shown["resources"]["max_concurrent_trials"]) == (fits, wanted)
        assert shown["revision"] != before["revision"]
    for wrong in (0, -1, 10_001):
        answer = client.patch(f"/v1/jobs/{job}", json={"max_concurrent_trials": wrong})
        assert pointers(answer) == ["/max_concurrent_trials"]
    stand(service, job, "cancelled")
    check_problem(client.patch(f"/v1/jobs/{job}", json={"max_concurrent_trials": 1}), 409)


def test_configuration_is_enqueued_once(client: TestClient, service: FakeService, running: str) -> None:
    for _ in range(2):
        answer = client.post(f"/v1/jobs/{running}/trials", json={"config": {"width": 20, "lr": 0.5}})
        assert (answer.status_code, answer.json()["id"]) == (202, running)
    (request,) = requests(service, running)
    assert isinstance(request, ev.EnqueueRequested)
    assert (request.request, list(request.config.items())) == (1, list(CONFIG.items()))
    known = client.get(f"/v1/jobs/{running}/trials").json()["items"][3]
    refused = client.post(f"/v1/jobs/{running}/trials", json={"config": known["config"]})
    assert known["id"] in check_problem(refused, 409)["detail"]
    wrong = client.post(f"/v1/jobs/{running}/trials", json={"config": {"lr": 2, "depth": 1}})
    assert pointers(wrong) == ["/config/lr", "/config/depth", "/config/width"]


def test_no_more_configurations_are_enqueued_than_the_budget_allows_trials(client: TestClient) -> None:
    job = fakes.submit(client, budget={"usd": 1, "trials": 2}, start=[CONFIG])
    again = client.post(f"/v1/jobs/{job}/trials", json={"config": CONFIG})
    assert again.status_code == 202
    for width, status in ((21, 202), (22, 409)):
        answer = client.post(f"/v1/jobs/{job}/trials", json={"config": {**CONFIG, "width": width}})
        assert answer.status_code == status


def test_limited_number_of_configurations_may_wait(
    client: TestClient, service: FakeService, running: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_START", 3)
    statements: list[str] = []
    event.listen(service.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    counts = []
    for width in (30, 31, 32, 33):
        statements.clear()
        answer = client.post(f"/v1/jobs/{running}/trials", json={"config": {**CONFIG, "width": width}})
        counts.append(len(statements))
        if width < 33:
            assert answer.status_code == 202
    assert check_problem(answer, 409)["type"] == "urn:tuner:problem:too-many-waiting"
    assert counts[1] == counts[2]  # the number of statements does not follow that of the configurations


def test_trials_are_stopped_and_promoted_in_the_states_that_allow_it(
    client: TestClient, service: FakeService, running: str
) -> None:
    (paused, done, *_), (active, *_) = (trials_in(client, running, state) for state in ("paused", "running"))
    with service.database.write() as db:
        db.execute(
            update(trials).where(trials.c.job == running, trials.c.trial == done).values(state="completed")
        )
    for trial, action, status in (
        (paused, "promote", 202),
        (active, "stop", 202),
        (done, "promote", 409),
        (done, "stop", 409),
        ("trial_09999", "stop", 404),
        ("x", "promote", 404),
    ):
        answer = client.post(f"/v1/jobs/{running}/trials/{trial}/{action}")
        assert answer.status_code == status, answer.text
        if status == 202:
            assert answer.json()["id"] == trial
        else:
            check_problem(answer, status)
    assert [(type(request), getattr(request, "trial", "")) for request in requests(service, running)] == [
        (ev.PromoteRequested, paused),
        (ev.StopRequested, active),
    ]
    stand(service, running, "succeeded")
    for path in (f"trials/{paused}/stop", f"trials/{paused}/promote"):
        check_problem(client.post(f"/v1/jobs/{running}/{path}"), 409)
    check_problem(client.post(f"/v1/jobs/{running}/trials", json={"config": CONFIG}), 409)


def test_trials_of_a_job_without_rungs_are_not_promoted(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client, algorithm={"scheduler": "none", "sampler": "random"})
    fakes.simulate(service, job, messages=5)
    answer = client.post(f"/v1/jobs/{job}/trials/{trials_in(client, job, 'running')[0]}/promote")
    assert "no rungs" in check_problem(answer, 409)["detail"]


@pytest.mark.parametrize("handled", [False, True])
def test_job_runs_again_for_a_configuration_that_came_just_before_its_end(
    service: FakeService, client: TestClient, handled: bool
) -> None:
    job = fakes.submit(client, budget={"usd": 0.1, "trials": 4})
    run = fakes.simulate(service, job, messages=2)
    assert client.post(f"/v1/jobs/{job}/trials", json={"config": CONFIG}).status_code == 202
    (request,) = requests(service, job)
    if handled:
        run.loop.handle_event(replace(request, at=run.clock.now()))
    run.run(turns_max=100_000)
    assert run.loop.end is not None
    assert run.loop.end.reason == "trials"
    with service.database.read() as db:
        launch = launches.get(db, job)
    assert launch is not None
    shown = client.get(f"/v1/jobs/{job}").json()
    expected = ("succeeded", "ended", 1) if handled else ("running", "wanted", 2)
    assert (shown["state"], launch.state, launch.epoch) == expected
