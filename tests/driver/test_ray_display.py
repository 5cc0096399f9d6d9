"""Test which texts Ray's dashboard shows for the workers, with the real loop and without Ray."""

import time
from queue import SimpleQueue

import pytest

from tests.driver.looping import Job
from tests.driver.test_recovery import report
from tuner.domain.cost import Meter, total
from tuner.domain.money import Money
from tuner.domain.time import NS
from tuner.driver import ray_display
from tuner.driver.messages import WorkerMessage
from tuner.driver.ray_display import WORKERS_EVERY_S, RayDisplay


def test_worker_shows_its_trials_cost_and_is_forgotten_when_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entries of the running attempt are never read, and those of an ended one only once."""
    job, read = Job(), list[tuple[str, int]]()
    shown: SimpleQueue[dict[bytes, str]] = SimpleQueue()
    monkeypatch.setattr(ray_display, "publish_reprs", shown.put)

    def cost_of(trial: str, attempt: int) -> Money:
        read.append((trial, attempt))
        return total(job.journal.tables.bills[trial, attempt]).usd

    display, now = RayDisplay("search", "job_0-1", job.loop, dict, cost_of), 0.0
    display.assign(b"actor", job.trial, 2)
    for seconds in (3, 7, 8):
        report(job, 2, seconds, seconds)
        now += WORKERS_EVERY_S
        display.turn(now)
        spent = job.journal.account().posted.usd + job.loop.leases[job.trial].unposted()
        text = f"search: {job.trial}, attempt 2, step {seconds}, ${spent.usd:.6f}"
        assert shown.get(timeout=60) == {b"actor": text}
    assert job.loop.leases[job.trial].posted
    assert read == [(job.trial, 1)]
    job.loop.progress(WorkerMessage(job.trial, 2, "preempted", Meter({"setup": NS, "train": 9 * NS})))
    display.turn(now + WORKERS_EVERY_S)
    assert shown.get(timeout=60) == {b"actor": "search: idle"}
    until = time.monotonic() + 60
    while (display._runs or display._shown) and time.monotonic() < until:
        now += WORKERS_EVERY_S
        display.turn(now)
        time.sleep(0.01)
    assert not display._runs
    assert not display._shown
    display.close()
