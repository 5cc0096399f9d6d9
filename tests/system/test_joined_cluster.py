"""Test a service that joins a cluster started by someone else, and does not stop it."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.system import books
from tests.system.serving import Served, until
from tuner.cluster.head import LocalHead

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(900)]


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[LocalHead]:
    (tmp_path / "theirs").mkdir()
    head = LocalHead(tmp_path / "theirs", cpus=1, gpus=0)
    head.find_or_start()
    yield head
    head.stop()


def shown(served: Served, path: str) -> httpx2.Response:
    key = (served.home / "api_key").read_text().strip()
    return httpx2.get(f"{served.client.url}{path}", headers={"Authorization": f"Bearer {key}"}, timeout=240)


def drivers(served: Served, job: str) -> list[str]:
    """Return the statuses of a job's drivers, from Ray's dashboard."""
    shown_jobs = shown(served, "/ray/api/jobs/").json()
    return [ray_job["status"] for ray_job in shown_jobs if ray_job["metadata"].get("tuning_job") == job]


def test_job_runs_on_an_existing_cluster_that_is_not_stopped(theirs: LocalHead, tmp_path: Path) -> None:
    url = theirs.find_or_start().dashboard_url
    joined = Served(tmp_path / "home", TUNER_RAY_ADDRESS=url, RAY_AUTH_TOKEN=theirs.token).start()
    try:
        job = joined.submit("steady:train", budget={"usd": 1, "trials": 3}, constants={"step_s": 0.01}).id
        ended = joined.finished(job)
        assert ended.stop_reason == "trials", ended.detail
        assert ended.links.ray_dashboard == f"/ray/#/jobs/{job}-1"
        assert shown(joined, "/ray/").text.startswith("<!doctype html>")
        until(
            "Ray's dashboard shows that the driver has ended", lambda: drivers(joined, job) == ["SUCCEEDED"]
        )
        books.check(joined.client, job)
    finally:
        joined.stop()
    assert theirs.alive()
