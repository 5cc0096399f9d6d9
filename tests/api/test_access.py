"""Access over REST: who has it, until when, and the errors for everyone else."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.accessing import People
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tuner.api.app import create_app
from tuner.api.auth import AccessChecks, Callers, while_allowed
from tuner.domain.access import read_key
from tuner.service import access, metrics_snapshot, reconciler
from tuner.service.mirroring import StoredRecord
from tuner.settings import Settings
from tuner.store import deliveries
from tuner.store.deliveries import Delivery

DAY_S = 86_400
AWAY = 503  # status of a dashboard request that is authorised, because Ray is not running
service, client = fakes.fixtures("function")


@pytest.fixture
def people(service: FakeService) -> People:
    return People(service)


def refused(client: TestClient, status: int = 401) -> str:
    answer = client.get("/v1/whoami")
    check_problem(answer, status)
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
    return str(answer.json()["detail"])


def test_whoami_with_the_service_key_shows_the_operator(people: People) -> None:
    identity = people.operator.get("/v1/whoami").json()
    assert identity == {
        "user": "operator",
        "project": "default",
        "role": "operator",
        "key": None,
        "key_expires_at": None,
    }
    assert people.project("vision").get("/v1/whoami").json()["project"] == "vision"


def test_head_answers_like_get_without_a_body(people: People, client: TestClient) -> None:
    paths = ("/healthz", "/openapi.json", "/v1/whoami", "/v1/jobs?limit=0", "/v1/jobs/none")
    for path in (*paths, f"/v1/jobs/{fakes.submit(client)}"):
        get, head = (people.operator.request(method, path) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (get.status_code, b""), path
        del get.headers["x-request-id"], head.headers["x-request-id"]
        assert head.headers == get.headers, path
    assert people.operator.head("/metrics").status_code == 200


def test_access_rules_of_get_hold_for_head(people: People, client: TestClient) -> None:
    stranger, viewer = people.with_key(None), people.member("vic", "viewer")
    job = fakes.submit(client)
    for path in ("/v1/whoami", f"/v1/jobs/{job}", f"/v1/jobs/{job}/events"):
        answer = stranger.head(path)
        assert (answer.status_code, answer.headers["www-authenticate"], answer.content) == (
            401,
            "Bearer",
            b"",
        )
    assert viewer.head("/v1/jobs").status_code == 200
    assert viewer.head("/v1/users").status_code == 403
    refused = people.operator.head(f"/v1/jobs/{job}/pause")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")


def test_key_is_shown_once_and_stored_as_hash(people: People) -> None:
    made = people.key("ada", "viewer")
    key = read_key(made["secret"])
    assert key is not None
    assert key.id == made["id"]
    listed = people.operator.get("/v1/keys")
    assert made["secret"] not in listed.text
    assert listed.json()["items"][0]["secret"] is None
    assert (
        people.operator.post("/v1/keys", json={"user": "ada", "name": "x"}).headers["cache-control"]
        == "no-store"
    )
    stored = b"".join(file.read_bytes() for file in people.service.settings.home.glob("tuner.db*"))
    assert made["secret"].encode() not in stored
    assert made["secret"][13:56].encode() not in stored
    assert key.sha256.encode() in stored


def test_whoami_shows_user_project_role_and_key(people: People) -> None:
    made = people.key("ada", "submitter", "vision")
    identity = people.with_key(made["secret"]).get("/v1/whoami").json()
    assert identity["user"] == "ada"
    assert (identity["project"], identity["role"], identity["key"]) == ("vision", "submitter", made["id"])
    assert identity["key_expires_at"] == made["expires_at"]


def test_role_change_takes_effect_at_the_next_request(people: People) -> None:
    viewer = people.member("ada", "viewer")
    answer = viewer.post("/v1/jobs", json=fakes.body())
    check_problem(answer, 403)
    assert "needs the role submitter" in answer.json()["detail"]
    assert "PUT /v1/members/ada" in answer.json()["detail"]
    people.operator.put("/v1/members/ada", json={"role": "submitter"})
    assert viewer.post("/v1/jobs", json=fakes.body()).status_code == 201
    people.operator.put("/v1/members/ada", json={"role": "viewer"})
    check_problem(viewer.post("/v1/jobs", json=fakes.body()), 403)


def test_removed_member_loses_access_and_an_old_key_stays_revoked(people: People) -> None:
    viewer = people.member("ada", "viewer")
    assert people.operator.delete("/v1/members/ada").status_code == 204
    assert "revoked" in refused(viewer)
    people.operator.put("/v1/members/ada", json={"role": "viewer"})
    assert "revoked" in refused(viewer)
    check_problem(people.operator.delete("/v1/members/eve"), 404)


def test_only_the_operator_sees_that_a_member_is_disabled(people: People) -> None:
    people.member("eve", "viewer", "vision")
    assert people.operator.patch("/v1/users/eve", json={"disabled": True}).status_code == 200
    admin = people.member("ada", "admin")
    shown = [admin.put("/v1/members/eve", json={"role": "viewer"}).json()]
    shown += [member for member in admin.get("/v1/members").json()["items"] if member["user"] == "eve"]
    assert [member["disabled"] for member in shown] == [None, None]
    listed = people.operator.get("/v1/members").json()["items"]
    assert [member["disabled"] for member in listed if member["user"] == "eve"] == [True]


def test_disabled_user_has_no_access_to_any_project_until_enabled(people: People) -> None:
    here, there = people.member("ada", "viewer"), people.member("ada", "admin", "vision")
    answer = people.operator.patch("/v1/users/ada", json={"disabled": True}).json()
    assert answer["disabled"]
    assert "disabled" in refused(here)
    assert "disabled" in refused(there)
    check_problem(people.operator.post("/v1/keys", json={"user": "ada", "name": "x"}), 409)
    people.operator.patch("/v1/users/ada", json={"disabled": False})
    assert here.get("/v1/whoami").status_code == 200
    check_problem(people.operator.patch("/v1/users/eve", json={"disabled": True}), 404)


@pytest.mark.parametrize(("life", "days"), [({"expires_in": "2d"}, 2), ({}, 90)])
def test_expired_key_is_refused_with_its_expiry_time(people: People, life: dict[str, str], days: int) -> None:
    made = people.key("ada", "viewer", **life)
    client = people.with_key(made["secret"])
    people.service.now.pass_s(days * DAY_S - 1)
    assert client.get("/v1/whoami").status_code == 200
    people.service.now.pass_s(1)
    assert f"expired at {made['expires_at']}" in refused(client)
    assert people.operator.get("/v1/keys").json()["items"][0]["state"] == "expired"


@pytest.mark.parametrize("life", ["367d", "30s", "never", ""])
def test_invalid_or_missing_key_lifetime_is_refused(people: People, life: str) -> None:
    people.key("ada", "viewer")
    answer = people.operator.post("/v1/keys", json={"user": "ada", "name": "x", "expires_in": life})
    check_problem(answer, 422)
    assert answer.json()["errors"][0]["pointer"] == "/expires_in"
    check_problem(
        people.operator.post("/v1/keys", json={"user": "ada", "name": "x", "expires_in": None}), 422
    )


def test_rotated_key_works_until_the_end_of_the_overlap(people: People) -> None:
    made = people.key("ada", "viewer")
    old = people.with_key(made["secret"])
    answer = old.post(f"/v1/keys/{made['id']}/rotate", json={"overlap": "10m"})
    assert answer.status_code == 201
    new = people.with_key(answer.json()["secret"])
    assert new.get("/v1/whoami").json()["role"] == "viewer"
    people.service.now.pass_s(599)
    assert old.get("/v1/whoami").status_code == 200
    check_problem(old.post(f"/v1/keys/{made['id']}/rotate", json={}), 409)
    people.service.now.pass_s(1)
    assert f"replaced by {answer.json()['id']}" in refused(old)
    assert new.get("/v1/whoami").status_code == 200
    before = people.service.now.at
    people.service.now.pass_s(90 * DAY_S - 601)
    assert new.get("/v1/whoami").status_code == 200, before
    people.service.now.pass_s(2)
    refused(new)


def test_rotated_key_without_overlap_expires_at_once(people: People) -> None:
    made = people.key("ada", "admin")
    old = people.with_key(made["secret"])
    assert old.post(f"/v1/keys/{made['id']}/rotate", json={"overlap": "0s"}).status_code == 201
    refused(old)
    check_problem(people.operator.post(f"/v1/keys/{made['id']}/rotate", json={"overlap": "25h"}), 422)


def test_revoked_key_is_refused_at_the_next_request(people: People) -> None:
    made = people.key("ada", "viewer")
    client = people.with_key(made["secret"])
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204
    assert "was revoked at" in refused(client)
    assert people.operator.delete(f"/v1/keys/{made['id']}").status_code == 204
    check_problem(people.operator.post(f"/v1/keys/{made['id']}/rotate", json={}), 409)


def test_only_admins_see_the_keys_of_other_users(people: People) -> None:
    adas, eves = people.key("ada", "submitter"), people.key("eve", "viewer")
    eve = people.with_key(eves["secret"])
    assert [key["id"] for key in eve.get("/v1/keys").json()["items"]] == [eves["id"]]
    for method, path in (("POST", f"/v1/keys/{adas['id']}/rotate"), ("DELETE", f"/v1/keys/{adas['id']}")):
        theirs, nobodys = (
            eve.request(method, path),
            eve.request(method, path.replace(adas["id"], "tnr_00000000")),
        )
        check_problem(theirs, 404)
        assert theirs.text.replace(adas["id"], "") == nobodys.text.replace("tnr_00000000", "")
    admin = people.member("root", "admin")
    assert len(admin.get("/v1/keys").json()["items"]) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tnr_abcdefgh_" + "A" * 43 + "00000000", "mistyped"),
        ("tnr_", "mistyped"),
        ("anything", "the key is unknown"),
        ("é", "the key is unknown"),
    ],
)
def test_malformed_or_unknown_key_is_refused_with_the_reason(
    people: People, given: str, message: str
) -> None:
    answer = people.with_key(None).get(
        "/v1/whoami", headers={b"Authorization": f"Bearer {given}".encode("latin-1")}
    )
    check_problem(answer, 401)
    assert message in answer.json()["detail"]


def test_only_admins_see_the_whole_urls_of_webhooks(people: People, service: FakeService) -> None:
    """Everybody who has the URL of a chat's webhook can post there."""
    url, now = "https://example.com/services/T000/SECRET", service.now()
    budget = {"usd": 1, "alerts": [{"at": 0.5, "url": url}]}
    people.operator.put("/v1/budgets/lab", json=budget).raise_for_status()
    with service.database.write() as db:
        deliveries.add(db, Delivery("dlv_1", "default", "lab", url, "{}", "pending", now, now))
    for role, seen in (("viewer", "example.com"), ("submitter", "example.com"), ("admin", url)):
        member = people.member(f"a-{role}", role)
        for shown in (
            member.get("/v1/budgets/lab").json(),
            member.get("/v1/budgets").json()["items"][0],
        ):
            assert [item["url"] for item in (*shown["alerts"], *shown["deliveries"])] == [seen, seen]


