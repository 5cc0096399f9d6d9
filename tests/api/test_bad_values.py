"""Each field of each call with each invalid value gets a 4xx that names the field, and writes no row."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from starlette.testclient import TestClient

from tests import fakes
from tests.api.bad import BAD, ODD
from tests.api.bad_values import CALLS, JSON, MISSING, QUERIES, TEXTS, TWICE
from tests.api.test_bad_bodies import check_problem, pointers
from tests.fakes import FakeService, body

service, client = fakes.fixtures("module")
VALUES = [
    (call, at, value)
    for call, (*_, fields) in CALLS.items()
    for at, found in fields.items()
    for value in found
]
QUERIED = [
    (path, name, value) for path, names in QUERIES.items() for name, found in names.items() for value in found
]


def shown(value: object) -> str:
    return "missing" if value is MISSING else repr(value)[:40].replace("\x00", "NUL")


def rows(service: FakeService) -> dict[str, int]:
    """Return the number of rows in every table."""
    names = inspect(service.database.engine).get_table_names()
    counts = ", ".join(f'(select count(*) from "{name}")' for name in names)
    with service.database.read() as db:
        return dict(zip(names, db.execute(text(f"select {counts}")).one(), strict=True))


@pytest.fixture(scope="module")
def run(service: FakeService, client: TestClient) -> str:
    """Return a job that has run."""
    job = fakes.submit(client)
    fakes.simulate(service, job)
    return job


@pytest.fixture
def untouched(service: FakeService) -> Any:
    before = rows(service)
    assert len(before) > 10
    yield
    assert rows(service) == before


def with_value(right: dict[str, Any], at: str, value: Any) -> Any:
    if at == "":
        return value
    changed = deepcopy(right)
    *way, last = at.rstrip("#").removeprefix("/").split("/")
    inner: Any = changed
    for word in way:
        inner = inner[int(word)] if isinstance(inner, list) else inner.setdefault(word, {})
    if value is MISSING:
        del inner[last]
    else:
        inner[int(last) if isinstance(inner, list) else last] = value
    return changed


@pytest.mark.parametrize(
    ("call", "at", "value"), VALUES, ids=[f"{call}{at} {shown(value)}" for call, at, value in VALUES]
)
def test_invalid_field_value_is_refused_with_a_pointer(
    client: TestClient, untouched: None, call: str, at: str, value: Any
) -> None:
    method, path, right, _ = CALLS[call]
    sent = json.dumps(with_value(right, at, value))
    answer = client.request(method, path, content=sent, headers={"Content-Type": JSON})
    found, field = pointers(answer), at.rstrip("#")
    assert any(one == field or one.startswith(f"{field}/") for one in found), found


@pytest.mark.parametrize("call", CALLS)
def test_bodies_for_the_invalid_values_are_valid(tmp_path: Path, call: str) -> None:
    """The other tests put invalid values into these bodies. If a body were invalid, any value in it would be refused."""
    own = fakes.service_in(tmp_path)
    method, path, right, _ = CALLS[call]
    answer = fakes.client_of(own).request(method, path, json=right)
    assert answer.is_success, answer.text
    own.database.dispose()


@pytest.mark.parametrize(
    ("path", "name", "value"), QUERIED, ids=[f"{path} {name} {shown(value)}" for path, name, value in QUERIED]
)
def test_invalid_query_value_is_refused_with_a_pointer(
    client: TestClient, run: str, untouched: None, path: str, name: str, value: str
) -> None:
    answer = client.get(path.replace("JOB", run), params={name: value})
    assert pointers(answer) == [name]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("call", ["jobs", "budgets"])
def test_body_that_is_not_json_is_refused(client: TestClient, untouched: None, call: str, name: str) -> None:
    method, path, *_ = CALLS[call]
    content, kind = TEXTS[name]
    answer = client.request(method, path, content=content, headers={"Content-Type": kind} if kind else {})
    assert answer.status_code in (400, 422)
    assert check_problem(answer, answer.status_code)


@pytest.mark.parametrize("name", TWICE)
def test_duplicate_name_is_refused_with_a_pointer(client: TestClient, untouched: None, name: str) -> None:
    key, given, pointer = TWICE[name]
    sent = json.dumps(body(**{key: "@"})).replace('"@"', given)
    answer = client.post("/v1/jobs", content=sent, headers={"Content-Type": JSON})
    assert pointers(answer) == [pointer]


def test_at_least_300_invalid_inputs_are_tested() -> None:
    values = len({(call, at, repr(value)) for call, at, value in VALUES})
    tried = len(BAD) + len(ODD) + values + len(QUERIED) + 2 * len(TEXTS) + len(TWICE)
    print(f"\nfigures: {tried} bad inputs by hand, 0 taken, 0 rows written")
    assert tried >= 300


def test_unknown_query_parameter_is_refused_with_a_suggestion(client: TestClient) -> None:
    job = fakes.submit(client)
    answer = client.get(f"/v1/jobs/{job}/best?max_cost=5&zzz=1")
    assert answer.status_code == 422
    said = {one["pointer"]: one["detail"] for one in answer.json()["errors"]}
    assert said["max_cost"] == "is not a parameter of this path; did you mean max_cost_usd?"
    assert said["zzz"].startswith("is not a parameter of this path; known are ")
    assert client.post(f"/v1/jobs/{job}/pause?force=1").status_code == 422
    assert client.get("/v1/whoami?x=1").json()["errors"][0]["detail"].endswith("known are none")
