"""Pages of jobs and trials: filtered, sorted, and each row exactly once."""

import math
from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.api.test_bad_bodies import check_problem
from tests.copies import copy_job
from tests.fakes import FakeService
from tuner.service import views
from tuner.store import best

SORTS = ["number", "metric", "cost_usd", "steps"]


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def walk(client: TestClient, path: str, **query: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = client.get(path, params=query if cursor is None else {**query, "cursor": cursor}).json()
        assert len(page["items"]) <= query["limit"]
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items
        assert len(page["items"]) == query["limit"]


def test_jobs_are_listed_newest_first(client: TestClient, service: FakeService) -> None:
    made = []
    for _ in range(4):
        made.append(fakes.submit(client))
        service.now.pass_s(1)
    assert ids(client.get("/v1/jobs")) == made[::-1]


def test_unchanged_job_is_read_from_the_cache(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job)
    asked: list[str] = []
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2])
    )
    shown, counts = [], []
    for _ in range(3):
        asked.clear()
        shown.append(client.get(f"/v1/jobs/{job}").json())
        counts.append(len(asked))
    assert shown[1:] == shown[:-1]
    assert counts[0] > counts[1] == counts[2]
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 1.0}, "tags": {"is": "new"}})
    changed = client.get(f"/v1/jobs/{job}").json()
    assert (changed["budget"]["usd"], changed["tags"]) == (1.0, {"is": "new"})
    assert client.post(f"/v1/jobs/{job}/resume").is_success
    fakes.simulate(service, job, messages=40)
    again = client.get(f"/v1/jobs/{job}").json()
    assert again["state"] == "running"
    assert again["progress"]["steps"] > shown[0]["progress"]["steps"]


def test_repeats_are_counted_only_if_the_budget_limits_trials(
    client: TestClient, service: FakeService
) -> None:
    """Counting them reads the configurations of all trials. A limit that is added later counts at once."""
    confirm, by_auto = {"candidates": 3, "seeds": 3}, {"scheduler": "auto", "sampler": "random"}
    job = fakes.submit(client, confirm=confirm, budget={"usd": 0.004}, algorithm=by_auto)
    run, asked = fakes.simulate(service, job, messages=40), list[str]()
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2])
    )
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
    configs = str(best._CONFIGS).partition(" \nWHERE")[0]
    assert not [statement for statement in asked if statement.startswith(configs)]
    run.run()
    trials = sum(client.get(f"/v1/jobs/{job}").json()["progress"]["trials"].values())
    client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 100, "trials": trials}})
    used = client.get(f"/v1/jobs/{job}").json()["progress"]["budget_used"]
    assert used == pytest.approx((trials - run.loop.state.repeats) / trials, abs=1e-6)
    assert run.loop.state.repeats == 3
    assert [statement for statement in asked if statement.startswith(configs)]


def test_cached_job_equals_the_database_after_each_message(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client, budget={"usd": 0.0005})

    def look() -> None:
        kept = client.get(f"/v1/jobs/{job}").json()
        views._KEPT.clear()
        assert client.get(f"/v1/jobs/{job}").json() == kept

    look()
    run = fakes.simulate(service, job, messages=0)
    while run.loop.end is None:
        client.get(f"/v1/jobs/{job}")
        run.clock.run_next()
        look()
    client.get(f"/v1/jobs/{job}")
    assert client.post(f"/v1/jobs/{job}/cancel").status_code in (202, 409)
    look()


def test_changes_to_an_idle_job_are_shown_at_once(client: TestClient, service: FakeService) -> None:
    ended, waits = fakes.submit(client), fakes.submit(client)
    fakes.simulate(service, ended)
    for job in (ended, waits):
        for number in range(3):
            asked = {"tags": {"run": str(number)}, "priority": number, "budget": {"usd": 1.0 + number}}
            before = client.get(f"/v1/jobs/{job}")
            assert client.patch(f"/v1/jobs/{job}", json=asked).is_success
            shown = client.get(f"/v1/jobs/{job}")
            assert shown.headers["ETag"] != before.headers["ETag"]
            (listed,) = [item for item in client.get("/v1/jobs").json()["items"] if item["id"] == job]
            for job_view in (shown.json(), listed):
                assert (job_view["tags"], job_view["priority"]) == (asked["tags"], number)
                assert job_view["budget"]["usd"] == 1.0 + number
                assert f'"{job_view["revision"]}"' == shown.headers["ETag"]
    assert client.post(f"/v1/jobs/{waits}/cancel").is_success
    assert client.get(f"/v1/jobs/{waits}").json()["state"] == "cancelled"


