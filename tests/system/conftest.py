"""One service for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.system.serving import Served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("home"), gpus=2).start()
    yield found
    found.stop()
