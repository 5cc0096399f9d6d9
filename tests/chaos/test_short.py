"""Run one service with SQLite and its own Ray under a few faults of a fixed seed, and recompute all results
afterwards.
"""

from pathlib import Path

import pytest

from tests.chaos.history import History
from tests.chaos.plan import chosen
from tests.chaos.supervisor import Run, run

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(900)]

FAULTS = ("kill service", "kill driver", "kill worker", "stop driver", "disk full", "restart service")


def test_faults_of_a_seed_break_no_rule(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    try:
        asked = Run(
            seed=73,
            seconds=8,
            faults=chosen(FAULTS),
            with_postgres=False,
            at_once=1,
            every_s=3.0,
            usd=(0.0005, 0.0006),
        )
        outcome = run(asked, history)
    finally:
        history.close()
    print("\n".join(outcome.lines))
    assert outcome.broken == []
    assert outcome.process_faults >= 2
    assert outcome.jobs >= 1
