"""The replay of spot markets gives the cost of a training as calculated by hand."""

from pathlib import Path

import pytest

from benchmarks.spot_replay.__main__ import Case, mean_up_ns, with_deadline, without_deadline
from benchmarks.spot_replay.policies import (
    AUTO,
    NO_DEADLINE,
    ON_DEMAND_ONLY,
    WITH_DEADLINE,
    WITHOUT_NOTICE,
    Policy,
)
from benchmarks.spot_replay.replay import Outcome, Replay, Training, uninterrupted
from benchmarks.spot_replay.tracks import Market, Track, load
from tuner.domain.time import HOUR_NS, NS
from tuner.simulator.traces import Trace, UpTimes
from tuner.tuning.placement import choose

MINUTE = 60 * NS
FOR_GOOD = [UpTimes(0, None)]
PLAIN = Training(2 * HOUR_NS, missed=0)


def replayed(
    policy: Policy, ups: list[UpTimes], training: Training = PLAIN, deadline_ns: int | None = None
) -> Outcome:
    return Replay(training, Market(iter(ups)), policy, deadline_ns, "seed").run(100 * HOUR_NS)


def spot(*minutes: int) -> list[UpTimes]:
    """Build periods that alternate between up and down, and end up for good."""
    changes = [0, *minutes]
    ends: list[int | None] = [end * MINUTE for end in minutes[::2]]
    begins = [begin * MINUTE for begin in changes[::2]]
    return [UpTimes(a, b) for a, b in zip(begins, [*ends, None], strict=True)]


def test_uninterrupted_training_adds_only_the_time_of_saves() -> None:
    never = replayed(Policy("never", choose, every_ns=0, notices=False), FOR_GOOD)
    assert never.finished_ns == (5 + 120) * MINUTE + 20 * NS
    saved = replayed(Policy("15", choose, every_ns=15 * MINUTE), FOR_GOOD)
    assert saved.finished_ns == never.finished_ns + 7 * 2 * NS
    assert uninterrupted(PLAIN).micro_usd < saved.cost.micro_usd < 1.01 * uninterrupted(PLAIN).micro_usd


def test_preemption_costs_the_unsaved_steps_and_a_restart() -> None:
    """Up for 48 min: 5 to start and 43 of training, of which two quarters of an hour were saved."""
    ups = spot(48, 60)
    deaf = replayed(Policy("15", choose, every_ns=15 * MINUTE, notices=False), ups)
    assert deaf.preemptions == 1
    assert deaf.lost_ns == 12 * MINUTE  # the whole steps in 12 min and 56 s
    assert deaf.finished_ns == (60 + 5 + 90) * MINUTE + 5 * 2 * NS + 20 * NS
    zero = replayed(Policy("zero", choose, every_ns=0, notices=False), ups)
    assert zero.finished_ns == (60 + 5 + 120) * MINUTE + 20 * NS


def test_preemption_notice_prevents_the_loss_of_steps() -> None:
    ups = spot(48, 60)
    warned, deaf = replayed(AUTO, ups), replayed(WITHOUT_NOTICE, ups)
    assert warned.lost_ns == 0
    assert warned.preemptions == deaf.preemptions == 1
    assert warned.cost < deaf.cost
    missed = replayed(AUTO, ups, Training(2 * HOUR_NS, missed=1))
    assert missed.lost_ns > 0


def test_waiting_for_spot_costs_nothing() -> None:
    late = replayed(AUTO, [UpTimes(10 * HOUR_NS, None)])
    at_once = replayed(AUTO, FOR_GOOD)
    assert late.cost == at_once.cost
    assert late.finished_ns == 10 * HOUR_NS + (at_once.finished_ns or 0)


@pytest.mark.parametrize("spare_min", [0, 10, 30, 60, 300])
@pytest.mark.parametrize("ups", [FOR_GOOD, spot(10, 50, 60, 70, 75, 200), [UpTimes(10 * HOUR_NS, None)]])
def test_policies_with_a_deadline_meet_it(ups: list[UpTimes], spare_min: int) -> None:
    demand = replayed(ON_DEMAND_ONLY, ups)
    assert demand.finished_ns is not None
    deadline = demand.finished_ns + spare_min * MINUTE
    for policy in WITH_DEADLINE[:2]:
        run = replayed(policy, ups, deadline_ns=deadline)
        assert run.finished_ns is not None
        assert run.finished_ns <= deadline


def test_trace_files_are_read_as_tracks_of_single_trainings(tmp_path: Path) -> None:
    hour = 3600
    (tmp_path / "skypilot_cant_be_late.csv").write_text(
        "trace_id,start_s,end_s,available\n"
        f"availability-1n-a,0,{10 * hour},1\navailability-1n-a,{10 * hour},{20 * hour},0\n"
        f"preemption-4n-b,0,{20 * hour},3\npreemption-4n-b,{20 * hour},{21 * hour},4\n"
        f"availability-1n-none,0,{20 * hour},0\n"
    )
    (tmp_path / "bamboo_parcae_counts.csv").write_text(
        f"trace_id,time_s,available\nfleet,0,4\nfleet,{5 * hour},2\nfleet,{10 * hour},2\nparcae,0,1\nparcae,{hour},1\n"
    )
    (tmp_path / "stanford_2020_instance_lifetimes.csv").write_text(
        "log,slot,created_at,ended_at\n"
        "l,s,2020-01-01T00:00:00Z,2020-01-01T06:00:00Z\nl,s,2020-01-01T07:00:00Z,2020-01-01T10:00:00Z\n"
    )
    tracks = {track.name: track for track in load(tmp_path)}
    assert set(tracks) == {"availability-1n-a", "preemption-4n-b", *(f"fleet/{n}" for n in range(4)), "l/s"}
    assert mean_up_ns(tracks["availability-1n-a"]) == 10 * HOUR_NS
    assert tracks["preemption-4n-b"].market(0).next_change(0) == 20 * HOUR_NS
    assert tracks["fleet/3"].market(0).next_change(0) == 5 * HOUR_NS
    assert tracks["l/s"].market(0).up_until(6 * HOUR_NS + 1) is None
    assert tracks["l/s"].market(8 * HOUR_NS).up_until(0) == (2 + 6) * HOUR_NS  # a trace that ends starts over


def test_tables_have_a_row_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    track = Track("made", "made", Trace("made", ((0, 3 * HOUR_NS, 1), (3 * HOUR_NS, 4 * HOUR_NS, 0))))
    cases = [Case(track, start * HOUR_NS, PLAIN) for start in range(3)]
    without_deadline(cases)
    with_deadline(cases, 0.7)
    printed = capsys.readouterr().out
    for policy in (*NO_DEADLINE, *WITH_DEADLINE):
        assert f"| {policy.name} |" in printed
    assert "| 0.70 | ours: uniform progress, auto | 3 of 3 |" in printed


def test_no_policy_costs_less_than_the_lower_bound() -> None:
    track = Track("made", "made", Trace("made", ((0, HOUR_NS, 1), (HOUR_NS, 2 * HOUR_NS, 0))))
    case = Case(track, 0, PLAIN)
    deadline = 3 * HOUR_NS
    for policy in WITH_DEADLINE[:2]:
        assert case.run(policy, deadline).cost.micro_usd >= case.least_cost(deadline)
