"""Test Ray Jobs over HTTP, against a real head."""

import shlex
import sys
import uuid
from pathlib import Path

import pytest

from tests.cluster.waiting import until
from tuner.cluster.dashboard import Dashboard
from tuner.cluster.jobs import JobStatus, RayJobs
from tuner.service.cluster import DRIVER_ENV

pytestmark = pytest.mark.system

ENDED: tuple[JobStatus, ...] = ("succeeded", "failed", "stopped")
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""

# An actor with a child that touches a file when the actor's process is gone, as a fork server then kills what user code started. The actor
# is killed once the child is ready, because a child that still starts on a busy machine would need several seconds.
KILLED = """
import subprocess, sys
import ray

CHILD = "import pathlib, sys; file = pathlib.Path(sys.argv[1]); print(flush=True); sys.stdin.read(); file.touch()"

@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, marker):
        command = [sys.executable, "-S", "-c", CHILD, marker]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.child.stdout.readline()
    def ready(self):
        pass

ray.init(log_to_driver=False)
worker = Worker.remote(MARKER)
ray.get(worker.ready.remote())
ray.kill(worker)
"""


@pytest.fixture
def jobs(dashboard: Dashboard) -> RayJobs:
    return RayJobs(dashboard)


@pytest.fixture
def name() -> str:
    return f"job_{uuid.uuid4().hex[:8]}-1"


def driver(code: str) -> str:
    return f"exec {sys.executable} -c {shlex.quote(code)}"


def test_a_job_submitted_twice_runs_once_and_its_status_is_reported(jobs: RayJobs, name: str) -> None:
    once = driver("import os; print('ran with', os.environ['TUNER_WHAT']); raise SystemExit(7)")
    assert jobs.submit(name, once, env={"TUNER_WHAT": "this"}, metadata={"job": "j"})
    assert not jobs.submit(name, once, env={"TUNER_WHAT": "that"})
    until(lambda: jobs.status(name) in ENDED)
    assert jobs.status(name) == "failed"
    assert "exit code 7" in jobs.message(name)
    assert jobs.logs(name).count("ran with this") == 1


def test_driver_that_ignores_sigterm_is_stopped(jobs: RayJobs, name: str) -> None:
    jobs.submit(name, driver(DEAF), env={})
    until(lambda: "ready" in jobs.logs(name))
    assert jobs.stop(name)
    until(lambda: jobs.status(name) in ENDED)
    assert jobs.status(name) == "stopped"
    # Ray's own actor for the job ends a moment after the status is reported.
    until(lambda: not jobs.stop(name))


def test_job_that_was_never_submitted_is_unknown(jobs: RayJobs) -> None:
    assert jobs.status("nobody") == "unknown"
    assert jobs.logs("nobody") == ""
    assert not jobs.stop("nobody")


def test_child_of_a_killed_worker_can_clean_up(jobs: RayJobs, name: str, tmp_path: Path) -> None:
    marker = tmp_path / "cleaned"
    jobs.submit(name, driver(KILLED.replace("MARKER", repr(str(marker)))), env=DRIVER_ENV)
    until(lambda: jobs.status(name) in ENDED)
    assert jobs.status(name) == "succeeded", jobs.logs(name)
    until(marker.exists)
