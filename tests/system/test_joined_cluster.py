"""A service that joins a cluster which somebody else keeps, and leaves it alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import books
from tests.system.serving import Served
from tuner.engine.ray_cluster import LocalHead

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[LocalHead]:
    (tmp_path / "theirs").mkdir()
    head = LocalHead(tmp_path / "theirs", cpus=1, gpus=0)
    head.find_or_start()
    yield head
    head.stop()


def test_a_job_runs_on_a_cluster_that_was_there(theirs: LocalHead, tmp_path: Path) -> None:
    url = theirs.find_or_start().dashboard_url
    joined = Served(tmp_path / "home", TUNER_RAY_ADDRESS=url, RAY_AUTH_TOKEN=theirs.token).start()
    try:
        job = joined.submit("steady:train", budget={"usd": 1, "trials": 3}, constants={"step_s": 0.01}).id
        ended = joined.finished(job)
        assert ended.stop_reason == "trials", ended.detail
        assert ended.links.ray_dashboard == url
        books.check(joined.client, job)
    finally:
        joined.stop()
    assert theirs.alive()
