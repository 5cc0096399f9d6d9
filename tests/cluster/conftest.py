"""One real Ray head for all tests of a module that leave it as it was."""

from collections.abc import Iterator

import pytest

from tuner.engine.ray_cluster import Dashboard, LocalHead


@pytest.fixture(scope="module")
def local_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHead]:
    head = LocalHead(tmp_path_factory.mktemp("home"), cpus=2, gpus=3)
    head.find_or_start()
    yield head
    head.stop()


@pytest.fixture(scope="module")
def dashboard(local_head: LocalHead) -> Iterator[Dashboard]:
    found = Dashboard(local_head.find_or_start().dashboard_url, local_head.token, timeout_s=60)
    yield found
    found.close()
