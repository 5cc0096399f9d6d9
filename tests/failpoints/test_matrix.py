"""Nothing is lost or doubled, and nothing spent over a budget, wherever a process ends: before and after every commit."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import postgres
from tuner.store.failpoints import FAILPOINTS, SIDES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as stack:
        yield "sqlite" if request.param == "sqlite" else stack.enter_context(postgres.server())


@pytest.mark.parametrize(
    "server",
    [
        "sqlite",
        pytest.param(
            "postgresql", marks=pytest.mark.skipif(postgres.programs() is None, reason="no PostgreSQL")
        ),
    ],
    indirect=True,
)
def test_a_process_may_end_at_any_commit(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [sys.executable, "-m", "tests.failpoints.matrix", server, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wrong = found.pop("wrong")
    with capsys.disabled():
        print(f"\nfailpoints, {server.partition(':')[0]}: {found}")
    assert wrong == [], done.stderr[-4000:]
    assert found["not_passed"] == [], "have a chapter of tests/failpoints/chapters.py pass these commits"
    assert found["failpoints"] == len(FAILPOINTS)
    assert found["crashes"] >= len(FAILPOINTS) * len(SIDES)
    assert found["lost"] == found["doubled"] == found["over_micro_usd"] == found["not_ended"] == 0
    assert found["jobs"] > 0 < found["reports"]
