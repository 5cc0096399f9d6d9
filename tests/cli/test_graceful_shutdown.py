"""Shutdown of a service: first not ready, then closed to connections; responses finish, the lease is released, jobs keep running."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests import fakes
from tests.cluster.waiting import until
from tests.fakes import KEY
from tuner.cluster.head import LocalHead
from tuner.cluster.processes import marked
from tuner.database.database import Database
from tuner.service.leading import ROLE
from tuner.store import jobs, launches, leadership

ROOT = Path(__file__).parents[2]
# `tuner serve` with a program in place of Ray, which never becomes ready.
SERVE_WITH_SLOW_RAY = """
import sys
from tuner.cli.main import app
from tuner.cluster.launch import HeadLaunch
HeadLaunch.command = lambda _: [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
app(["serve"])
"""


class Program:
    def __init__(self, home: Path, drain_s: float) -> None:
        command = [sys.executable, "-m", "tests.cli.leaving_program", str(home), str(drain_s)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        port, self.job = self.says().split()
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx2.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=240
        )
        while not answers(f"{self.url}/readyz"):
            pass

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    running_program = Program(tmp_path, request.param)
    yield running_program
    running_program.process.kill()
    running_program.process.wait()
    running_program.client.close()
    assert running_program.process.stdout is not None
    running_program.process.stdout.close()


@pytest.mark.parametrize("program", [0], indirect=True)
def test_shutdown_finishes_responses_ends_streams_and_releases_the_lease(
    program: Program, tmp_path: Path
) -> None:
    slow: list[httpx2.Response] = []
    asking = threading.Thread(target=lambda: slow.append(program.client.get("/slow")))
    with program.client.stream("GET", f"/v1/jobs/{program.job}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry")
        asking.start()
        assert program.says() == "asked"
        program.process.send_signal(signal.SIGTERM)
        assert any(line.startswith("event") for line in lines), "a stream that ends tells how things stand"
    asking.join(240)
    assert slow[0].json() == "answered"
    assert program.says() == "over", "what comes behind the serving is not reached"
    assert program.process.wait(240) == 0
    database = Database(f"sqlite:///{tmp_path}/tuner.db")
    with database.read() as db:
        term, launch = leadership.get(db, ROLE), launches.get(db, program.job)
        assert jobs.get(db, program.job).state == "queued"
    database.dispose()
    assert (term and term.token, term and term.expires_at) == (1, 0)
    assert launch is not None
    assert launch.state == "submitted"


@pytest.mark.parametrize("program", [600], indirect=True)
def test_draining_service_answers_but_is_not_ready_until_a_second_signal(
    program: Program,
) -> None:
    program.process.send_signal(signal.SIGTERM)
    while answers(f"{program.url}/readyz"):
        pass
    assert answers(f"{program.url}/healthz")
    assert program.client.get(f"/v1/jobs/{program.job}").is_success
    program.process.send_signal(signal.SIGTERM)
    assert program.says() == "over"
    assert program.process.wait(240) == 0


def test_shutdown_ends_a_start_of_ray_although_jobs_wait(tmp_path: Path) -> None:
    service = fakes.service_in(tmp_path)
    fakes.submit(fakes.client_of(service))
    service.database.dispose()
    local = LocalHead(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE_WITH_SLOW_RAY],
        cwd=ROOT,
        env={**kept, "TUNER_HOME": str(tmp_path), "TUNER_PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2].rstrip(",")
        until(lambda: answers(f"{url}/healthz") and bool(list(marked(f"{local.tag}-"))))
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=240)
        assert not list(marked(f"{local.tag}-"))
        assert "jobs that have not ended continue with the next `tuner serve`" in printed
    finally:
        process.kill()
        process.communicate()
        local.stop()


def answers(url: str) -> bool:
    try:
        return bool(httpx2.get(url, timeout=240).is_success)
    except httpx2.HTTPError:
        return False