def test_key_with_a_known_id_and_wrong_secret_is_refused(people: People) -> None:
    from tuner.domain.access import key_text

    made = people.key("ada", "viewer")
    assert "the key is unknown" in refused(people.with_key(key_text(made["id"], "A" * 43).text))
    assert "the key is unknown" in refused(people.with_key(key_text("tnr_00000000", "A" * 43).text))


def test_inaccessible_project_looks_like_an_unknown_project(people: People) -> None:
    people.project("speech")
    made = people.key("ada", "admin", "vision")
    there, nowhere = (people.with_key(made["secret"], project=name) for name in ("speech", "nothing"))
    theirs, none = there.get("/v1/jobs"), nowhere.get("/v1/jobs")
    check_problem(theirs, 404)
    assert theirs.text.replace("speech", "nothing") == none.text
    assert people.with_key(made["secret"], project="vision").get("/v1/jobs").status_code == 200
    ada = people.with_key(made["secret"])
    assert ada.get("/v1/projects/speech").text.replace("speech", "x") == ada.get("/v1/projects/x").text
    assert [project["name"] for project in ada.get("/v1/projects").json()["items"]] == ["vision"]
    assert ada.get("/v1/projects/vision").status_code == 200
    check_problem(people.with_key(fakes.KEY, project="nothing").get("/v1/jobs"), 404)


