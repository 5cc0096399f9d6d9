"""A backup is made while a job trains on a real Ray, and its database is lost: in its place, and with all of its machine."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import books
from tests.system.books import micro
from tests.system.serving import Served, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
BUDGET = {"usd": 1.0, "trials": 16}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("machine") / "home")
    yield found
    if hasattr(found, "client"):
        found.stop()


@pytest.fixture
def served(machine: Served) -> Served:
    if not hasattr(machine, "process") or machine.process.poll() is not None:
        machine.start()
    return machine


@pytest.fixture
def job(served: Served, tmp_path: Path) -> str:
    """One that reported before `backup` was made of it, and goes on."""
    slow = {"step_s": 1.0, "hurry": str(tmp_path / "hurry")}
    job = served.submit("steady:train", budget=BUDGET, constants=slow).id
    served.reports_at_least(job, 2)
    made = served.tuner("backup", str(tmp_path / "backup"))
    assert made.returncode == 0, made.stderr
    served.reports_at_least(job, served.client.job(job).progress.steps + 3)
    return job


def goes_on(served: Served, job: str, hurry: Path) -> int:
    """To its end, with books that are right; what that cost, in micro-dollars."""
    before = served.client.job(job)
    assert (before.state, before.spend.held_usd) == ("paused", 0)
    assert "restored from the backup" in before.detail
    hurry.touch()
    served.client.resume(job)
    ended = served.finished(job)
    assert (ended.state, ended.stop_reason) == ("succeeded", "trials"), ended.detail
    assert ended.progress.steps > before.progress.steps > 0
    books.check(served.client, job)
    return micro(ended.spend.usd) - micro(before.spend.usd)


def test_a_driver_that_runs_through_a_restore_ends_and_its_job_goes_on(
    served: Served, job: str, tmp_path: Path
) -> None:
    before = served.client.job(job).spend.usd
    assert served.drivers(job)
    served.kill_api()
    said = until("nobody leads any more", lambda: _restored(served, tmp_path / "backup", "--replace"))
    assert f"{job}  test  was running" in said
    until("the driver of before has ended", lambda: not served.drivers(job) and not served.workers())
    served.start()
    restored = served.client.job(job)
    assert restored.spend.usd >= before, "what was spent after the backup is not forgotten"
    assert served.client.bill(job).restored_usd > 0
    goes_on(served, job, tmp_path / "hurry")


def test_a_job_of_a_machine_that_is_gone_goes_on_elsewhere_and_never_passes_its_budget(
    served: Served, job: str, tmp_path: Path
) -> None:
    served.stop()
    with sqlite3.connect(served.home / "tuner.db") as db:
        query = "SELECT posted_usd + held_usd FROM accounts WHERE job = ?"
        (paid,) = db.execute(query, (job,)).fetchone()
    elsewhere = Served(tmp_path / "elsewhere", TUNER_STORAGE=served.storage)
    said = _restored(elsewhere, tmp_path / "backup")
    assert f"{job}  test  was running" in said
    elsewhere.start()
    try:
        shown = elsewhere.client.job(job)
        left = micro(shown.budget["usd"]) - micro(shown.spend.usd)
        assert 0 < left <= micro(BUDGET["usd"]) - paid
        assert paid + goes_on(elsewhere, job, tmp_path / "hurry") <= micro(BUDGET["usd"])
    finally:
        elsewhere.stop()


def _restored(served: Served, backup: Path, *words: str) -> str:
    """What it says; nothing where it is refused."""
    return served.tuner("restore", str(backup), *words).stdout
