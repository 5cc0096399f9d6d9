"""The audit log has one entry per change, none without a change, and no entry can be altered."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tests.packages.making import plain
from tuner.api.access import RULES

AUDIT = "/v1/audit"
ZIP = {"Content-Type": "application/zip"}
CHANGES_NOTHING = {("POST", "/v1/session"), ("POST", "/v1/plans"), ("POST", "/v1/estimates")}


def entries(client: TestClient, **query: Any) -> list[Any]:
    answer = client.get(AUDIT, params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def put(client: TestClient, path: str, body: Any) -> Any:
    answer = client.put(path, json=body)
    assert answer.is_success, answer.text
    return answer


def member(client: TestClient, user: str = "ada") -> None:
    put(client, f"/v1/members/{user}", {"role": "submitter"})


def key(_: FakeService, client: TestClient) -> str:
    member(client)
    answer = client.post("/v1/keys", json={"user": "ada", "name": "laptop"})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ada(_: FakeService, client: TestClient) -> str:
    member(client)
    return "ada"


def new_member(_: FakeService, client: TestClient) -> str:
    member(client)
    return ""


def job(_: FakeService, client: TestClient) -> str:
    return fakes.submit(client)


def finished(service: FakeService, client: TestClient) -> str:
    name = job(service, client)
    fakes.simulate(service, name)
    return name


def exportable(service: FakeService, client: TestClient) -> str:
    """A finished job with money left."""
    name = finished(service, client)
    assert client.patch(f"/v1/jobs/{name}", json={"budget": {"usd": 0.1}}).is_success
    return name


def paused(service: FakeService, client: TestClient) -> str:
    name = job(service, client)
    assert client.post(f"/v1/jobs/{name}/pause").status_code == 202
    return name


def paused_trial(service: FakeService, client: TestClient) -> str:
    name = fakes.submit(client, algorithm={"scheduler": "asha", "sampler": "random"})
    fakes.simulate(service, name, messages=60)
    trials = client.get(f"/v1/jobs/{name}/trials").json()["items"]
    return f"{name}/{next(trial['id'] for trial in trials if trial['state'] == 'paused')}"


def vision(_: FakeService, client: TestClient) -> str:
    put(client, "/v1/budgets/vision", {"usd": 3})
    return "vision"


@dataclass(frozen=True)
class Change:
    """A request that changes something."""

    action: str  #: The action of the entry.
    body: Any = None
    #: Create what the request changes, and return its name.
    prepare: Callable[[FakeService, TestClient], str] = lambda *_: ""
    #: The entry's target. None for the name that `prepare` returns, or the id in the answer if that is empty.
    target: str | None = None


ALERT = {"at": 0.5, "url": "https://hooks.example/T0/secret"}
PILOT = fakes.body(planning={"pilot": {"usd": 0.0005}})
CHANGES: dict[tuple[str, str], Change] = {
    ("POST", "/v1/jobs"): Change("job.submit", fakes.body()),
    ("POST", "/v1/pilots"): Change("job.submit", PILOT),
    ("PATCH", "/v1/jobs/{job}"): Change(
        "job.change", {"budget": {"usd": 0.005}, "tags": {"owner": "ada"}}, job
    ),
    ("POST", "/v1/jobs/{job}/pause"): Change("job.pause", None, job),
    ("POST", "/v1/jobs/{job}/resume"): Change("job.resume", None, paused),
    ("POST", "/v1/jobs/{job}/cancel"): Change("job.cancel", None, job),
    ("DELETE", "/v1/jobs/{job}/artifacts"): Change("artifacts.delete", None, finished),
    ("POST", "/v1/jobs/{job}/exports"): Change("job.export", {"formats": ["onnx"]}, exportable),
    ("POST", "/v1/jobs/{job}/trials"): Change("trial.enqueue", {"config": {"lr": 0.1, "width": 9}}, job),
    ("POST", "/v1/jobs/{job}/trials/{trial}/stop"): Change("trial.stop", None, paused_trial),
    ("POST", "/v1/jobs/{job}/trials/{trial}/promote"): Change("trial.promote", None, paused_trial),
    ("PUT", "/v1/budgets/{name}"): Change("budget.put", {"usd": 3, "alerts": [ALERT]}, lambda *_: "vision"),
    ("DELETE", "/v1/budgets/{name}"): Change("budget.remove", None, vision),
    ("PUT", "/v1/quota"): Change("quota.put", {"usd": 3, "concurrent_jobs": 2}, target="default"),
    ("POST", "/v1/packages?name=mine"): Change("package.put", plain({"mine.py": ""})),
    ("PUT", "/v1/members/{user}"): Change("member.put", {"role": "viewer"}, lambda *_: "ada"),
    ("DELETE", "/v1/members/{user}"): Change("member.remove", None, ada),
    ("POST", "/v1/keys"): Change("key.make", {"user": "ada", "name": "laptop"}, new_member),
    ("POST", "/v1/keys/{key}/rotate"): Change("key.rotate", {}, key),
    ("DELETE", "/v1/keys/{key}"): Change("key.revoke", None, key),
    ("POST", "/v1/projects"): Change("project.add", {"name": "vision"}, target="vision"),
    ("PATCH", "/v1/users/{user}"): Change("user.change", {"disabled": True}, ada),
}


def test_every_changing_route_has_an_audit_test() -> None:
    changing = {route for route in RULES if route[0] != "GET"} - CHANGES_NOTHING
    assert {(method, path.partition("?")[0]) for method, path in CHANGES} == changing


@pytest.mark.parametrize("route", CHANGES, ids=" ".join)
def test_each_change_adds_one_entry_with_its_user(
    service: FakeService, client: TestClient, route: tuple[str, str]
) -> None:
    (method, path), change = route, CHANGES[route]
    client = fakes.client_of(replace(service, settings=replace(service.settings, packages=True)))
    name = change.prepare(service, client)
    before = entries(client)
    parts = iter(name.split("/"))
    path = re.sub(r"\{\w+\}", lambda _: next(parts), path)
    if isinstance(change.body, bytes):
        answer = client.request(method, path, content=change.body, headers=ZIP)
    else:
        answer = client.request(method, path, json=change.body)
    assert answer.is_success, answer.text
    target = change.target or name or answer.json()["id"]
    new = entries(client)[: -len(before) or None]
    assert [(entry["action"], entry["target"], entry["user"]) for entry in new] == [
        (change.action, target, "operator")
    ]
    assert new[0]["request"] == answer.headers["X-Request-Id"]
    assert new[0]["before"] is not None or new[0]["after"] is not None
    assert new[0]["before"] != new[0]["after"]
    for secret in ("T0/secret", "whsec_", fakes.KEY):
        assert secret not in str(new)
    if isinstance(shown := answer.json() if answer.content else {}, dict) and shown.get("secret"):
        assert shown["secret"] not in str(new)


def test_entry_shows_only_changed_fields_before_and_after(client: TestClient) -> None:
    name = fakes.submit(client, tags={"team": "a"})
    client.patch(f"/v1/jobs/{name}", json={"tags": {"team": "b"}, "priority": 3})
    entry = entries(client, target=name)[0]
    assert (entry["before"], entry["after"]) == (
        {"tags": {"team": "a"}, "priority": 0},
        {"tags": {"team": "b"}, "priority": 3},
    )


def test_entry_names_the_api_key_and_the_callers_request_id(service: FakeService, client: TestClient) -> None:
    member(client)
    made = client.post("/v1/keys", json={"user": "ada", "name": "laptop"}).json()
    hers = fakes.client_of(service, with_key=False)
    headers = {"Authorization": f"Bearer {made['secret']}", "X-Request-Id": "ci-run.42"}
    answer = hers.post("/v1/jobs", json=fakes.body(), headers=headers)
    assert answer.headers["X-Request-Id"] == "ci-run.42"
    newest = entries(client)[0]
    assert (newest["user"], newest["key"], newest["request"]) == ("ada", made["id"], "ci-run.42")
    assert made["secret"] not in str(entries(client))


@pytest.mark.parametrize("given", ["a b", "x" * 65, "ü", "a\tb", ""])
def test_request_id_unsafe_for_a_log_is_replaced(client: TestClient, given: str) -> None:
    answer = client.get("/v1/jobs", headers={"X-Request-Id": given.encode()})
    assert len(answer.headers["X-Request-Id"]) == 16


def test_refused_and_ineffective_requests_add_no_entry(service: FakeService, client: TestClient) -> None:
    name = paused(service, client)
    put(client, "/v1/members/ada", {"role": "viewer"})
    before = entries(client)
    check_problem(client.post("/v1/jobs", json=fakes.body(budget={})), 422)
    check_problem(client.post("/v1/jobs/job_none/cancel"), 404)
    assert client.post(f"/v1/jobs/{name}/pause").status_code == 202
    assert client.patch(f"/v1/jobs/{name}", json={"priority": 0}).status_code == 200
    put(client, "/v1/members/ada", {"role": "viewer"})
    assert entries(client) == before


def test_idempotent_repeat_of_a_submission_adds_one_entry(client: TestClient) -> None:
    for _ in range(2):
        client.post("/v1/jobs", json=fakes.body(), headers={"Idempotency-Key": "once"})
    assert [entry["action"] for entry in entries(client)] == ["job.submit"]


def test_project_sees_only_its_own_entries(client: TestClient) -> None:
    client.post("/v1/projects", json={"name": "vision"})
    put(client, "/v1/quota", {"concurrent_jobs": 1})
    there = {"Tuner-Project": "vision"}
    client.put("/v1/quota", json={"concurrent_jobs": 7}, headers=there)
    (entry,) = client.get(AUDIT, headers=there).json()["items"]
    assert entry["after"]["concurrent_jobs"] == 7
    assert [audit_entry["action"] for audit_entry in entries(client)] == ["quota.put", "project.add"]


def test_entries_are_paged_and_filtered(service: FakeService, client: TestClient) -> None:
    for number in range(5):
        put(client, f"/v1/members/user{number}", {"role": "viewer"})
        service.now.pass_s(3600)
    whole, seen, cursor = entries(client), [], None
    while True:
        page = client.get(AUDIT, params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == whole
    assert len(whole) == 5
    assert [entry["target"] for entry in entries(client, target="user3")] == ["user3"]
    assert entries(client, action="job.submit") == entries(client, user="ada") == []
    assert entries(client, since=whole[1]["at"]) == whole[:2]
    assert entries(client, until=whole[1]["at"]) == whole[2:]
    check_problem(client.get(AUDIT, params={"since": "yesterday"}), 422)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET action = 'nothing'",
        "DELETE FROM audit_log",
        "INSERT OR REPLACE INTO audit_log SELECT * FROM audit_log",
    ],
)
def test_database_refuses_to_change_audit_entries(
    service: FakeService, client: TestClient, statement: str
) -> None:
    fakes.submit(client)
    with pytest.raises(DBAPIError, match="append-only"), service.database.engine.begin() as db:
        db.exec_driver_sql(statement)
    assert len(entries(client)) == 1
