"""An invalid request gets an error with a pointer to the fault, and changes nothing."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.bad import BAD, ERRORS, FLOAT, ODD, Changes, budget, lr, resources
from tests.fakes import FakeService, body
from tuner.cluster.nodes import Node

PROBLEM = {"type", "title", "status", "detail", "errors"}


@pytest.fixture
def refusing(service: FakeService) -> TestClient:
    service.prober.errors.update(ERRORS)
    return fakes.client_of(service)


def check_problem(answer: Any, status: int = 422) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found.keys() >= PROBLEM
    assert found["status"] == status
    assert found["title"]
    assert found["detail"]
    return found


def pointers(answer: Any) -> list[str]:
    errors = check_problem(answer)["errors"]
    assert all(error["detail"] for error in errors)
    return [error["pointer"] for error in errors]


def check_nothing_made(client: TestClient) -> None:
    assert client.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize("name", BAD)
def test_invalid_job_is_refused_with_a_pointer_and_not_created(refusing: TestClient, name: str) -> None:
    changes, pointer = BAD[name]
    assert pointer in pointers(refusing.post("/v1/jobs", json=body(**changes)))
    check_nothing_made(refusing)


@pytest.mark.parametrize("name", ODD)
def test_invalid_json_numbers_are_refused_with_a_pointer(refusing: TestClient, name: str) -> None:
    text, key, pointer = ODD[name]
    sent = json.dumps(body(**{key: "@"})).replace('"@"', text)
    answer = refusing.post("/v1/jobs", content=sent, headers={"Content-Type": "application/json"})
    assert pointer in pointers(answer)
    check_nothing_made(refusing)


@pytest.mark.parametrize("key", ["name", "trainable", "objective", "search_space", "budget"])
def test_missing_required_field_is_named(client: TestClient, key: str) -> None:
    sent = body()
    del sent[key]
    assert pointers(client.post("/v1/jobs", json=sent)) == [f"/{key}"]


@pytest.mark.parametrize("key", ["metric", "mode"])
def test_missing_objective_field_is_named(client: TestClient, key: str) -> None:
    objective = {k: v for k, v in body()["objective"].items() if k != key}
    assert pointers(client.post("/v1/jobs", json=body(objective=objective))) == [f"/objective/{key}"]


@pytest.mark.parametrize("key", sorted(body()))
@pytest.mark.parametrize("value", [[], 7, "text", True], ids=repr)
def test_value_of_wrong_type_is_refused_with_a_pointer(client: TestClient, key: str, value: Any) -> None:
    if key in ("name", "trainable") and value == "text":
        return
    found = pointers(client.post("/v1/jobs", json=body(**{key: value})))
    assert all(pointer.startswith(f"/{key}") for pointer in found)


@pytest.mark.parametrize("sent", ["", "{", "{'name': 1}", '{"name": }', "[1,", "\x00", "nul"])
def test_invalid_json_is_refused(client: TestClient, sent: str) -> None:
    headers = {"Content-Type": "application/json"}
    assert pointers(client.post("/v1/jobs", content=sent, headers=headers)) == [""]


@pytest.mark.parametrize("sent", [[], "text", 5, None, True], ids=repr)
def test_json_that_is_not_an_object_is_refused(client: TestClient, sent: Any) -> None:
    assert pointers(client.post("/v1/jobs", json=sent)) == [""]


def test_all_errors_are_reported_at_once(client: TestClient) -> None:
    wrong = {"name": "a/b", **budget(usd=-1), **lr(low=2.0), "constants": {"lr": 1}}
    told = pointers(client.post("/v1/jobs", json=body(**wrong)))
    assert {"/name", "/budget/usd", "/search_space/lr/low", "/constants"} <= set(told)


def test_too_few_gpu_hours_for_one_step_are_refused_with_a_pointer(service: FakeService) -> None:
    service.cluster.found = [Node("n1", cpus=8, gpus=1, memory_bytes=1)]
    wrong = {**budget(gpu_hours=0.00001), **resources(gpus=1)}
    assert pointers(fakes.client_of(service).post("/v1/jobs", json=body(**wrong))) == ["/budget/gpu_hours"]


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
def test_lone_surrogates_are_refused(service: FakeService, change: Changes) -> None:
    client = fakes.client_of(service, raises=False)
    sent = json.dumps(body(**change))
    answer = client.post("/v1/jobs", content=sent, headers={"Content-Type": "application/json"})
    check_problem(answer)
    check_nothing_made(client)


@pytest.mark.parametrize("depth", [50, 200, 300, 900, 5_000, 200_000])
def test_deep_nesting_never_causes_a_server_error(service: FakeService, depth: int) -> None:
    client = fakes.client_of(service, raises=False)
    sent = json.dumps(body(constants={"a": "@"})).replace('"@"', "[" * depth + "]" * depth)
    answer = client.post("/v1/jobs", content=sent, headers={"Content-Type": "application/json"})
    assert answer.status_code in (201, 400, 422), answer.text
    if answer.status_code == 201:
        assert client.get(answer.headers["Location"]).status_code == 200


def test_body_over_one_mib_is_refused(client: TestClient) -> None:
    check_problem(client.post("/v1/jobs", content=b" " * (2**20 + 1)), 413)


def test_body_over_one_mib_without_content_length_is_refused(client: TestClient) -> None:
    check_problem(client.post("/v1/jobs", content=iter([b" " * 2**19] * 3)), 413)


def test_body_of_exactly_one_mib_is_accepted(client: TestClient) -> None:
    sent = json.dumps(body()).encode()
    headers = {"Content-Type": "application/json"}
    assert client.post("/v1/jobs", content=sent.ljust(2**20), headers=headers).status_code == 201


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"budget": {"usd": "5"}}, "/budget/usd"),
        ({"budget": {"usd": -1}}, "/budget/usd"),
        ({"budget": {"usd": 0.0000001}}, "/budget/usd"),
        ({"budget": {"wall_clock": "5 parsecs"}}, "/budget/wall_clock"),
        ({"budget": {"trials": 0}}, "/budget/trials"),
        ({"budget": {"eur": 1}}, "/budget/eur"),
        ({"budget": {"usd": None}}, "/budget"),
        ({"priority": 1001}, "/priority"),
        ({"priority": -1001}, "/priority"),
        ({"priority": 1.5}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"tags": {"a": 1}}, "/tags/a"),
        ({"tags": {"a/b:c": "d"}}, "/tags/a~1b:c"),
        ({"state": "running"}, "/state"),
        ({"name": "new"}, "/name"),
    ],
    ids=repr,
)
def test_invalid_change_is_refused_with_a_pointer_and_changes_nothing(
    client: TestClient, change: Changes, pointer: str
) -> None:
    job = fakes.submit(client)
    before = client.get(f"/v1/jobs/{job}").json()
    assert pointer in pointers(client.patch(f"/v1/jobs/{job}", json=change))
    assert client.get(f"/v1/jobs/{job}").json() == before


def test_body_with_too_many_names_is_refused_with_one_error(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json=fakes.body(**{f"unknown_{n}": 1 for n in range(20_000)}))
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": "", "detail": "has more than 10000 names; send less"}]


def test_only_the_first_hundred_errors_are_listed(client: TestClient) -> None:
    answer = client.post("/v1/jobs", json=fakes.body(**{f"unknown_{n}": 1 for n in range(5000)}))
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 101
    assert answer.json()["errors"][-1]["detail"] == "has 4900 more faults"


def test_duplicate_among_many_names_is_refused(client: TestClient) -> None:
    names = ", ".join(f'"name_{n % 9999}": 1' for n in range(10_000))
    answer = client.post("/v1/jobs", content=f"{{{names}}}", headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/name_0"
