"""Pause, resume, cancel and change jobs: the effect in each state, and that a refused or outdated request changes nothing."""

import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.domain.objective import Mode
from tuner.ledger import budget_waits
from tuner.store import jobs, launches

Wish = str | None

# The states of a job: its state, the desired state, and the state of its launch.
STANDINGS: dict[str, tuple[str, Wish, str]] = {
    "queued": ("queued", None, "wanted"),
    "queued, submitted": ("queued", None, "submitted"),
    "running": ("running", None, "running"),
    "running, to be paused": ("running", "pause", "running"),
    "running, to be cancelled": ("running", "cancel", "running"),
    "paused": ("paused", None, "ended"),
    "succeeded": ("succeeded", None, "ended"),
    "cancelled": ("cancelled", None, "ended"),
    "failed": ("failed", None, "ended"),
}
# The expected result: HTTP status, then state, desired state and launch.
TABLE: dict[tuple[str, str], tuple[int, str, Wish, str]] = {
    ("pause", "queued"): (202, "paused", None, "ended"),
    ("pause", "queued, submitted"): (202, "queued", "pause", "submitted"),
    ("pause", "running"): (202, "running", "pause", "running"),
    ("pause", "running, to be paused"): (202, "running", "pause", "running"),
    ("pause", "running, to be cancelled"): (409, "running", "cancel", "running"),
    ("pause", "paused"): (202, "paused", None, "ended"),
    ("pause", "succeeded"): (409, "succeeded", None, "ended"),
    ("pause", "cancelled"): (409, "cancelled", None, "ended"),
    ("pause", "failed"): (409, "failed", None, "ended"),
    ("resume", "queued"): (202, "queued", None, "wanted"),
    ("resume", "queued, submitted"): (202, "queued", None, "submitted"),
    ("resume", "running"): (202, "running", None, "running"),
    ("resume", "running, to be paused"): (202, "running", "resume", "running"),
    ("resume", "running, to be cancelled"): (409, "running", "cancel", "running"),
    ("resume", "paused"): (202, "running", None, "wanted"),
    ("resume", "succeeded"): (202, "running", None, "wanted"),
    ("resume", "cancelled"): (409, "cancelled", None, "ended"),
    ("resume", "failed"): (409, "failed", None, "ended"),
    ("cancel", "queued"): (202, "cancelled", None, "ended"),
    ("cancel", "queued, submitted"): (202, "queued", "cancel", "submitted"),
    ("cancel", "running"): (202, "running", "cancel", "running"),
    ("cancel", "running, to be paused"): (202, "running", "cancel", "running"),
    ("cancel", "running, to be cancelled"): (202, "running", "cancel", "running"),
    ("cancel", "paused"): (202, "cancelled", None, "ended"),
    ("cancel", "succeeded"): (409, "succeeded", None, "ended"),
    ("cancel", "cancelled"): (202, "cancelled", None, "ended"),
    ("cancel", "failed"): (409, "failed", None, "ended"),
}
ROWS = list(TABLE)


def stand(service: FakeService, job: str, standing: str) -> None:
    state, desired_state, launch = STANDINGS[standing]
    if launch == "submitted":
        with service.database.write() as db:
            launches.submitted(db, job, 1, service.now())
    if state != "queued":
        fakes.begin(service, job)
    if state not in ("queued", "running"):
        fakes.move(service, job, state)
    with service.database.write() as db:
        jobs.set_control_request(db, job, desired_state)  # type: ignore[arg-type]


def stands(service: FakeService, job: str) -> tuple[str, Wish, str]:
    with service.database.read() as db:
        row, launch = jobs.get(db, job), launches.get(db, job)
        assert launch is not None
        return row.state, row.control_request, launch.state


