"""Test that a process may end before or after any commit: nothing is lost or doubled, and no budget is
overspent.
"""

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from tuner.store.failpoints import FAILPOINTS, SIDES

ROOT = Path(__file__).parents[2]
#: Commits that run different SQL on PostgreSQL and SQLite, one of each kind. The others differ only in the
#: dialect.
DIFFERENT = (
    "schema.migrate",  # an advisory lock and lock timeouts
    "job.submit",  # an advisory lock per Idempotency-Key
    "budget.put",  # a table lock that waits for drivers
    "member.put",  # row locks
    "leading.term",  # a savepoint around the first insert
    "controller.relaunch",  # a leader's write: a shared lock on its term, and a timeout
    "driver.turn",  # row locks on the launch, the account and the budgets above it; holds and ledger entries
    "gate.settle",  # the same, outside of a turn
    "restore.books",  # tables that pg_restore has filled
)


def test_process_may_end_at_any_commit_on_sqlite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end_at_each(FAILPOINTS, "sqlite", tmp_path, capsys)


@pytest.mark.needs("postgresql")
def test_process_may_end_at_a_commit_with_other_sql_on_postgresql(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end_at_each(DIFFERENT, postgres_url, tmp_path, capsys)


@pytest.mark.extended
@pytest.mark.needs("postgresql")
def test_process_may_end_at_any_commit_on_postgresql(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end_at_each(FAILPOINTS, postgres_url, tmp_path, capsys)


def end_at_each(
    failpoints: Collection[str], url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "tests.failpoints.matrix", url, str(folder), *failpoints]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = found.pop("wrong")
    with capsys.disabled():
        print(f"\nfailpoints, {url.partition(':')[0]}: {found}")
    assert wrong == [], done.stderr[-4000:]
    assert found["not_passed"] == [], "add these commits to a chapter of tests/failpoints/chapters.py"
    assert found["failpoints"] == len(failpoints)
    assert found["crashes"] >= len(failpoints) * len(SIDES)
    assert found["lost"] == found["doubled"] == found["over_micro_usd"] == found["not_ended"] == 0
    assert found["jobs"] > 0 < found["reports"]