def test_projects_users_and_keys_are_listed_in_pages(people: People) -> None:
    check_problem(people.operator.post("/v1/projects", json={"name": "default"}), 409)
    made = people.operator.post("/v1/projects", json={"name": "p-a"})
    assert made.headers["location"] == "/v1/projects/p-a"
    for name in ("b", "a", "c"):
        people.key(name, "viewer", f"p-{name}")
    for path, field in (("projects", "name"), ("users", "name")):
        names, cursor = [], None
        while True:
            page = people.operator.get(
                f"/v1/{path}", params={"limit": 1, "cursor": cursor} if cursor else {"limit": 1}
            )
            names += [item[field] for item in page.json()["items"]]
            if (cursor := page.json()["next_cursor"]) is None:
                break
        assert names == (["default", "p-a", "p-b", "p-c"] if path == "projects" else ["a", "b", "c"])
    people.key("z", "viewer", "p-a")
    there = people.project("p-a")
    first = there.get("/v1/keys", params={"limit": 1}).json()
    second = there.get("/v1/keys", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert {key_page["items"][0]["user"] for key_page in (first, second)} == {"a", "z"}
    assert second["next_cursor"] is None
    assert [member["user"] for member in there.get("/v1/members").json()["items"]] == ["a", "z"]


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "/v1/projects", {"name": "../etc"}, "/name"),
        ("PUT", "/v1/members/operator", {"role": "admin"}, "user"),
        ("PUT", "/v1/members/Ada", {"role": "admin"}, "user"),
        ("PUT", "/v1/members/ada", {"role": "operator"}, "/role"),
        ("PUT", "/v1/members/ada", {"role": "admin", "project": "vision"}, "/project"),
        ("POST", "/v1/keys", {"user": "ad", "name": "x"}, "/user"),
        ("POST", "/v1/keys", {"user": "ada", "name": ""}, "/name"),
        ("POST", "/v1/keys", {"user": "ada", "name": "x", "role": "admin"}, "/role"),
    ],
)
def test_invalid_request_is_refused_with_a_pointer(
    people: People, method: str, path: str, body: dict[str, Any], pointer: str
) -> None:
    people.key("ada", "viewer")
    answer = people.operator.request(method, path, json=body)
    check_problem(answer, 422)
    assert answer.json()["errors"][0]["pointer"] == pointer
    if body.get("user") == "ad":
        assert "ada" in answer.json()["errors"][0]["detail"]