@pytest.mark.parametrize(("action", "standing"), ROWS)
def test_action_in_each_state_has_the_expected_effect(
    client: TestClient, service: FakeService, action: str, standing: str
) -> None:
    job = fakes.submit(client)
    stand(service, job, standing)
    assert stands(service, job) == STANDINGS[standing]
    answer = client.post(f"/v1/jobs/{job}/{action}")
    status, *after = TABLE[action, standing]
    assert answer.status_code == status, answer.text
    assert stands(service, job) == tuple(after)
    if status == 202:
        assert answer.json() == client.get(f"/v1/jobs/{job}").json()
    else:
        check_problem(answer, status)


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
def test_action_on_unknown_job_is_404(client: TestClient, action: str) -> None:
    check_problem(client.post(f"/v1/jobs/job_0/{action}"), 404)


def test_resumed_job_waiting_for_a_driver_is_cancelled_at_once(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(client)
    client.post(f"/v1/jobs/{job}/pause")
    client.post(f"/v1/jobs/{job}/resume")
    client.post(f"/v1/jobs/{job}/cancel")
    assert stands(service, job) == ("cancelled", None, "ended")


def test_cancelled_job_shows_its_stop_reason_and_end_time(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    shown = client.post(f"/v1/jobs/{job}/cancel").json()
    assert (shown["state"], shown["stop_reason"]) == ("cancelled", "cancelled")
    assert shown["ended_at"] == shown["created_at"]


# Changes


@pytest.fixture
def spending(client: TestClient, service: FakeService) -> str:
    """A running job with money spent and money held."""
    job = fakes.submit(client, tags={"owner": "alice"})
    fakes.simulate(service, job, messages=60)
    spend = client.get(f"/v1/jobs/{job}").json()["spend"]
    assert spend["usd"] > 0
    assert spend["held_usd"] > 0
    return job


def patch(client: TestClient, job: str, **change: Any) -> Any:
    return client.patch(f"/v1/jobs/{job}", json=change)


def test_budget_cannot_be_set_below_spent_and_held_money(client: TestClient, spending: str) -> None:
    spend = client.get(f"/v1/jobs/{spending}").json()["spend"]
    used = round(spend["usd"] + spend["held_usd"], 6)
    before = client.get(f"/v1/jobs/{spending}").json()
    for less in (round(used - 0.000001, 6), spend["usd"], 0.000001):
        check_problem(patch(client, spending, budget={"usd": less}), 409)
        assert client.get(f"/v1/jobs/{spending}").json() == before
    assert patch(client, spending, budget={"usd": used}).json()["budget"]["usd"] == used


def test_trial_and_time_limits_cannot_be_set_below_their_use(
    client: TestClient, service: FakeService
) -> None:
    job = fakes.submit(client, budget={"usd": 1, "trials": 8, "wall_clock": "1h"})
    fakes.simulate(service, job, messages=60)
    begun = sum(client.get(f"/v1/jobs/{job}").json()["progress"]["trials"].values())
    assert begun > 1
    check_problem(patch(client, job, budget={"trials": begun - 1}), 409)
    check_problem(patch(client, job, budget={"wall_clock": 0.001}), 409)
    assert patch(client, job, budget={"trials": begun}).status_code == 200


def test_repeats_of_a_confirmation_do_not_count_for_the_limit_of_trials(
    client: TestClient, service: FakeService
) -> None:
    budget, auto = {"usd": 1, "trials": 6}, {"scheduler": "auto", "sampler": "random"}
    confirm = {"candidates": 3, "seeds": 3}
    job = fakes.submit(client, budget=budget, confirm=confirm, algorithm=auto)
    run = fakes.simulate(service, job)
    assert client.get(f"/v1/jobs/{job}").json()["stop_reason"] == "confirmed"
    assert len(run.loop.state.trials) > 6
    assert patch(client, job, budget={"trials": 12}).json()["progress"]["budget_used"] == 0.5
    for change in ({"usd": 2}, {"trials": 9}, {"trials": 6}):
        assert patch(client, job, budget=change).status_code == 200
    problem = check_problem(patch(client, job, budget={"trials": 5}), 409)
    assert "6 trials have already begun" in problem["detail"]
    client.post(f"/v1/jobs/{job}/resume")
    enqueued = client.post(f"/v1/jobs/{job}/trials", json={"config": {"lr": 0.0123, "width": 9}})
    assert enqueued.status_code == 409
    patch(client, job, budget={"trials": 7})
    enqueued = client.post(f"/v1/jobs/{job}/trials", json={"config": {"lr": 0.0123, "width": 9}})
    assert enqueued.status_code == 202, enqueued.json()


def test_budget_change_affects_only_the_given_limits(client: TestClient, spending: str) -> None:
    before = client.get(f"/v1/jobs/{spending}").json()["budget"]
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"usd": 7.25}, {"usd": 7.25}),
        ({"gpu_hours": 1.5}, {"gpu_hours": 1.5}),
        ({"wall_clock": "15m", "trials": 9}, {"wall_clock": 900.0, "trials": 9}),
        ({"wall_clock": None, "on_exhausted": "pause"}, {"wall_clock": None, "on_exhausted": "pause"}),
        ({"on_exhausted": None}, {}),
        ({}, {}),
    ]
    for change, shown in changes:
        before |= shown
        answer = patch(client, spending, budget=change)
        assert (answer.status_code, answer.json()["budget"]) == (200, before)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"tags": {"a:b": "c"}, "budget": {"usd": 5}, "priority": 3}, 422),
        ({"tags": {"a": "b"}, "budget": {"usd": 0.000001}, "priority": 3}, 409),
        ({"tags": {"a": "b"}, "budget": {"usd": -5}, "priority": 3}, 422),
        ({"tags": {"a": "b"}, "budget": {"usd": 5}, "priority": 1001}, 422),
        ({"tags": {"a": "b"}, "budget": {"usd": 5, "trials": 0}, "priority": 3}, 422),
        ({"tags": {"a": "b"}, "budget": {"usd": 5}, "name": "new"}, 422),
    ],
    ids=str,
)
def test_change_with_an_invalid_part_changes_nothing(
    client: TestClient, spending: str, change: dict[str, Any], status: int
) -> None:
    before = client.get(f"/v1/jobs/{spending}").json()
    check_problem(client.patch(f"/v1/jobs/{spending}", json=change), status)
    assert client.get(f"/v1/jobs/{spending}").json() == before


