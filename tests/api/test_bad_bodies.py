"""Invalid requests: each gets an error with a pointer to the fault, and writes no row."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from starlette.testclient import TestClient

from tests import fakes
from tests.api.bad_values import CALLS, FLOAT, JSON, MISSING, QUERIES, SPACES, TEXTS, TWICE
from tests.fakes import FakeService, body
from tuner.api import strict_json
from tuner.cluster.nodes import Node

PROBLEM = {"type", "code", "title", "status", "detail", "errors"}
HEADERS = {"Content-Type": JSON}
ERRORS = {
    "trainables.nowhere:train": "ModuleNotFoundError: no module",
    "trainables.digits_mlp:fit": "AttributeError: no attribute",
    "trainables.digits_mlp:SEARCH_SPACE": "TypeError: not callable",
}
# Call, field, values, and the pointer of the error. The error of a value is at its field or in it.
VALUES = [
    (call, at, values, at.rstrip("#"))
    for call, (*_, fields) in CALLS.items()
    for at, values in fields.items()
]
VALUES += [("jobs", "/search_space", spaces, at) for at, spaces in SPACES.items()]
VALUES += [("jobs", "/trainable", [*ERRORS], "/trainable")]
QUERIED = [(path, name, values) for path, names in QUERIES.items() for name, values in names.items()]

service, client = fakes.fixtures("module")


def check_problem(answer: Any, status: int = 422, sent: str = "") -> dict[str, Any]:
    assert answer.status_code == status, (sent, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem.keys() >= PROBLEM
    assert problem["status"] == status
    assert problem["type"] == f"urn:tuner:problem:{problem['code']}"
    assert problem["title"]
    assert problem["detail"]
    return problem


def pointers(answer: Any, sent: str = "") -> list[str]:
    errors = check_problem(answer, sent=sent)["errors"]
    assert all(error["detail"] for error in errors)
    return [error["pointer"] for error in errors]


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
def untouched(service: FakeService) -> Iterator[None]:
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
    ("call", "at", "values", "pointer"),
    VALUES,
    ids=[f"{call}{at} {pointer}" for call, at, _, pointer in VALUES],
)
def test_invalid_field_value_is_refused_with_a_pointer(
    service: FakeService,
    client: TestClient,
    untouched: None,
    call: str,
    at: str,
    values: list[Any],
    pointer: str,
) -> None:
    service.prober.errors.update(ERRORS)
    method, path, right, _ = CALLS[call]
    for value in values:
        content = json.dumps(with_value(right, at, value))
        given = pointers(client.request(method, path, content=content, headers=HEADERS), shown(value))
        assert any(pointed == pointer or pointed.startswith(f"{pointer}/") for pointed in given), (
            shown(value),
            given,
        )


@pytest.mark.parametrize("call", CALLS)
def test_bodies_for_the_invalid_values_are_valid(tmp_path: Path, call: str) -> None:
    """The other tests put invalid values into these bodies. If a body were invalid, any value in it would be refused."""
    own = fakes.service_in(tmp_path)
    method, path, right, _ = CALLS[call]
    answer = fakes.client_of(own).request(method, path, json=right)
    assert answer.is_success, answer.text
    own.database.dispose()


@pytest.mark.parametrize(
    ("path", "name", "values"), QUERIED, ids=[f"{path} {name}" for path, name, _ in QUERIED]
)
def test_invalid_query_value_is_refused_with_a_pointer(
    client: TestClient, run: str, untouched: None, path: str, name: str, values: list[str]
) -> None:
    for value in values:
        answer = client.get(path.replace("JOB", run), params={name: value})
        assert pointers(answer, shown(value)) == [name], shown(value)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("call", ["jobs", "budgets"])
def test_body_that_is_not_json_is_refused(client: TestClient, untouched: None, call: str, name: str) -> None:
    method, path, *_ = CALLS[call]
    content, kind = TEXTS[name]
    answer = client.request(method, path, content=content, headers={"Content-Type": kind} if kind else {})
    assert answer.status_code in (400, 422)
    assert check_problem(answer, answer.status_code)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_json_without_its_content_type_is_refused_with_the_missing_header(
    client: TestClient, untouched: None, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post("/v1/jobs", content=json.dumps(body()), headers=headers)
    (error,) = check_problem(answer)["errors"]
    assert error == {
        "pointer": "",
        "detail": "is not read as JSON: send the header Content-Type: application/json",
    }


@pytest.mark.parametrize("name", TWICE)
def test_duplicate_name_is_refused_with_a_pointer(client: TestClient, untouched: None, name: str) -> None:
    key, given, pointer = TWICE[name]
    sent = json.dumps(body(**{key: "@"})).replace('"@"', given)
    assert pointers(client.post("/v1/jobs", content=sent, headers=HEADERS)) == [pointer]


def test_duplicate_among_many_names_is_refused(client: TestClient, untouched: None) -> None:
    names = ", ".join(f'"name_{n % 9999}": 1' for n in range(10_000))
    assert pointers(client.post("/v1/jobs", content=f"{{{names}}}", headers=HEADERS))[0] == "/name_0"


def test_unknown_query_parameter_is_refused_with_a_suggestion(client: TestClient, run: str) -> None:
    answer = client.get(f"/v1/jobs/{run}/best?max_cost=5&zzz=1")
    assert answer.status_code == 422
    details = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
    assert details["max_cost"] == "is not a parameter of this path; did you mean max_cost_usd?"
    assert details["zzz"].startswith("is not a parameter of this path; the parameters are ")
    detail = client.get("/v1/jobs?after=zzz").json()["errors"][0]["detail"]
    assert detail.startswith("is not a parameter of this path; the parameters are "), "`state` is not similar"
    assert client.post(f"/v1/jobs/{run}/pause?force=1").status_code == 422
    assert client.get("/v1/whoami?x=1").json()["errors"][0]["detail"].endswith("the parameters are none")


@pytest.mark.parametrize(
    ("query", "twice"),
    [
        ("/v1/jobs?tag=project:a&tag=owner:x", "tag"),
        ("/v1/jobs/JOB/best?max_cost_usd=1&max_gpu_hours=1&max_cost_usd=1", "max_cost_usd"),
    ],
)
def test_query_parameter_that_is_given_twice_is_refused(
    client: TestClient, run: str, query: str, twice: str
) -> None:
    answer = client.get(query.replace("JOB", run))
    assert check_problem(answer)["errors"] == [{"pointer": twice, "detail": strict_json.TWICE}]


def test_query_parameter_that_is_a_list_may_be_given_several_times(client: TestClient) -> None:
    answer = client.get("/v1/spend?group_by=day&group_by=market")
    assert answer.json()["group_by"] == ["day", "market"]


def test_errors_are_reported_at_once_but_at_most_a_hundred(client: TestClient, untouched: None) -> None:
    wrong = {"name": "a/b", "budget": {"usd": -1}, "constants": {"lr": 1}, "a/b~c": 1}
    wrong["search_space"] = {"lr": {**FLOAT, "low": 2.0}}
    given = pointers(client.post("/v1/jobs", json=body(**wrong)))
    assert "/a~1b~0c" in given
    del wrong["a/b~c"]  # an unknown field is reported before the values of the others are read
    given = pointers(client.post("/v1/jobs", json=body(**wrong)))
    assert {"/name", "/budget/usd", "/search_space/lr/low", "/constants"} <= set(given)
    answer = client.post("/v1/jobs", json=body(**{f"unknown_{n}": 1 for n in range(5000)}))
    assert len(pointers(answer)) == 101
    assert answer.json()["errors"][-1]["detail"] == "has 4900 more faults, which are not listed"
    answer = client.post("/v1/jobs", json=body(**{f"unknown_{n}": 1 for n in range(20_000)}))
    detail = "has more than 10000 fields in total; send fewer"
    assert answer.json()["errors"] == [{"pointer": "", "detail": detail}]


@pytest.mark.parametrize("entry", ["1", "[]", "{}"])
def test_entries_of_lists_are_counted(client: TestClient, untouched: None, entry: str) -> None:
    lists = [f"[{', '.join([entry] * 1000)}]"] * 101
    sent = json.dumps(body(constants={"a": "@"})).replace('"@"', f"[{', '.join(lists)}]")
    answer = client.post("/v1/jobs", content=sent, headers=HEADERS)
    detail = "has more than 100000 list entries in total; send fewer"
    assert answer.json()["errors"] == [{"pointer": "", "detail": detail}]


@pytest.mark.parametrize(
    ("call", "at", "most"),
    [
        ("jobs", "/start", 1000),
        ("jobs", "/warm_start/jobs", 50),
        ("plans", "/planning/steps_from", 20),
        ("plans", "/planning/candidates", 50),
        ("budgets", "/alerts", 20),
    ],
)
def test_list_with_too_many_entries_is_refused_with_one_error(
    client: TestClient, untouched: None, call: str, at: str, most: int
) -> None:
    method, path, right, _ = CALLS[call]
    answer = client.request(method, path, json=with_value(right, at, [{}] * (most + 1)))
    assert pointers(answer) == [at]
    assert answer.json()["errors"][0]["detail"] == f"has too many entries; give at most {most}"


def test_choice_that_is_not_plain_is_refused_with_one_error(client: TestClient, untouched: None) -> None:
    space = {"o": {"type": "categorical", "choices": [[1], "a", {"a": 1}]}}
    given = pointers(client.post("/v1/jobs", json=body(search_space=space)))
    assert given == ["/search_space/o/choices/0", "/search_space/o/choices/2"]


def test_too_long_list_of_a_search_space_is_refused_with_one_error(
    client: TestClient, untouched: None
) -> None:
    choice: dict[str, Any] = {"type": "categorical", "choices": ["a"]}
    long: list[Any] = [[]] * 1001
    space = {"o": {**choice, "choices": long}, "p": choice, "lr": {**FLOAT, "when": {"p": ["a"] * 1001}}}
    answer = client.post("/v1/jobs", json=body(search_space=space))
    assert pointers(answer) == ["/search_space/o/choices", "/search_space/lr/when/p"]
    details = {error["detail"] for error in answer.json()["errors"]}
    assert details == {"has too many entries; give at most 1000"}
    short = {"p": choice, "lr": {**FLOAT, "when": {"p": [[]] * 1000}}}
    assert pointers(client.post("/v1/jobs", json=body(search_space=short))) == ["/search_space/lr/when/p/0"]


def test_too_few_gpu_hours_for_one_step_are_refused_with_a_pointer(tmp_path: Path) -> None:
    own = fakes.service_in(tmp_path)
    own.cluster.fake_nodes = [Node("n1", cpus=8, gpus=1, memory_bytes=1)]
    wrong = body(budget={"gpu_hours": 0.00001}, resources={"gpus": 1})
    assert pointers(fakes.client_of(own).post("/v1/jobs", json=wrong)) == ["/budget/gpu_hours"]
    own.database.dispose()


@pytest.mark.parametrize(
    "change",
    [
        {"search_space": {"\ud800": FLOAT}},
        {"search_space": {"o": {"type": "categorical", "choices": ["\ud800"]}}},
        {"name": "\ud800"},
        {"constants": {"a": "\ud800"}},
        {"constants": {"\ud800": 1}},
        {"tags": {"a": "\ud800"}},
        {"tags": {"\ud800": "a"}},
        {"\ud800": 1},
        {"trainable": "\ud800:train"},
    ],
    ids=repr,
)
def test_lone_surrogates_are_refused(client: TestClient, untouched: None, change: dict[str, Any]) -> None:
    check_problem(client.post("/v1/jobs", content=json.dumps(body(**change)), headers=HEADERS))


@pytest.mark.parametrize(
    ("call", "at", "value", "says"),
    [
        ("jobs", "", [], "must be an object, such as"),
        ("jobs", "/objective", "acc", "must be an object, such as"),
        ("jobs", "/search_space", [], "must be an object, such as"),
        ("jobs", "/search_space/lr/log", "yes", "must be true or false"),
        ("jobs", "/budget/usd", "5", "must be a number without quotes"),
        ("jobs", "/budget/trials", "5", "must be a whole number without quotes"),
        ("jobs", "/priority", "high", "must be a whole number"),
        ("jobs", "/budget/trials", 5.5, "must be a whole number"),
        ("jobs", "/name", 5, "must be text in quotes"),
        ("jobs", "/constraints", "acc", "must be a list"),
        ("jobs", "/objective/mode", "MAX", "must be 'max' or 'min'"),
        ("exports", "/formats", [], "must have at least 1 item"),
        ("exports", "/max_cost_usd", 0, "must be greater than 0"),
    ],
)
def test_wrong_types_are_refused_in_plain_words(
    client: TestClient, run: str, call: str, at: str, value: Any, says: str
) -> None:
    path, right = ("/v1/jobs", body()) if call == "jobs" else (f"/v1/jobs/{run}/exports", {})
    (error,) = check_problem(client.post(path, json=with_value(right, at, value)))["errors"]
    assert error["pointer"] == at
    assert error["detail"].removesuffix(' {"name": "value"}') == says


@pytest.mark.parametrize("path", ["/v1/jobs/%00", "/v1/jobs/job_1/trials/a%00b", "/v1/members/%00"])
def test_path_with_a_nul_character_does_not_exist(client: TestClient, path: str) -> None:
    assert check_problem(client.get(path), 404)["code"] == "no-such-path"


@pytest.mark.parametrize("size", [-1, 0.0001, 1e9, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["cpus", "gpus", "memory_gib", "gpu_memory_gib"])
def test_machine_of_an_impossible_size_is_refused(client: TestClient, name: str, size: float) -> None:
    machine = {"instance_type": "x", "usd_per_hour": 1, name: size}
    sent = body(planning={"step_seconds": 1, "candidates": [machine]})
    answer = client.post("/v1/plans", content=json.dumps(sent), headers=HEADERS)
    if (name, size) == ("gpus", 0.0001):
        assert answer.status_code == 200, answer.text
    else:
        assert pointers(answer) == [f"/planning/candidates/0/{name}"]


@pytest.mark.parametrize("depth", [50, 200, 300, 900, 5_000, 200_000])
def test_deep_nesting_never_causes_a_server_error(client: TestClient, depth: int) -> None:
    sent = json.dumps(body(constants={"a": "@"})).replace('"@"', "[" * depth + "]" * depth)
    answer = client.post("/v1/jobs", content=sent, headers=HEADERS)
    assert answer.status_code in (201, 400, 422), answer.text
    if answer.status_code == 201:
        assert client.get(answer.headers["Location"]).status_code == 200


def test_body_may_have_one_mib_with_or_without_content_length(client: TestClient) -> None:
    check_problem(client.post("/v1/jobs", content=b" " * (2**20 + 1)), 413)
    check_problem(client.post("/v1/jobs", content=iter([b" " * 2**19] * 3)), 413)
    sent = json.dumps(body()).encode()
    assert client.post("/v1/jobs", content=sent.ljust(2**20), headers=HEADERS).status_code == 201


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        *(({"budget": {"usd": usd}}, "/budget/usd") for usd in ("5", -1, 0.0000001)),
        ({"budget": {"wall_clock": "5 parsecs"}}, "/budget/wall_clock"),
        ({"budget": {"trials": 0}}, "/budget/trials"),
        ({"budget": {"eur": 1}}, "/budget/eur"),
        ({"budget": {"usd": None}}, "/budget"),
        *(({"priority": priority}, "/priority") for priority in (1001, -1001, 1.5, True)),
        ({"tags": {"a": 1}}, "/tags/a"),
        ({"tags": {"a/b:c": "d"}}, "/tags/a~1b:c"),
        ({"state": "running"}, "/state"),
        ({"name": "new"}, "/name"),
    ],
    ids=repr,
)
def test_invalid_change_is_refused_with_a_pointer_and_changes_nothing(
    client: TestClient, run: str, untouched: None, change: dict[str, Any], pointer: str
) -> None:
    before = client.get(f"/v1/jobs/{run}").json()
    assert pointer in pointers(client.patch(f"/v1/jobs/{run}", json=change))
    assert client.get(f"/v1/jobs/{run}").json() == before