def test_session_ends_when_its_key_is_revoked(people: People) -> None:
    made = people.key("ada", "viewer")
    browser = people.with_key(None)
    begun = people.with_key(made["secret"]).post("/v1/session")
    cookies = {"Cookie": f"tuner_session={begun.cookies.get('tuner_session', path='/ray')}"}
    assert browser.get("/ray/", headers=cookies).status_code == AWAY
    people.operator.delete(f"/v1/keys/{made['id']}")
    assert browser.get("/ray/", headers=cookies).status_code == 401
    forged = {"Cookie": cookies["Cookie"].replace(made["id"], "")}
    assert browser.get("/ray/", headers=forged).status_code == 401


def test_dashboard_and_metrics_of_several_projects_are_for_the_operator_only(people: People) -> None:
    ada, nobody = people.member("ada", "admin"), people.with_key(None)
    job = fakes.submit(ada)
    assert ada.get(f"/v1/jobs/{job}").json()["links"]["ray_dashboard"]
    assert ada.get("/ray/").status_code == AWAY
    assert nobody.get("/metrics").status_code == 200
    people.project("vision")
    check_problem(ada.get("/ray/"), 403)
    assert people.operator.get("/ray/").status_code == AWAY
    assert ada.get(f"/v1/jobs/{job}").json()["links"]["ray_dashboard"] is None
    assert people.operator.get(f"/v1/jobs/{job}").json()["links"]["ray_dashboard"]
    check_problem(nobody.get("/metrics"), 401)
    check_problem(ada.get("/metrics"), 403)
    assert people.operator.get("/metrics").status_code == 200


def test_background_loops_handle_every_project(people: People, service: FakeService) -> None:
    """The background loops handle every project: alerts are sent, waiting jobs resume, mirrors and metrics cover all."""
    alerts = [{"at": 0.5, "url": "https://example.com/hook"}]
    jobs = {}
    for name in ("default", "vision", "speech"):
        there = people.project(name)
        jobs[name] = fakes.submit(there, budget={"usd": 0.0001})
        fakes.simulate(service.of(name), jobs[name])
        assert there.put("/v1/budgets/all", json={"usd": 0.0001, "alerts": alerts}).status_code == 201
    service.now.pass_s(10)
    keeping = reconciler.Reconciler(service)
    keeping.one_pass()
    assert keeping.webhooks.settle(240)
    for name in jobs:
        budget = people.project(name).get("/v1/budgets/all").json()
        assert [delivery["tries"] for delivery in budget["deliveries"]] == [1], name
    assert set(StoredRecord(service).heads(None)) == set(jobs.values())
    snapshot = metrics_snapshot.MetricsReader(service).read()
    assert {budget_metrics.name for budget_metrics in snapshot.budgets} == {"all", "vision/all", "speech/all"}


