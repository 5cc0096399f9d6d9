"""Every route of the OpenAPI document with every caller, with ids of their own project, of another project, and unknown ids."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import fakes
from tests.api.two_projects import IN, OUT, UNLIKE, A, World, alike
from tests.fakes import FakeService, shared_app
from tuner.api.access import OPEN, RULES
from tuner.domain.access import ROLES

DASHBOARDS = ("/ray/", "/ray/api/jobs/", "/ray/nodes")
AWAY = 503  # authorised, but Ray's dashboard is not running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    service = _with_packages(tmp_path_factory.mktemp("two"))
    yield World(service)
    service.database.dispose()


def _with_packages(home: Path) -> FakeService:
    service = fakes.service_in(home)
    return replace(service, settings=replace(service.settings, packages=True))


def routes() -> list[tuple[str, str]]:
    """Return all routes. Reads come first, because a write may change what is read."""
    paths = shared_app().openapi()["paths"]
    listed_routes = [(verb.upper(), path) for path, verbs in paths.items() for verb in verbs]
    return sorted(listed_routes, key=lambda route: (route[0] != "GET", route[0] == "DELETE", route))


def test_access_rules_cover_exactly_the_protected_routes() -> None:
    assert {route for route in routes() if route[1] not in OPEN} == RULES.keys()


def test_openapi_document_states_the_role_of_each_route() -> None:
    for path, verbs in shared_app().openapi()["paths"].items():
        for verb, operation in verbs.items():
            role = RULES.get((verb.upper(), path))
            assert operation.get("x-tuner-role") == role
            if role is not None:
                assert "For: " in operation["description"]
                assert {"401", "403"} <= operation["responses"].keys()


def test_docs_list_all_access_rules() -> None:
    text = (Path(__file__).parents[2] / "docs/access.md").read_text()
    rows = re.findall(r"^\| `([A-Z]+) (/v1\S*)` \| (\w+) \|$", text, re.MULTILINE)
    assert {(method, path): role for method, path, role in rows} == dict(RULES)


def test_route_without_access_rule_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner.api import access

    monkeypatch.setattr(access, "RULES", {k: v for k, v in RULES.items() if k != ("GET", "/v1/jobs")})
    assert world.people.operator.get("/v1/jobs").status_code == 403
    assert world.people.operator.get("/v1/budgets").status_code == 200


def test_idempotency_keys_are_separate_for_each_project(world: World) -> None:
    once, body = {"Idempotency-Key": "of-several-projects"}, fakes.body(name="another")
    people = (world.people.project(A), world.callers["submitter"], world.callers["submitter"])
    others, mine, again = (caller.post("/v1/jobs", json=body, headers=once) for caller in people)
    assert (others.status_code, mine.status_code, again.status_code) == (201, 201, 201)
    assert mine.json()["id"] == again.json()["id"] != others.json()["id"]


def test_no_caller_gets_data_or_access_beyond_its_role_and_project(world: World) -> None:
    _warm(world)
    asked = Counter[str]()
    leaks = list(_elsewhere(world, asked))  # first, because the stream of an ended job closes
    for method, path in routes():
        if path in OPEN:
            continue
        for who in (*OUT, *IN):
            answers = _asked(world, who, method, path)
            asked[who] += len(answers)
            leaks += [f"{who}: {method} {path}: {leak}" for leak in _leaks(world, who, method, path, answers)]
    print(
        f"{len(routes())} routes, {len(OUT) + len(IN)} callers, {sum(asked.values())} requests, {len(leaks)} leaks"
    )
    assert leaks == []
    assert sum(asked.values()) > 1000


def _warm(world: World) -> None:
    """Fill every cache with responses for project A."""
    readers = (world.people.member("in-a", "admin", A), world.people.project(A))
    for method, path in routes():
        if method == "GET" and path not in OPEN:
            for reader in readers:
                answer = world.request(reader, method, path, world.a.ids)
                assert answer.status_code in (
                    200,
                    403 if path == "/v1/users" else 200,
                    404 if path.endswith(MAY_LACK) else 200,
                )


Answers = dict[str, tuple[int, str]]


def _asked(world: World, who: str, method: str, path: str) -> Answers:
    """Return the responses to this caller, by the kind of ids in the request.

    A caller without access is refused before the ids are read. The first of them shows that with all kinds.
    """
    sets = {"own": world.b.ids, "other": world.a.ids, "never": UNLIKE}
    answers = {}
    for kind, ids in sets.items():
        if who in OUT[1:] and kind != "other":
            continue
        answer = world.request(world.callers[who], method, path, ids)
        answers[kind] = (answer.status_code, answer.text)
    return answers


def _leaks(world: World, who: str, method: str, path: str, answers: Answers) -> Iterator[str]:
    role = RULES[method, path]
    for kind, (status, text) in answers.items():
        if who in OUT and status != 401:
            yield f"{kind} ids: {status}, not 401"
        if who in IN and (status == 403) != (ROLES.index(who) < ROLES.index(role)):  # type: ignore[arg-type]
            yield f"{kind} ids: {status}, and the rule is {role}"
        if status >= 500 or (who in IN and status == 401):
            yield f"{kind} ids: {status}: {text[:200]}"
        marks = world.a.marks if kind == "other" else (*world.a.marks, *_ids_of_a(world))
        if path not in SHOWS_ALL or who != "operator":
            yield from (f"{kind} ids: says {mark}: {text[:300]}" for mark in marks if mark in text)
    if "never" in answers and (path not in SHOWS_ALL or who != "operator"):
        other, never = answers["other"], answers["never"]
        if (other[0], alike(other[1], world.a.ids)) != (never[0], alike(never[1], UNLIKE)):
            yield f"other's ids differ from unknown ids: {other[0]} {other[1][:300]} and {never[0]} {never[1][:300]}"
    if who in IN and method == "GET" and answers["own"][0] not in (200, 403) and not path.endswith(MAY_LACK):
        yield f"own ids: {answers['own'][0]}"


MAY_LACK = ("/logs", "/checkpoint", "/{variant}")  # the simulated trials have none
# Routes that show the operator all projects and users.
SHOWS_ALL = ("/v1/projects", "/v1/projects/{project}", "/v1/users", "/v1/users/{user}")


def _ids_of_a(world: World) -> Iterator[str]:
    yield from (resource_id for name, resource_id in world.a.ids.items() if name not in ("trial", "project"))


def _elsewhere(world: World, requests: Counter[str]) -> Iterator[str]:
    """Yield leaks in dashboards, metrics, the page, and listings that are filtered by A's data."""
    expected = dict.fromkeys(OUT, 401) | {"operator": AWAY}
    for who, client in world.callers.items():
        for path in DASHBOARDS:
            status = client.get(path).status_code
            if status != expected.get(who, 403):
                yield f"{who}: {path}: {status}"
        status = client.get("/metrics").status_code
        if status != {AWAY: 200}.get(expected.get(who, 403), expected.get(who, 403)):
            yield f"{who}: /metrics: {status}"
        for path in ("/", "/healthz", "/readyz", *_listings(world)):
            text = client.get(path).text
            yield from (
                f"{who}: {path} says {mark}"
                for mark in (*world.a.marks[1:], world.a.ids["key"])
                if mark in text
            )
            requests[who] += 1
        requests[who] += len(DASHBOARDS) + 1


def _listings(world: World) -> Iterator[str]:
    there = world.people.project(A)
    fakes.submit(there, tags={"owner": world.a.marks[0]})
    cursor = there.get("/v1/jobs", params={"limit": 1}).json()["next_cursor"]
    yield f"/v1/jobs?tag=owner:{world.a.marks[0]}"
    yield f"/v1/jobs?cursor={cursor}&limit=500"
    cursor = there.get("/v1/keys", params={"limit": 1}).json()["next_cursor"]
    yield f"/v1/keys?cursor={cursor}&limit=500"
    cursor = there.get(f"/v1/jobs/{world.a.ids['job']}/ledger", params={"limit": 5}).json()["next_cursor"]
    yield f"/v1/jobs/{world.b.ids['job']}/ledger?cursor={cursor}"
    yield f"/v1/jobs/{world.b.ids['job']}/events?after=3"
