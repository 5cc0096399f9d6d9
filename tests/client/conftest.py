"""Fixtures: both clients over a service with ended, waiting and running jobs."""

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.client.both import Application, Both, both
from tests.fakes import FakeService

service, rest = fakes.fixtures("module")


@pytest.fixture(scope="module")
def done(service: FakeService, rest: TestClient) -> str:
    """A job with a conditional parameter that ran until its budget was spent."""
    space = {
        "lr": {"type": "float", "low": 0.0001, "high": 1.0, "log": True},
        "width": {"type": "int", "low": 8, "high": 64},
        "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": ["sgd"]}},
    }
    job = fakes.submit(rest, search_space=space)
    fakes.simulate(service, job)
    return job


@pytest.fixture(params=["answers", "is awaited"], scope="module")
def client(request: pytest.FixtureRequest, rest: TestClient) -> Both:
    is_awaited = request.param == "is awaited"
    transport = Application(rest._transport) if is_awaited else rest._transport
    return both("http://tuner", fakes.KEY, transport=transport, is_awaited=is_awaited)
