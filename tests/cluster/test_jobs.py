"""Test Ray Jobs over HTTP, against a real head."""

import shlex
import sys
import uuid

import pytest

from tests.cluster.waiting import until
from tuner.engine.ray_cluster import Dashboard, JobStatus, RayJobs, RayUnavailable

pytestmark = pytest.mark.system

ENDED: tuple[JobStatus, ...] = ("succeeded", "failed", "stopped")
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def jobs(dashboard: Dashboard) -> RayJobs:
    return RayJobs(dashboard)


@pytest.fixture
def name() -> str:
    return f"job_{uuid.uuid4().hex[:8]}-1"


def driver(code: str) -> str:
    return f"exec {sys.executable} -c {shlex.quote(code)}"


def end_of(jobs: RayJobs, name: str) -> JobStatus:
    until(lambda: jobs.status(name) in ENDED)
    return jobs.status(name)


def test_a_job_submitted_twice_runs_once(jobs: RayJobs, name: str) -> None:
    once = driver("import os; print('ran with', os.environ['TUNER_WHAT'])")
    assert jobs.submit(name, once, env={"TUNER_WHAT": "this"}, metadata={"job": "j"})
    assert not jobs.submit(name, once, env={"TUNER_WHAT": "that"})
    assert end_of(jobs, name) == "succeeded"
    assert jobs.logs(name).count("ran with this") == 1
    assert "ran with this" in jobs.logs(name)


def test_a_driver_that_fails_is_reported_with_its_status(jobs: RayJobs, name: str) -> None:
    jobs.submit(name, driver("raise SystemExit(7)"), env={})
    assert end_of(jobs, name) == "failed"
    assert "exit code 7" in jobs.message(name)


def test_a_driver_that_is_killed_is_reported(jobs: RayJobs, name: str) -> None:
    jobs.submit(name, driver("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), env={})
    assert end_of(jobs, name) == "failed"


def test_a_driver_is_stopped_however_deaf_it_is(jobs: RayJobs, name: str) -> None:
    jobs.submit(name, driver(DEAF), env={})
    until(lambda: "ready" in jobs.logs(name))
    assert jobs.stop(name)
    assert end_of(jobs, name) == "stopped"
    until(
        lambda: not jobs.stop(name)
    )  # Ray's own actor for the job ends a moment after the status is reported.


def test_a_running_job_cannot_be_deleted_and_an_ended_one_is_forgotten(jobs: RayJobs, name: str) -> None:
    jobs.submit(name, driver("import time; print('ready', flush=True); time.sleep(1000)"), env={})
    until(lambda: "ready" in jobs.logs(name))
    with pytest.raises(RayUnavailable, match="non-terminal"):
        jobs.delete(name)
    jobs.stop(name)
    end_of(jobs, name)
    assert jobs.delete(name)
    assert jobs.status(name) == "unknown"


def test_a_job_that_nobody_submitted_is_unknown(jobs: RayJobs) -> None:
    assert jobs.status("nobody") == "unknown"
    assert jobs.logs("nobody") == ""
    assert not jobs.stop("nobody")
    assert not jobs.delete("nobody")
