"""A project's quota: a hard limit in dollars, and limits on jobs and trials that make further jobs wait."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from tests import books, fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tests.service.passes import end, give_room, launched, one_pass, submit
from tuner.domain.budget import BUDGET
from tuner.domain.money import Money
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import DAY_NS
from tuner.ledger import shared_budget_changes
from tuner.service.reconciler import Reconciler


def put(client: TestClient, **quota: Any) -> Any:
    answer = client.put("/v1/quota", json=quota)
    assert answer.status_code == 200, answer.text
    assert client.get("/v1/quota").json() == answer.json()
    return answer.json()


def detail(client: TestClient, job: str) -> str:
    return str(client.get(f"/v1/jobs/{job}").json()["detail"])


def test_project_without_a_quota_has_no_limits(client: TestClient) -> None:
    quota = client.get("/v1/quota").json()
    assert {key: value for key, value in quota.items() if value is not None} == {
        "timezone": "UTC",
        "used": {
            "usd": None,
            "held_usd": None,
            "gpu_hours": None,
            "held_gpu_hours": None,
            "concurrent_jobs": 0,
            "concurrent_trials": 0,
        },
    }


def test_pass_of_the_reconciler_takes_as_many_statements_for_many_quotas(service: FakeService) -> None:
    """A quota has no alerts, so the reconciler need not read the quotas each second."""
    reconciler, term, statements = Reconciler(service), service.leading.term(), list[str]()
    assert term is not None
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )

    def needed() -> int:
        del statements[:]
        reconciler._work_of_the_leader(term)
        return len(statements)

    def give_quotas(*projects: str) -> None:
        for project in projects:
            with service.database.write() as db:
                quota = SharedBudget(BUDGET, usd=Money(1000), period="month")
                shared_budget_changes.put(db, project, quota, secret="", at=service.now())

    give_quotas("default")
    needed()  # the first pass measures the machines
    few = needed()
    give_quotas("vision", "speech", "robots")
    assert needed() == few


def test_job_beyond_the_quota_waits_until_another_job_ends(service: FakeService, client: TestClient) -> None:
    give_room(service)
    put(client, concurrent_jobs=2)
    first, second, third = (submit(service, client) for _ in range(3))
    for _ in range(3):
        one_pass(service)
    assert launched(service) == [first, second]
    assert detail(client, third) == "waits because the quota of the project allows 2 jobs at once"
    assert client.get(f"/v1/jobs/{third}").json()["state"] == "queued"
    used = client.get("/v1/quota").json()["used"]
    assert (used["concurrent_jobs"], used["concurrent_trials"]) == (2, 4)
    end(service, first)
    one_pass(service)
    assert launched(service) == [first, second, third]
    assert detail(client, third) == ""


def test_trial_quota_counts_the_maximum_concurrency_of_each_job(
    service: FakeService, client: TestClient
) -> None:
    give_room(service)
    put(client, concurrent_trials=5)
    first, second, third = (submit(service, client) for _ in range(3))
    one_pass(service)
    assert launched(service) == [first, second]
    small = fakes.submit(client, resources={"max_concurrent_trials": 1})
    one_pass(service)
    assert launched(service) == [first, second], "the one before it in line is not overtaken"
    end(service, first)
    one_pass(service)
    assert launched(service) == [first, second, third, small]


def test_job_concurrency_is_capped_by_the_project_quota(service: FakeService, client: TestClient) -> None:
    give_room(service)
    put(client, concurrent_trials=3)
    wide = fakes.submit(client)
    assert client.get(f"/v1/jobs/{wide}").json()["concurrency"] == 3
    put(client)
    assert client.get(f"/v1/jobs/{fakes.submit(client)}").json()["concurrency"] == 100


def widen(client: TestClient, job: str, trials: int) -> int:
    """Change a job's `max_concurrent_trials`, and return how many trials may run at once."""
    answer = client.patch(f"/v1/jobs/{job}", json={"max_concurrent_trials": trials})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["concurrency"])


def test_running_jobs_cannot_be_widened_beyond_the_quota_of_their_project(
    service: FakeService, client: TestClient
) -> None:
    give_room(service)
    put(client, concurrent_trials=5)
    first, second, waiting = (submit(service, client) for _ in range(3))
    one_pass(service)
    assert launched(service) == [first, second]
    assert [widen(client, job, 5) for job in (first, second)] == [3, 2]
    assert widen(client, waiting, 5) == 5, (
        "a waiting job is launched once the quota has room for all its trials"
    )
    assert widen(client, first, 1) == 1
    assert widen(client, second, 5) == 4
    put(client, concurrent_trials=3)
    assert widen(client, second, 3) == 3, "a lowered quota does not take away the trials of a running job"
    assert widen(client, first, 3) == 1


