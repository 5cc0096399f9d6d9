"""Test that a process may end before or after any commit: nothing is lost or doubled, and no budget is
overspent.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tuner.database.failpoints import FAILPOINTS, SIDES

ROOT = Path(__file__).parents[2]
Matrix = subprocess.Popen[str]
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
    "self_test.settle",  # the same, outside of a driver's turn
    "restore.accounts",  # tables that pg_restore has filled
)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """Start one process for both databases, because starting it costs as much as ten crashes."""
    command = [sys.executable, "-m", "tests.failpoints.matrix", str(tmp_path_factory.mktemp("matrix"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def test_process_may_end_at_any_commit_on_sqlite(
    matrix: Matrix, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gate ends a process on one side of each commit, and the full run on both."""
    end_at_each(FAILPOINTS, None if pytestconfig.option.all else 0, "sqlite", matrix, capsys)


@pytest.mark.needs("postgresql")
def test_process_may_end_at_any_commit_on_postgresql(
    matrix: Matrix, postgres_url: str, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gate ends a process at the commits with other SQL, on the side that it omits on SQLite."""
    names, share = (FAILPOINTS, None) if pytestconfig.option.all else (DIFFERENT, 1)
    end_at_each(names, share, postgres_url, matrix, capsys)


def end_at_each(
    failpoints: Collection[str],
    share: int | None,
    url: str,
    matrix: Matrix,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert matrix.stdin is not None
    assert matrix.stdout is not None
    matrix.stdin.write(json.dumps({"url": url, "names": [*failpoints], "share": share}) + "\n")
    matrix.stdin.flush()
    summary = json.loads(matrix.stdout.readline())
    wrong = summary.pop("wrong")
    with capsys.disabled():
        print(f"\nfailpoints, {url.partition(':')[0]}: {summary}")
    assert wrong == []
    assert summary["not_passed"] == [], "add these commits to a chapter of tests/failpoints/chapters.py"
    assert summary["failpoints"] == len(failpoints)
    assert summary["crashes"] >= len(failpoints) * (len(SIDES) if share is None else 1)
    assert summary["lost"] == summary["doubled"] == summary["over_micro_usd"] == summary["not_ended"] == 0
    assert summary["jobs"] > 0 < summary["reports"]
