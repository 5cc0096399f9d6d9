"""Every request gets a response, and never a 500."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests import fakes
from tests.api.conftest import Finished
from tests.fakes import body
from tests.strategies import examples
from tuner.schemas import job as job_models
from tuner.schemas.base import Request

MODELS = [kind for kind in vars(job_models).values() if isinstance(kind, type) and issubclass(kind, Request)]
KEYS = st.sampled_from(sorted({"lr", "a", *(name for model in MODELS for name in model.model_fields)}))
WORDS = st.sampled_from(["float", "int", "categorical", "max", "auto", "9s", "finish", "a", "lr", "digits"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | WORDS
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner)
)
HEADERS = {"Content-Type": "application/json"}


service, client = fakes.fixtures("module")


@pytest.fixture(scope="module")
def job(client: TestClient) -> str:
    return fakes.submit(client)


def check_refused(answer: Any) -> None:
    """Check that the answer is a success or a problem document. The test client raises the exception behind a 500."""
    assert answer.status_code in (200, 201, 400, 404, 409, 413, 422), answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]


@examples(40)
@given(sent=VALUES)
def test_any_json_as_job_is_accepted_or_refused(client: TestClient, sent: Any) -> None:
    check_refused(client.post("/v1/jobs", content=json.dumps(sent), headers=HEADERS))


@examples(40)
@given(key=st.sampled_from(sorted(body())), sent=VALUES)
def test_job_with_one_arbitrary_field_is_accepted_or_refused(client: TestClient, key: str, sent: Any) -> None:
    check_refused(client.post("/v1/jobs", content=json.dumps(body(**{key: sent})), headers=HEADERS))


@examples(40)
@given(parameter=st.dictionaries(KEYS, LEAVES | st.lists(LEAVES) | st.dictionaries(KEYS, st.lists(LEAVES))))
def test_any_search_space_parameter_is_accepted_or_refused(client: TestClient, parameter: Any) -> None:
    for kind in ("float", "int", "categorical"):
        sent = body(search_space={"lr": {**parameter, "type": kind}})
        check_refused(client.post("/v1/jobs", content=json.dumps(sent), headers=HEADERS))


@examples(40)
@given(sent=st.dictionaries(st.sampled_from(["budget", "tags", "priority", "x"]), VALUES) | VALUES)
def test_any_change_is_accepted_or_refused(client: TestClient, job: str, sent: Any) -> None:
    check_refused(client.patch(f"/v1/jobs/{job}", content=json.dumps(sent), headers=HEADERS))


@examples(40)
@given(sent=st.binary(max_size=60))
def test_any_bytes_are_refused(client: TestClient, sent: bytes) -> None:
    answer = client.post("/v1/jobs", content=sent, headers=HEADERS)
    check_refused(answer)
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("query", ["best?max_duration=1000000d", f"events?after={2**63}"])
def test_huge_number_in_a_query_is_answered_or_refused(finished: Finished, query: str) -> None:
    check_refused(finished.client.get(f"/v1/jobs/{finished.plain}/{query}"))


def test_steps_of_a_search_space_are_shown_as_they_were_sent(client: TestClient) -> None:
    parameters = {
        "dropout": {"type": "float", "low": 0, "high": 0.5, "step": 0.05},
        "width": {"type": "int", "low": 16, "high": 256, "step": 16},
        "depth": {"type": "int", "low": 1, "high": 4, "log": True, "step": 1},
    }
    answer = client.post("/v1/jobs", json=body(search_space=parameters))
    assert answer.status_code == 201, answer.text
    shown = answer.json()["search_space"]
    assert {name: parameter.get("step") for name, parameter in shown.items()} == {
        "dropout": 0.05,
        "width": 16,
        "depth": None,  # every integer, which is the default
    }
