"""Test pausing, resuming, cancelling and topping up running jobs."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.waiting import is_dead
from tests.system import books
from tests.system.serving import Served, children, line, until
from tuner.schemas.job import Job

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def test_a_paused_job_goes_on_where_it_was(served: Served, tmp_path: Path) -> None:
    """Steps are long until the pause, so that one is in progress, and short after the resume."""
    constants = {"step_s": 1.5, "hurry": str(tmp_path / "hurry")}
    job = served.submit("steady:train", budget={"usd": 0.01, "trials": 3}, constants=constants).id
    served.reports_at_least(job, 2)
    served.client.pause(job)
    paused = until("the job is paused", lambda: _in(served, job, "paused"))
    assert paused.spend.held_usd == 0
    assert not served.drivers(job)[1:]
    before = paused.progress.steps
    (tmp_path / "hurry").touch()
    served.client.resume(job)
    ended = served.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials")
    assert ended.progress.steps > before
    books.check(served.client, job)


def test_cancel_frees_the_worker_of_code_that_hangs(served: Served) -> None:
    job = served.submit("steady:hangs", budget={"usd": 1}).id
    child = until("the child burns its CPU", lambda: _busy_children(served))[0]
    began = time.monotonic()
    served.client.cancel(job)
    until("the child is gone", lambda: is_dead(child))
    freed_s = time.monotonic() - began
    ended = until("the job is cancelled", lambda: _in(served, job, "cancelled"))
    print(
        f"cancel: the worker was free after {freed_s:.2f} s, the job cancelled after {time.monotonic() - began:.2f} s"
    )
    assert ended.stop_reason == "cancelled"
    assert served.client.cancel(job).state == "cancelled"
    books.check(served.client, job)


@pytest.mark.extended
def test_a_queued_job_can_be_cancelled_and_the_next_one_runs(served: Served) -> None:
    wide = {"max_concurrent_trials": 2}
    first = served.submit("steady:train", budget={"usd": 1}, resources=wide, constants={"step_s": 0.1}).id
    served.reports_at_least(first, 1)
    second, third = (
        served.submit("steady:train", resources=wide, budget={"usd": 0.0003}).id for _ in range(2)
    )
    assert served.client.job(second).state == "queued"
    assert served.client.cancel(second).state == "cancelled"
    served.client.cancel(first)
    assert served.finished(third).state == "succeeded"
    assert served.client.job(second).spend.usd == 0


def test_a_top_up_continues_exactly_as_if_it_had_been_there_from_the_start(served: Served) -> None:
    """$0.000222 (16 s), too little for the job, is topped up to $0.0025, which is enough; the result equals that of
    a job with $0.0025 from the start. The job trains for 26 s, and a setup on a busy machine takes up to 10 s.
    """
    much, little = 0.0025, 0.000222
    whole, parts = (_budgeted(served, usd) for usd in (much, little))
    paused = served.finished(parts)
    assert (paused.state, paused.stop_reason) == ("paused", "budget_usd")
    served.client.patch(parts, budget={"usd": much})
    served.client.resume(parts)
    first, second = _outcome(served, whole), _outcome(served, parts)
    assert first == second
    books.check(served.client, whole)
    books.check(served.client, parts)


def _budgeted(served: Served, usd: float) -> str:
    return served.submit(
        "steady:topped_up",
        constants={"step_s": 1.0},
        algorithm={"scheduler": "asha", "sampler": "tpe", "seed": 7},
        budget={"usd": usd, "trials": 12, "on_exhausted": "pause"},
    ).id


def _outcome(served: Served, job: str) -> dict[str, Any]:
    """Return the trials with their steps and values, and the best: everything except money and time."""
    ended = served.finished(job)
    assert (ended.state, ended.stop_reason) == ("paused", "trials"), ended.detail
    best = served.client.best(job)
    trials = {
        trial.id: (trial.config, trial.state, trial.steps, trial.metric)
        for trial in served.client.trials(job)
    }
    return {"trials": trials, "best": (best.trial, best.step, best.metric, best.config)}


def _in(served: Served, job: str, state: str) -> Job | None:
    found = served.client.job(job)
    return found if found.state == state else None


def _busy_children(served: Served) -> list[psutil.Process]:
    """Return the children of the fork servers that have used CPU time, which run user code."""
    servers = [p for worker in served.workers() for p in children(worker) if "fork_server" in line(p)]
    return [p for server in servers for p in children(server) if _cpu_s(p) > 0.5]


def _cpu_s(process: psutil.Process) -> float:
    try:
        return float(process.cpu_times().user)
    except psutil.Error:
        return 0.0
