"""Restore backups that were made while a job trained on a real Ray cluster, after the loss of the database and
then of the whole machine.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import books
from tests.system.books import micro
from tests.system.serving import Served, until
from tuner.database.sqlite import sqlite3
from tuner.schemas.job import Job

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
USD = 1.0


@pytest.fixture
def elsewhere(breakable: Served, tmp_path: Path) -> Iterator[Served]:
    """A service on another machine that uses the same storage."""
    shared = {name: value for name, value in breakable.environment.items() if name.startswith("AWS_")}
    service = Served(tmp_path / "elsewhere", TUNER_STORAGE=breakable.storage, **shared)
    yield service
    service.stop()


@pytest.mark.parametrize("also_elsewhere", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_job_resumes_after_each_restore_within_its_budget(
    breakable: Served, elsewhere: Served, tmp_path: Path, also_elsewhere: bool
) -> None:
    slow = {"step_s": 2.0, "speed_up": str(tmp_path / "speed_up")}
    job = breakable.submit("steady:train", budget={"usd": USD, "trials": 12}, constants=slow).id
    before = backed_up(breakable, job, tmp_path / "first")
    breakable.kill_api()
    assert breakable.drivers(job), "its driver goes on"
    until("no service leads any more", lambda: restored(breakable, job, tmp_path / "first", "--replace"))
    until("the driver of before ends", lambda: not breakable.drivers(job) and not breakable.workers())
    breakable.start()
    shown = paused(breakable, job)
    assert shown.spend.usd >= before.spend.usd, "what was spent after the backup is not forgotten"
    assert breakable.client.bill(job).restored_usd > 0
    paid, service = micro(shown.spend.usd), breakable

    if also_elsewhere:
        breakable.client.resume(job)
        backed_up(breakable, job, tmp_path / "second")
        breakable.stop()
        paid = spent_until(time.time_ns(), breakable.home / "tuner.db", job)
        assert restored(elsewhere, job, tmp_path / "second")
        service = elsewhere.start()
        shown = paused(service, job)
        assert micro(shown.budget["usd"]) == micro(shown.spend.usd), "it may have spent the rest"
        left = micro(USD) - paid  # an operator who knows what was spent raises the budget by what is left
        service.client.patch(job, budget={"usd": (micro(shown.spend.usd) + left) / 1e6})
    (tmp_path / "speed_up").touch()
    service.client.resume(job)
    ended = service.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    books.check(service.client, job)
    assert paid + micro(ended.spend.usd) - micro(shown.spend.usd) <= micro(USD)


def backed_up(served: Served, job: str, file: Path) -> Job:
    """Make a backup between two reports, wait for another report, and return the job."""
    until("it reports", lambda: served.client.job(job).progress.steps)
    seen = served.client.job(job).progress.steps
    made = served.tuner("backup", str(file))
    assert made.returncode == 0, made.stderr
    served.reports_at_least(job, seen + 1)
    return served.client.job(job)


def restored(served: Served, job: str, file: Path, *words: str) -> bool:
    """Restore a backup, and return whether the command lists the job as running at the backup."""
    done = served.tuner("restore", str(file), *words)
    assert done.returncode == (not done.stdout), done.stderr
    return f"{job}  test  was running" in done.stdout


def paused(served: Served, job: str) -> Job:
    """Return the job after a restore. It holds no money and has kept what it learned."""
    paused_job = served.client.job(job)
    assert (paused_job.state, paused_job.spend.held_usd) == ("paused", 0)
    assert "restored from the backup" in paused_job.detail
    assert paused_job.progress.steps
    return paused_job


def spent_until(stopped_ns: int, database: Path, job: str) -> int:
    """Return the upper bound of the spend in micro-dollars: what was posted, plus the share of each open hold
    up to the time when everything was stopped.
    """
    with sqlite3.connect(database) as db:
        (posted,) = db.execute("SELECT posted_usd FROM accounts WHERE job = ?", (job,)).fetchone()
        query = "SELECT usd, placed_at, ends_at FROM holds WHERE job = ? AND state = 'open'"
        held = db.execute(query, (job,)).fetchall()
    used = [usd * (min(stopped_ns, end) - begin) // (end - begin) for usd, begin, end in held]
    return int(posted + sum(used))
