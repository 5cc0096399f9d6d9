"""Whole jobs on recorded markets: the table has a row for each condition."""

import pytest

from benchmarks.spot_jobs import Case, costs, in_time
from benchmarks.spot_replay.tracks import Track
from tuner.domain.time import HOUR_NS
from tuner.simulator.traces import Trace


def test_each_condition_has_a_row_and_the_deadline_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Trace("made", ((0, 3 * HOUR_NS, 2), (3 * HOUR_NS, 4 * HOUR_NS, 1), (4 * HOUR_NS, 9 * HOUR_NS, 0)))
    cases = [Case(Track("made", f"made/{slot}", fleet, 2, slot), 2 * HOUR_NS, 60) for slot in range(2)]
    costs(cases)
    in_time(cases, 0.1)
    printed = capsys.readouterr().out
    for name in ("ours", "every_15m", "every_30m", "from_zero", "with fallback", "on_demand"):
        assert f"| {name} | 100% |" in printed
    assert "| 10% | 2 of 2 |" in printed