def test_number_of_metric_series_is_bounded_with_many_projects(people: People, service: FakeService) -> None:
    from tuner.domain.money import Money
    from tuner.domain.shared_budget import SharedBudget
    from tuner.ledger import shared_budget_changes
    from tuner.store import access as rows

    with service.database.write("project.add") as db:
        for number in range(510):
            rows.add_project(db, f"p{number}", service.now())
            if number < 25:
                budget = SharedBudget("all", usd=Money(1_000_000))
                shared_budget_changes.put(db, f"p{number}", budget, secret="", at=service.now())
    own = fakes.client_of(service, own=True)
    lines = [line for line in own.get("/metrics").text.splitlines() if not line.startswith("#")]
    assert len(lines) < 500
    assert sum("tuner_budget_limit_usd" in line for line in lines) == 20


def test_remembered_callers_are_bounded_and_can_be_removed() -> None:
    callers = Callers()
    for number in range(10_001):
        callers.note(str(number), counts=True)
    assert "0" not in callers
    assert "10000" in callers
    callers.note("10000", counts=False)
    assert "10000" not in callers


def test_stream_ends_when_its_key_is_revoked(people: People, service: FakeService) -> None:
    made = people.key("ada", "viewer")
    actor = access.user_of(service, made["secret"])
    closed = []

    async def stream() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.sleep(3600)
            yield b"never"
        finally:
            closed.append(True)

    async def may() -> bool:
        return access.still(service, actor)

    async def follow() -> list[bytes]:
        events = []
        async for data in while_allowed(stream(), may, every_s=0.01):
            events.append(data)
            people.operator.delete(f"/v1/keys/{made['id']}")
        return events

    assert asyncio.run(asyncio.wait_for(follow(), 30)) == [b"first"]
    assert closed == [True]


def test_stream_with_lasting_access_is_forwarded_completely() -> None:
    async def stream() -> AsyncIterator[bytes]:
        for number in range(3):
            await asyncio.sleep(0.005)
            yield str(number).encode()

    async def may() -> bool:
        return True

    async def follow() -> list[bytes]:
        return [data async for data in while_allowed(stream(), may, every_s=0.001)]

    assert asyncio.run(follow()) == [b"0", b"1", b"2"]


def test_streams_of_a_key_share_one_check() -> None:
    calls = list[str]()

    def check(key: str) -> bool:
        calls.append(key)
        return key != "revoked"

    async def tried(every_s: float) -> list[bool]:
        checks = AccessChecks(every_s)
        keys = ["a", "b", "a", "revoked", "a"]
        asked = [checks.may(key, partial(check, key)) for key in keys]
        return [
            *await asyncio.gather(*asked),
            *[await checks.may("a", partial(check, "a")) for _ in range(3)],
        ]

    assert asyncio.run(tried(3600.0)) == [True, True, True, False, True, True, True, True]
    assert sorted(calls) == ["a", "b", "revoked"]
    calls.clear()
    asyncio.run(tried(0.0))
    assert calls.count("a") == 6, "an outdated result is not used"


@pytest.fixture
def stranger(service: FakeService) -> TestClient:
    return fakes.client_of(service, with_key=False)


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", f"Basic {fakes.KEY}", fakes.KEY, "Bearer", f"Bearer {fakes.KEY}x", "Bearer é"],
)
def test_wrong_key_is_refused(stranger: TestClient, header: str) -> None:
    answer = stranger.get("/v1/jobs", headers={b"Authorization": header.encode("latin-1")})
    check_problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_submission_without_key_is_refused_and_creates_no_job(
    stranger: TestClient, service: FakeService
) -> None:
    check_problem(stranger.post("/v1/jobs", json=fakes.body()), 401)
    assert fakes.client_of(service).get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/openapi.json", "/metrics"])
def test_health_metrics_and_docs_need_no_key(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 200


def test_service_key_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    settings = Settings.from_env({"TUNER_HOME": str(tmp_path / "home")})
    key = settings.api_key()
    assert settings.api_key() == key
    assert settings.api_key_path.read_text().strip() == key
    assert settings.api_key_path.stat().st_mode & 0o777 == 0o600
    assert len(key) > 30


def test_service_with_unreachable_cluster_is_alive_but_not_ready(service: FakeService) -> None:
    client = TestClient(create_app(service, is_ready=lambda: False))
    assert client.get("/healthz").status_code == 200
    answer = client.get("/readyz")
    check_problem(answer, 503)
    assert answer.headers["retry-after"]