def test_tags_budget_and_priority_can_be_changed_in_one_request(client: TestClient, spending: str) -> None:
    for priority in (-1000, 1000):
        shown = patch(client, spending, tags={"a": "b"}, budget={"usd": 5}, priority=priority).json()
        assert (shown["tags"], shown["budget"]["usd"], shown["priority"]) == ({"a": "b"}, 5, priority)
    assert client.get("/v1/jobs", params={"tag": "owner:alice"}).json()["items"] == []


def test_cancelled_job_does_not_wait_for_a_shared_budget(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, tags={"team": "vision"})
    client.put("/v1/budgets/all", json={"usd": 10})
    with service.database.write() as db:
        jobs.move(db, job, "paused", None, at=service.now())
        launches.end(db, job, 1)
        budget_waits.note(db, service.project, job, "all", service.now())
        assert budget_waits.projects(db) == [service.project]
    assert client.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
    with service.database.read() as db:
        assert budget_waits.projects(db) == []


@pytest.mark.parametrize(
    ("standing", "status"), [("paused", 200), ("succeeded", 200), ("cancelled", 409), ("failed", 409)]
)
def test_only_paused_and_succeeded_of_the_stopped_jobs_can_be_topped_up(
    client: TestClient, service: FakeService, standing: str, status: int
) -> None:
    job = fakes.submit(client)
    stand(service, job, standing)
    assert patch(client, job, budget={"usd": 3}).status_code == status
    assert (client.get(f"/v1/jobs/{job}").json()["budget"]["usd"] == 3) == (status == 200)
    assert patch(client, job, tags={"kept": "yes"}).json()["tags"] == {"kept": "yes"}


