"""Shared budgets: managed over REST, and enforced at submission and for every hold."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import books, fakes
from tests.api.budgeting import ASHA, get, put
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.domain.time import DAY_NS, NS, rfc3339
from tuner.service.controller import Controller
from tuner.service.reconciler import Reconciler

service, client = fakes.fixtures("function")
MORE = {"usd": 0.004}  # a job's own budget, more than the shared budgets below


def check_books(service: FakeService) -> None:
    with service.database.write() as db:
        assert books.faults(db) == []
        assert books.shared_faults(db, service.project, service.now()) == []


def test_shared_budget_can_be_created_read_changed_and_deleted(client: TestClient) -> None:
    asked = {"match": {"project": "a"}, "period": "month", "timezone": "Europe/Berlin", "gpu_hours": 2.5}
    assert client.put("/v1/budgets/vision", json={"usd": 100, **asked}).status_code == 201
    budget = get(client)
    assert budget | asked == budget
    assert (budget["usd"], budget["spend"]["left_usd"], budget["spend"]["left_gpu_hours"]) == (100, 100, 2.5)
    assert budget["period_start"] < budget["created_at"] < budget["period_end"]
    assert budget["webhook_secret"] is None
    assert client.put("/v1/budgets/vision", json={"usd": 50}).status_code == 200
    changed = get(client)
    assert (changed["usd"], changed["gpu_hours"], changed["period"], changed["match"]) == (50, None, None, {})
    assert changed["spend"]["left_gpu_hours"] is None
    assert client.get("/v1/budgets").json() == {"items": [changed]}
    assert client.delete("/v1/budgets/vision").status_code == 204
    check_problem(client.get("/v1/budgets/vision"), 404)
    check_problem(client.delete("/v1/budgets/vision"), 404)


def test_webhook_secret_is_shown_only_when_new(client: TestClient) -> None:
    first = put(client)["webhook_secret"]
    assert first.startswith("whsec_")
    assert put(client)["webhook_secret"] is None
    assert put(client, new_secret=True)["webhook_secret"] not in (None, first)


@pytest.mark.parametrize(
    ("body", "pointer", "message"),
    [
        ({}, "", "usd and gpu_hours"),
        ({"usd": 0}, "/usd", "more than 0"),
        ({"usd": 1.0000001}, "/usd", "six decimals"),
        ({"usd": 1, "period": "year"}, "/period", "month"),
        ({"usd": 1, "timezone": "Europe/Berln"}, "/timezone", "Europe/Berlin"),
        ({"usd": 1, "parent": "teem"}, "/parent", "use an existing one, such as team"),
        ({"usd": 1, "parent": "b"}, "/parent", "itself nested under"),
        ({"usd": 1, "match": {"": "x"}}, "/match/", "1 to 100"),
        ({"usd": 1, "alerts": [{"at": 1.5, "url": "https://a.example"}]}, "/alerts/0/at", "at most 1"),
        ({"usd": 1, "alerts": [{"at": 0.12345678, "url": "https://a.example"}]}, "/alerts/0/at", "six"),
        ({"usd": 1, "alerts": [{"at": 1, "url": "http://a.example"}]}, "/alerts/0/url", "https://"),
        ({"usd": 1, "alerts": [{"at": 1, "url": "https://169.254.169.254/"}]}, "/alerts/0/url", "private"),
        ({"usd": 1, "alerts": [{"at": 1, "url": "https://[::ffff:10.0.0.1]/"}]}, "/alerts/0/url", "private"),
        ({"usd": 1, "mach": {}}, "/mach", "did you mean match?"),
    ],
)
def test_invalid_budget_is_refused_with_a_pointer_and_a_fix(
    client: TestClient, body: dict[str, Any], pointer: str, message: str
) -> None:
    put(client, "team")
    problem = check_problem(client.put("/v1/budgets/b", json=body), 422)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert message in problem["errors"][0]["detail"]


def test_job_pauses_at_the_shared_budget_and_resumes_in_the_next_period(
    service: FakeService, client: TestClient
) -> None:
    put(client, "all", usd=0.5)
    put(client, usd=0.001, match={"project": "a"}, period="day", parent="all")
    job = fakes.submit(client, tags={"project": "a"}, algorithm=ASHA, budget=MORE)
    fakes.simulate(service, job)
    job_view, budget = client.get(f"/v1/jobs/{job}").json(), get(client)
    assert (job_view["state"], job_view["stop_reason"]) == ("paused", "budget_usd")
    assert "'vision'" in job_view["detail"]
    assert job_view["spend"]["usd"] == budget["spend"]["usd"] == get(client, "all")["spend"]["usd"]
    assert 0.0008 < budget["spend"]["usd"] <= 0.001
    assert budget["waiting_jobs"] == [job]
    check_books(service)

    refused = check_problem(client.post(f"/v1/jobs/{job}/resume"), 409)
    assert "'vision'" in refused["detail"]
    refused = check_problem(client.post("/v1/jobs", json=fakes.body(tags={"project": "a"})), 409)
    assert all(
        word in refused["detail"] for word in ("'vision'", "PUT /v1/budgets/vision", budget["period_end"])
    )
    fakes.submit(client, tags={"project": "b"})

    reconciler = Reconciler(service)
    reconciler.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    service.now.at += DAY_NS
    reconciler.one_pass()
    job_view = client.get(f"/v1/jobs/{job}").json()
    assert (job_view["state"], job_view["detail"]) == ("running", "")
    assert get(client)["spend"]["usd"] == 0
    assert get(client)["waiting_jobs"] == []


def test_job_resumes_after_a_raised_budget_unless_a_user_paused_it(
    service: FakeService, client: TestClient
) -> None:
    put(client, usd=0.001)
    job = fakes.submit(client, algorithm=ASHA, budget=MORE)
    fakes.simulate(service, job)
    reconciler = Reconciler(service)
    service.now.pass_s(61)
    reconciler.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused", "too little is left"
    put(client, usd=0.002)
    reconciler.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
    fakes.simulate(service, job)
    client.post(f"/v1/jobs/{job}/pause")
    put(client, usd=0.003)
    service.now.pass_s(61)
    reconciler.one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    assert client.post(f"/v1/jobs/{job}/resume").status_code == 202


@pytest.mark.parametrize("is_submitted", [False, True])
def test_job_resumes_after_a_raised_budget_only_before_its_export_is_submitted(
    service: FakeService, client: TestClient, is_submitted: bool
) -> None:
    put(client, usd=0.001)
    job = fakes.submit(client, algorithm=ASHA, budget=MORE)
    fakes.simulate(service, job)
    put(client, usd=0.1)
    made = client.post(f"/v1/jobs/{job}/exports", json={})
    assert made.status_code == 202, made.text
    if is_submitted:
        Controller(service).one_pass()
    Reconciler(service).one_pass()
    export = client.get(made.headers["location"]).json()
    state = client.get(f"/v1/jobs/{job}").json()["state"]
    if is_submitted:
        assert (state, export["state"]) == ("paused", "queued")
        return
    assert (state, export["state"], export["code"]) == ("running", "failed", "cancelled")
    assert "the job was resumed" in export["detail"]


def test_job_waits_for_the_parent_budget_after_its_budget_is_deleted(
    service: FakeService, client: TestClient
) -> None:
    """After the deletion, the job is recorded as waiting for the parent budget."""
    put(client, "whole", usd=0.001)
    put(client, usd=0.001, match={"project": "a"}, parent="whole")
    job = fakes.submit(client, tags={"project": "a"}, algorithm=ASHA, budget=MORE)
    fakes.simulate(service, job)
    assert get(client)["waiting_jobs"] == [job]
    assert client.delete("/v1/budgets/vision").status_code == 204
    Reconciler(service).one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "paused"
    assert get(client, "whole")["waiting_jobs"] == [job]
    put(client, "whole", usd=1)
    Reconciler(service).one_pass()
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"


def test_job_ends_at_its_own_budget_if_that_is_smaller(service: FakeService, client: TestClient) -> None:
    put(client, usd=1)
    job = fakes.submit(client, algorithm=ASHA)
    fakes.simulate(service, job)
    job_view = client.get(f"/v1/jobs/{job}").json()
    assert (job_view["state"], job_view["stop_reason"]) == ("succeeded", "budget_usd")
    assert get(client)["spend"]["usd"] == job_view["spend"]["usd"]


def test_two_jobs_share_a_budget_without_exceeding_it(service: FakeService, client: TestClient) -> None:
    put(client, usd=0.001)
    for seed in (1, 2):
        job = fakes.submit(client, algorithm={**ASHA, "seed": seed}, budget=MORE)
        fakes.simulate(service, job, messages=75 if seed == 1 else None)
        check_books(service)
    assert get(client)["spend"]["usd"] + get(client)["spend"]["held_usd"] <= 0.001
    assert get(client)["waiting_jobs"] == [job]


def test_tags_that_would_exceed_a_shared_budget_are_refused(service: FakeService, client: TestClient) -> None:
    job = fakes.submit(client, algorithm=ASHA)
    fakes.simulate(service, job)
    put(client, usd=0.0005, match={"project": "a"})
    refused = check_problem(client.patch(f"/v1/jobs/{job}", json={"tags": {"project": "a"}}), 409)
    assert "'vision'" in refused["detail"]
    assert client.get(f"/v1/jobs/{job}").json()["tags"] == {}
    check_problem(client.put("/v1/budgets/all", json={"usd": 0.0005}), 409)


def test_forecast_says_when_the_budget_runs_out_at_the_current_rate(
    service: FakeService, client: TestClient
) -> None:
    put(client, usd=1)
    assert get(client)["forecast"]["runs_out_at"] is None
    job = fakes.submit(client, algorithm=ASHA)
    fakes.simulate(service, job)
    budget = get(client)
    forecast, left = budget["forecast"], budget["spend"]["left_usd"]
    hours = left / forecast["usd_per_hour"]
    assert forecast["earliest_at"] <= forecast["runs_out_at"]
    assert forecast["runs_out_at"][:16] == rfc3339(service.now() + round(hours * 3600 * NS))[:16]
    service.now.at += 2 * DAY_NS
    assert get(client)["forecast"]["runs_out_at"] is None
