"""Fixtures: the command line over the real app, with an ended job and a waiting one."""

import threading
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from tests import fakes
from tests.fakes import FakeService
from tuner.cli.main import app
from tuner.client import Client

Tuner = Callable[..., Result]


service, rest = fakes.fixtures("module")


@pytest.fixture(scope="module")
def done(service: FakeService, rest: TestClient) -> str:
    """A job that ran until its budget was spent."""
    job = fakes.submit(rest, budget={"usd": 0.001}, tags={"owner": "done"})
    fakes.simulate(service, job)
    return job


@pytest.fixture
def waiting(rest: TestClient) -> str:
    return fakes.submit(rest)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line never note that the service is silent, because on a busy machine any answer may take that long.

    The note of a request that failed would also appear seconds later, in the output of another test.
    """
    monkeypatch.setattr("tuner.cli.output.SILENT_S", threading.TIMEOUT_MAX)


@pytest.fixture
def tuner(rest: TestClient, monkeypatch: pytest.MonkeyPatch) -> Tuner:
    """Return a function that runs the command line against the app."""
    monkeypatch.setattr(
        "tuner.client.Client",
        lambda **options: Client("http://tuner", fakes.KEY, transport=rest._transport, **options),
    )

    def run(*words: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(app, list(words), input=typed)

    return run