def while_submitting(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    """Call `act` before Ray receives the next driver."""
    submit_driver = service.cluster.submit

    def submit(submission_id: str, **how: Any) -> None:
        monkeypatch.undo()
        act()
        submit_driver(submission_id, **how)

    monkeypatch.setattr(service.cluster, "submit", submit)


def test_job_that_is_widened_while_it_is_launched_stays_within_the_quota(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_room(service)
    put(client, concurrent_trials=4)
    first = fakes.submit(client, resources={"max_concurrent_trials": 3})
    one_pass(service)
    second = fakes.submit(client, resources={"max_concurrent_trials": 1})
    widened: list[int] = []
    while_submitting(service, monkeypatch, lambda: widened.append(widen(client, second, 4)))
    one_pass(service)
    assert launched(service) == [first, second]
    assert widened == [1]
    assert client.get("/v1/quota").json()["used"]["concurrent_trials"] == 4


@pytest.mark.parametrize("change", ["quota", "width"])
def test_decision_to_launch_is_checked_again_when_the_launch_is_claimed(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The change arrives after the pass has decided to launch the job."""
    give_room(service)
    first = fakes.submit(client, resources={"max_concurrent_trials": 3})
    one_pass(service)
    second = fakes.submit(client, resources={"max_concurrent_trials": 1})
    check_fit = service.cluster.check_fit

    def meanwhile() -> None:
        monkeypatch.undo()
        check_fit()
        put(client, concurrent_trials=4 if change == "width" else 3)
        if change == "width":
            assert widen(client, second, 4) == 4

    monkeypatch.setattr(service.cluster, "check_fit", meanwhile)
    for _ in range(3):
        one_pass(service)
    assert launched(service) == [first]
    assert "quota" in detail(client, second)


def test_job_that_lost_its_driver_keeps_its_place_under_a_lowered_quota(
    service: FakeService, client: TestClient
) -> None:
    give_room(service)
    first, second = submit(service, client), submit(service, client)
    one_pass(service)
    fakes.begin(service, first)
    put(client, concurrent_jobs=1)
    service.cluster.statuses[f"{first}-1"] = "failed"
    for _ in range(3):
        one_pass(service)
    assert f"{first}-2" in service.cluster.submitted
    assert client.get("/v1/quota").json()["used"]["concurrent_jobs"] == 2
    assert second in launched(service)


def test_quota_in_dollars_covers_all_jobs_and_resets_with_the_period(
    service: FakeService, client: TestClient
) -> None:
    put(client, usd=0.0006, period="day")
    jobs = [fakes.submit(client, budget={"usd": 0.0004}) for _ in range(2)]
    for job in jobs:
        fakes.simulate(service, job)
    spent = [client.get(f"/v1/jobs/{job}").json()["spend"]["usd"] for job in jobs]
    assert 0.0005 < sum(spent) <= 0.0006
    quota_view = client.get("/v1/quota").json()
    assert quota_view["used"]["usd"] == pytest.approx(sum(spent), abs=1e-9)
    assert detail(client, jobs[1]).startswith("the quota of the project is used up")
    refused = check_problem(client.post("/v1/jobs", json=fakes.body()), 409)
    assert all(
        word in refused["detail"] for word in ("quota of this project", "/v1/quota", quota_view["period_end"])
    )
    with service.database.read() as db:
        assert books.faults(db) == []
    check_problem(client.put("/v1/quota", json={"usd": 0.0002, "period": "day"}), 409)
    service.now.at += DAY_NS
    Reconciler(service).one_pass()
    assert client.get(f"/v1/jobs/{jobs[1]}").json()["state"] == "running"


def test_quota_budget_cannot_be_changed_through_the_budget_routes(client: TestClient) -> None:
    put(client, usd=5, gpu_hours=2)
    assert client.get("/v1/budgets/_quota").json()["usd"] == 5
    check_problem(client.put("/v1/budgets/_quota", json={"usd": 500}), 422)
    assert "quota" in check_problem(client.delete("/v1/budgets/_quota"), 409)["detail"]
    check_problem(client.put("/v1/budgets/mine", json={"usd": 1, "parent": "_quota"}), 422)
    assert put(client, concurrent_jobs=1)["usd"] is None
    assert client.get("/v1/budgets").json()["items"] == []


def test_job_shows_that_it_waits_for_the_ray_cluster_to_start(
    service: FakeService, client: TestClient
) -> None:
    service.cluster.starts = True
    queued, resumed = (fakes.submit(client, budget={"usd": 0.001}) for _ in range(2))
    assert detail(client, queued) == "waits until the Ray cluster has started"
    fakes.simulate(service, resumed)
    client.patch(f"/v1/jobs/{resumed}", json={"budget": {"usd": 1}}).raise_for_status()
    client.post(f"/v1/jobs/{resumed}/resume").raise_for_status()
    assert client.get(f"/v1/jobs/{resumed}").json()["state"] == "running"
    assert detail(client, resumed) == "waits until the Ray cluster has started"
    service.cluster.starts = False
    assert detail(client, queued) == detail(client, resumed) == ""