def test_number_of_queries_does_not_depend_on_the_page_size(client: TestClient, service: FakeService) -> None:
    """Each item in the page equals the answer for that job alone."""
    done, runs = fakes.submit(client), fakes.submit(client, objective={"metric": "acc", "mode": "min"})
    fakes.simulate(service, done)
    fakes.simulate(service, runs, messages=20)
    copy_job(service.database, done, 20, name="done")
    copy_job(service.database, runs, 20, name="runs")
    service.now.pass_s(1)
    alone = [fakes.submit(client, tags={"owner": "alice"}), runs, done]
    asked: list[str] = []
    event.listen(
        service.database.engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2])
    )
    counts = []
    for limit in (3, 100):
        del asked[:]
        items = client.get("/v1/jobs", params={"limit": limit}).json()["items"]
        counts.append((len(items), len(asked)))
    assert [length for length, _ in counts] == [3, 43]
    assert counts[0][1] == counts[1][1] <= 16
    shown = {item["id"]: item for item in items}
    assert {job: shown[job] for job in alone} == {job: client.get(f"/v1/jobs/{job}").json() for job in alone}
    assert [shown[job]["state"] for job in alone] == ["queued", "running", "succeeded"]
    with service.database.read() as db:
        each = {item["id"]: best.best(db, item["id"]) for item in items}
        assert best.best_of_each(db, list(each)) == {job: trial for job, trial in each.items() if trial}


def test_jobs_are_filtered_by_state(client: TestClient, service: FakeService) -> None:
    queued, cancelled, running = (fakes.submit(client) for _ in range(3))
    client.post(f"/v1/jobs/{cancelled}/cancel")
    fakes.begin(service, running)
    for state, job in (("queued", queued), ("cancelled", cancelled), ("running", running)):
        assert ids(client.get("/v1/jobs", params={"state": state})) == [job]
    assert ids(client.get("/v1/jobs", params={"state": "failed"})) == []


def test_jobs_are_filtered_by_tag(client: TestClient) -> None:
    alice = fakes.submit(client, tags={"owner": "alice", "url": "http://a:1"})
    fakes.submit(client, tags={"owner": "bob"})
    fakes.submit(client, tags={"alice": "owner"})
    for tag in ("owner:alice", "url:http://a:1"):
        assert ids(client.get("/v1/jobs", params={"tag": tag})) == [alice]
    assert ids(client.get("/v1/jobs", params={"tag": "owner:alic"})) == []
    assert ids(client.get("/v1/jobs", params={"tag": "owner:alice", "state": "failed"})) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_paging_returns_every_job_once_while_new_jobs_arrive(
    client: TestClient, service: FakeService, limit: int
) -> None:
    """Several jobs are created in the same nanosecond."""
    made = []
    for number in range(7):
        made.append(fakes.submit(client))
        service.now.pass_s(number % 2)
    seen: list[str] = []
    page = client.get("/v1/jobs", params={"limit": limit}).json()
    while True:
        seen += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        service.now.pass_s(1)
        fakes.submit(client)
        page = client.get("/v1/jobs", params={"limit": limit, "cursor": page["next_cursor"]}).json()
    assert sorted(seen) == sorted(made)


def test_paging_keeps_its_filter(client: TestClient) -> None:
    mine = {fakes.submit(client, tags={"owner": "me"}) for _ in range(3)}
    fakes.submit(client)
    assert {job["id"] for job in walk(client, "/v1/jobs", tag="owner:me", limit=1)} == mine


def expected(trials: list[dict[str, Any]], sort: str) -> list[str]:
    """Sort all trials as the API documents it: ties by number, trials without a metric last."""
    name, sign = sort.removeprefix("-"), -1 if sort.startswith("-") else 1

    def key(trial: dict[str, Any]) -> tuple[float, int]:
        number = int(trial["id"].removeprefix("trial_"))
        if name == "number":
            return sign * number, number
        value = trial[name]
        return math.inf if value is None else sign * value, number

    return [trial["id"] for trial in sorted(trials, key=key)]


@pytest.mark.parametrize("sort", [*SORTS, *(f"-{name}" for name in SORTS)])
@pytest.mark.parametrize("limit", [1, 4, 500])
def test_paged_trials_are_in_the_order_of_a_full_sort(finished: Finished, sort: str, limit: int) -> None:
    for job in (finished.troubled, finished.under_way):
        path = f"/v1/jobs/{job}/trials"
        everything = finished.client.get(path, params={"limit": 500}).json()["items"]
        assert len(everything) > 3
        walked = [trial["id"] for trial in walk(finished.client, path, sort=sort, limit=limit)]
        assert walked == expected(everything, sort)


def test_trials_without_metric_come_last_in_both_directions(client: TestClient, service: FakeService) -> None:
    job = fakes.submit(client)
    fakes.simulate(service, job, messages=10)
    for sort in ("metric", "-metric"):
        trials = walk(client, f"/v1/jobs/{job}/trials", sort=sort, limit=1)
        metrics = [trial["metric"] is None for trial in trials]
        assert metrics == sorted(metrics)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/trials", "/trials/trial_00000", "/trials/trial_00000/logs", "/trials/trial_00000/checkpoint"),
        *("/best", "/pareto", "/bill", "/ledger", "/report", "/curves", "/events", "/advice", "/replay"),
        *("/exports", "/exports/export_00001", "/exports/export_00001/variants/onnx"),
    ],
)
@pytest.mark.parametrize("accept", ["application/json", "text/csv"])
def test_unknown_job_is_404(client: TestClient, path: str, accept: str) -> None:
    check_problem(client.get(f"/v1/jobs/job_0000000000000000{path}", headers={"Accept": accept}), 404)
