"""Every error of ours has an HTTP status and reaches the caller as a problem document."""

import inspect
import re

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.api.test_bad_bodies import check_problem
from tests.fakes import FakeService
from tools.checks import ROOT
from tuner.api import problems
from tuner.domain import errors
from tuner.domain.errors import Fault, Invalid, TunerError
from tuner.domain.space import SpaceRefused
from tuner.service import control
from tuner.simulator.table_file import TableError
from tuner.simulator.traces import TraceError
from tuner.store.copies import HalfRestored

CLASSES = [
    member
    for member in vars(errors).values()
    if inspect.isclass(member) and issubclass(member, TunerError) and member is not TunerError
]
EXPECTED = {
    "Invalid": 422,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "NothingAffordable": 404,
    "Conflict": 409,
    "IdempotencyConflict": 409,
    "TooManyWaiting": 409,
    "AddressNotFree": 409,
    "HomeInUse": 409,
    "Stale": 412,
    "BudgetRefused": 409,
    "BadFile": 422,
    "Fenced": 409,
    "Unavailable": 503,
}


# Raised only in drivers, in the command line, or by a service that does not start.
ELSEWHERE = {
    errors.AddressNotFree,
    errors.Fenced,
    errors.HomeInUse,
    HalfRestored,
    SpaceRefused,
    TableError,
    TraceError,
}
# Codes of errors that have no class.
OF_THE_FRAMEWORK = {*problems.KINDS.values(), "internal", "no-such-path"}


def subclasses(kind: type[TunerError]) -> set[type[TunerError]]:
    direct = {each for each in kind.__subclasses__() if each.__module__.startswith("tuner.")}
    return direct.union(*map(subclasses, direct))


def test_documented_codes_are_those_of_all_errors_that_reach_a_client() -> None:
    table = (ROOT / "docs/api.md").read_text().partition("| status | code |")[2].partition("\n\n")[0]
    documented = {
        code: {int(status) for status in row.split("|")[1].split(",")}
        for row in table.splitlines()[2:]
        for code in re.findall(r"`([a-z-]+)`", row.split("|")[2])
    }
    reaching = {
        problems.code_of(kind): problems.status_of(kind) for kind in subclasses(TunerError) - ELSEWHERE
    }
    assert documented.keys() == reaching.keys() | OF_THE_FRAMEWORK
    assert {code for code, status in reaching.items() if status not in documented[code]} == set()


def made(kind: type[TunerError]) -> TunerError:
    return Invalid(Fault("/a", "fix it")) if issubclass(kind, Invalid) else kind("fix it")


def test_every_error_class_has_its_expected_status() -> None:
    class Newer(errors.Conflict):
        """A subclass without a status of its own, which inherits that of its base class."""

    assert {kind.__name__: problems.STATUS[kind] for kind in CLASSES} == EXPECTED
    assert problems.status_of(Newer) == 409


@pytest.mark.parametrize("kind", [*CLASSES, TunerError], ids=lambda kind: kind.__name__)
def test_every_error_is_returned_as_a_problem_document(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, kind: type[TunerError]
) -> None:
    def refuse(*_: object) -> None:
        raise made(kind)

    monkeypatch.setattr(control, "pause", refuse)
    answer = fakes.client_of(service, raises=False).post("/v1/jobs/job_1/pause")
    problem = check_problem(answer, EXPECTED.get(kind.__name__, 500))
    assert problem["title"] == kind.title()
    assert "fix it" in problem["detail"]
    assert problem["type"].startswith("urn:tuner:problem:")
    assert ("retry-after" in answer.headers) == (answer.status_code == 503)


def test_pointers_of_all_errors_are_returned(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Invalid(Fault("/a", "one"), Fault("/b/0", "two"))

    monkeypatch.setattr(control, "pause", refuse)
    problem = check_problem(fakes.client_of(service).post("/v1/jobs/job_1/pause"), 422)
    assert problem["errors"] == [{"pointer": "/a", "detail": "one"}, {"pointer": "/b/0", "detail": "two"}]


def test_at_most_a_hundred_faults_are_listed(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Invalid(*(Fault(f"/{n}", "wrong") for n in range(300)))

    monkeypatch.setattr(control, "pause", refuse)
    problem = check_problem(fakes.client_of(service).post("/v1/jobs/job_1/pause"), 422)
    assert [error["pointer"] for error in problem["errors"]] == [*(f"/{n}" for n in range(100)), ""]
    assert problem["errors"][-1]["detail"] == "has 200 more faults, which are not listed"
    assert problem["detail"].endswith("/99: wrong; body: has 200 more faults, which are not listed")


def test_unexpected_exception_reveals_no_internals(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprise(*_: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(control, "pause", surprise)
    answer = fakes.client_of(service, raises=False).post("/v1/jobs/job_1/pause")
    check_problem(answer, 500)
    assert "hunter2" not in answer.text


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("DELETE", "/v1/jobs", 405),
        ("PUT", "/v1/jobs/job_1", 405),
        ("GET", "/v1/jobs/job_1/pause", 405),
    ],
)
def test_unknown_paths_and_methods_return_problem_documents(
    client: TestClient, verb: str, path: str, status: int
) -> None:
    answer = client.request(verb, path)
    kind = "no-such-path" if status == 404 else "method-not-allowed"
    assert check_problem(answer, status)["type"] == f"urn:tuner:problem:{kind}"
    if status == 404:
        assert answer.json()["detail"].startswith("no route has this path")
    else:
        allowed = {
            "/v1/jobs": "GET, HEAD, POST",
            "/v1/jobs/job_1": "GET, HEAD, PATCH",
            "/v1/jobs/job_1/pause": "POST",
        }[path]
        assert answer.headers["allow"] == allowed
        assert answer.json()["detail"].endswith(f"the allowed methods are: {allowed}")


@pytest.mark.parametrize("state", ["unreachable", "without nodes"])
def test_unusable_cluster_is_503_with_retry_after(
    client: TestClient, service: FakeService, state: str
) -> None:
    service.cluster.is_down, service.cluster.fake_nodes = state == "unreachable", []
    answer = client.post("/v1/jobs", json=fakes.body())
    check_problem(answer, 503)
    assert answer.headers["retry-after"] == "2"
    assert client.get("/v1/jobs").json()["items"] == []


def test_unusable_database_is_503(client: TestClient, service: FakeService) -> None:
    service.database.dispose()
    (service.settings.home / "tuner.db").write_bytes(b"")
    check_problem(client.get("/v1/jobs"), 503)


@pytest.mark.parametrize(
    ("extra", "pointer", "detail"),
    [
        ({"budgett": {"usd": 1}}, "/budgett", "is unknown; did you mean budget?"),
        ({"objective": {"metrics": "a"}}, "/objective/metrics", "is unknown; did you mean metric?"),
        (
            {"max_concurrent_trials": 2},
            "/max_concurrent_trials",
            "is unknown here; did you mean /resources/max_concurrent_trials?",
        ),
        (
            {"algorithm": {"max_concurrent_trials": 2}},
            "/algorithm/max_concurrent_trials",
            "is unknown here; did you mean /resources/max_concurrent_trials?",
        ),
        ({"colour": 1}, "/colour", "is unknown; remove it"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name_or_its_place(
    client: TestClient, extra: dict[str, object], pointer: str, detail: str
) -> None:
    refused = client.post("/v1/jobs", json=extra)
    assert refused.status_code == 422
    assert {"pointer": pointer, "detail": detail} in refused.json()["errors"]
