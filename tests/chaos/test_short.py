"""A short run: one service with SQLite and its own Ray, a few faults of a fixed seed, and all results
recomputed afterwards.
"""

from pathlib import Path

import pytest

from tests.chaos.history import History
from tests.chaos.plan import chosen
from tests.chaos.supervisor import Run, run

pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(900)]

FAULTS = ("kill service", "kill driver", "kill worker", "stop driver", "disk full", "restart service")


def test_nothing_is_lost_doubled_or_overspent_under_the_faults_of_a_seed(tmp_path: Path) -> None:
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
    print("\n".join(outcome.said))
    assert outcome.broken == []
    assert outcome.process_faults >= 2
    assert outcome.jobs >= 1
