"""A service over a cluster of no substance."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeService]:
    made = fakes.service_in(tmp_path_factory.mktemp("home"))
    yield made
    made.database.dispose()


@pytest.fixture
def client(service: FakeService) -> TestClient:
    return fakes.client_of(service)