def test_usd_limit_of_a_job_without_gpus_cannot_be_removed(client: TestClient) -> None:
    job = fakes.submit(client)
    check_problem(patch(client, job, budget={"usd": None, "gpu_hours": 1}), 422)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_succeeded_job_resumes_after_a_top_up(client: TestClient, service: FakeService, mode: Mode) -> None:
    job = fakes.submit(client, objective={"metric": "acc", "mode": mode}, budget={"usd": 0.001})
    fakes.simulate(service, job)
    ended = client.get(f"/v1/jobs/{job}").json()
    assert (ended["state"], ended["stop_reason"]) == ("succeeded", "budget_usd")
    refused = check_problem(client.post(f"/v1/jobs/{job}/resume"), 409)
    assert refused["code"] == "budget-refused"
    assert f"tuner topup {job}" in refused["detail"]
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    assert patch(client, job, budget={"usd": 0.002}).status_code == 200
    shown = client.post(f"/v1/jobs/{job}/resume").json()
    assert (shown["state"], shown["queue_position"]) == ("running", None)
    assert (shown["state"], shown["stop_reason"], shown["ended_at"]) == ("running", None, None)


def patch_if(client: TestClient, job: str, revision: str, **change: Any) -> Any:
    return client.patch(f"/v1/jobs/{job}", json=change, headers={"If-Match": revision})


def shown_with_etag(client: TestClient, job: str) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job}")
    job_view: dict[str, Any] = answer.json()
    assert answer.headers["ETag"] == f'"{job_view["revision"]}"'
    return job_view


def test_revision_changes_only_with_user_changes(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    seen = [shown_with_etag(client, job)["revision"]]
    changes: list[dict[str, Any]] = [
        {"budget": {"usd": 1}},
        {"budget": {"on_exhausted": "pause"}},
        {"tags": {"owner": "alice"}},
        {"priority": 3},
    ]
    for change in changes:
        answer = client.patch(f"/v1/jobs/{job}", json=change)
        assert answer.headers["ETag"] == f'"{answer.json()["revision"]}"'
        seen.append(shown_with_etag(client, job)["revision"])
    assert len(set(seen)) == len(seen)
    fakes.simulate(service, job, messages=60)
    assert shown_with_etag(client, job)["spend"]["usd"] > 0
    assert shown_with_etag(client, job)["revision"] == seen[-1]


@pytest.mark.parametrize("form", ['"{}"', "*", '"other", "{}"', 'W/"{}"'])
def test_change_with_the_current_revision_is_made(client: TestClient, form: str) -> None:
    job = fakes.submit(client)
    revision = shown_with_etag(client, job)["revision"]
    changed = patch_if(client, job, form.format(revision), budget={"usd": 5})
    assert (changed.status_code, changed.json()["budget"]["usd"]) == (200, 5)


def test_change_with_an_old_revision_is_refused_and_changes_nothing(client: TestClient) -> None:
    job = fakes.submit(client)
    old = shown_with_etag(client, job)["revision"]
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 12.5, "gpu_hours": 3}})
    before = shown_with_etag(client, job)
    problem = check_problem(
        patch_if(client, job, f'"{old}"', budget={"usd": 20}, tags={"a": "b"}, priority=9), 412
    )
    assert "$12.5" in problem["detail"]
    assert "3 GPU-hours" in problem["detail"]
    assert shown_with_etag(client, job) == before


def test_if_match_without_quotes_is_refused(client: TestClient) -> None:
    job = fakes.submit(client)
    problem = check_problem(patch_if(client, job, shown_with_etag(client, job)["revision"], priority=1))
    assert [error["pointer"] for error in problem["errors"]] == ["If-Match"]


def test_only_one_of_several_concurrent_changes_is_made(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    revision, start, statuses = (
        shown_with_etag(client, job)["revision"],
        threading.Barrier(6),
        dict[int, int](),
    )

    def ask(number: int) -> None:
        own = fakes.client_of(service)
        start.wait()
        statuses[number] = patch_if(own, job, f'"{revision}"', budget={"usd": number}).status_code

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(statuses.values()) == [200, *[412] * 5]
    winner = next(number for number, status in statuses.items() if status == 200)
    assert shown_with_etag(client, job)["budget"]["usd"] == winner
