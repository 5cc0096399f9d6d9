"""Kill a service and replace it with a newer version with a newer schema. The drivers of its jobs continue
undisturbed.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.system import books
from tests.system.serving import TIMEOUT_S, Served, until
from tests.upgrades import made_up
from tuner.database.sqlite import sqlite3

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(1200)]
NEWER = Path(made_up.__file__).with_name("serve_newer.py")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    home_folder = tmp_path / "home"
    yield home_folder
    command = [sys.executable, "-m", "tuner.cli.main", "stop"]
    environment = {"TUNER_HOME": str(home_folder), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, env=environment, capture_output=True, check=True)


@pytest.fixture
def services(home: Path) -> Iterator[list[Served]]:
    """Three services of one home that run one after the other: two of this version, and one of a newer version."""
    all_services = [Served(home) for _ in range(3)]
    yield all_services
    for service in all_services:
        if hasattr(service, "process") and service.process.poll() is None:
            service.kill_api()


def leads(served: Served) -> bool:
    return "tuner_controller_leader 1.0" in httpx2.get(f"{served.client.url}/metrics", timeout=30).text


def launches(home: Path) -> dict[str, int]:
    with sqlite3.connect(home / "tuner.db", timeout=30) as db:
        return dict(db.execute("SELECT job, epoch FROM launches").fetchall())


def serve_again(service: Served) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *service.program, "serve"]
    return subprocess.run(command, env=service.environment, capture_output=True, text=True, check=False)


def test_jobs_survive_a_service_kill_and_an_upgrade(
    home: Path, services: list[Served], tmp_path: Path
) -> None:
    first, second, newer = services
    # The jobs take minutes until the `speed_up` file exists.
    slow = {"step_s": 1.5, "speed_up": str(tmp_path / "speed_up")}
    long = {"min": 18, "max": 54, "reduction_factor": 3}
    wanted: dict[str, Any] = {"budget": {"usd": 1, "trials": 6}, "constants": slow, "fidelity": long}
    first.start()
    jobs = [first.submit("steady:train", **wanted).id]
    first.reports_at_least(jobs[0], 2)
    until("the first leads", lambda: leads(first))
    refused = serve_again(second)
    assert refused.returncode == 1
    assert first.client.url in refused.stderr
    first.kill_api()
    second.start()
    jobs.append(second.submit("steady:train", **wanted).id)
    second.reports_at_least(jobs[1], 1)
    until("the second leads", lambda: leads(second))

    newer.program = [str(NEWER), str(tmp_path / "newer")]
    subprocess.run([sys.executable, *newer.program, "migrate"], env=newer.environment, check=True)
    for job in jobs:
        seen = second.client.job(job).progress.steps
        until(
            "a report after the schema grew",
            lambda job=job, seen=seen: second.client.job(job).progress.steps > seen,
        )
    second.process.terminate()
    assert second.process.wait(TIMEOUT_S) == 0
    newer.start()
    until("the newer version leads", lambda: leads(newer))
    assert [newer.client.job(job).state for job in jobs] == ["running"] * 2
    (tmp_path / "speed_up").touch()
    for job in jobs:
        ended = newer.finished(job)
        assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
        books.check(newer.client, job)
    assert launches(home) == dict.fromkeys(jobs, 1), "each job has had one driver"
    newer.process.terminate()
    assert newer.process.wait(TIMEOUT_S) == 0
    refused = serve_again(first)
    assert refused.returncode == 1
    assert "newer version" in refused.stderr
