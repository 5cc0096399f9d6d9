"""Test when a silent trial is considered to hang, and how long the lease of a new attempt must be."""

from tuner.domain import events as ev
from tuner.domain.cost import Meter
from tuner.domain.money import ZERO
from tuner.domain.time import Instant
from tuner.driver.pace import JobPace

S = 1_000_000_000


def hangs(pace: JobPace, *, trained_s: int = 0, overhead_s: int = 0, buys_s: int = 3600) -> str:
    return pace.hangs(trained_ns=trained_s * S, overhead_ns=overhead_s * S, buys_ns=buys_s * S)


def test_first_step_or_setup_may_take_an_eighth_of_the_budget() -> None:
    assert not hangs(JobPace(), trained_s=450, overhead_s=450)
    assert "450 s of training" in hangs(JobPace(), trained_s=451)
    assert "450 s of setting up" in hangs(JobPace(), overhead_s=451)


def test_trial_hangs_after_twenty_times_the_slowest_step() -> None:
    pace = JobPace()
    for seconds in (3, 5, 2):
        pace.stepped("trial_00000", seconds * S)
    assert not hangs(pace, trained_s=100)
    assert hangs(pace, trained_s=101)


def test_new_trial_needs_the_shortest_observed_setup_and_step() -> None:
    """A busy machine or an attempt that stopped early does not change it."""
    pace = JobPace()
    pace.stepped("trial_00000", 4 * S)
    for setup_s, train_s in ((2, 4), *[(9, 4)] * 20, (1, 0)):
        meter = Meter({"setup": setup_s * S, "train": train_s * S})
        pace.ended("trial_00000", meter, warming_ns=0, outage_ns=0, starved=False)
    assert pace.begin_need_ns("trial_00001") == (2 + 5) * S


def test_new_driver_expects_its_workers_to_warm_up_until_an_attempt_has_ended() -> None:
    """New workers of earlier drivers warmed up in 9 to 100 seconds. Apart from that, attempts started in one to three seconds. During
    the last start, the storage failed for more than 20 s."""
    pace, at = JobPace(), Instant(0)
    for start_s, warming_s in ((102, 100), (13, 11), (10, 9), (1, 0), (3, 0), (0, 0), (10, 30)):
        times = {"train_ns": 4 * S, "start_ns": start_s * S, "warming_ns": warming_s * S}
        pace.recall(ev.Reported(at, "trial_00000", 1, 0.5, ZERO, **times))
    pace.recall(ev.Reported(at, "trial_00000", 1, 0.5, ZERO, train_ns=0))  # a message that came twice
    pace.recall(ev.Completed(at, "trial_00000"))
    for trial in ("trial_00000", "trial_00001"):
        assert pace.begin_need_ns(trial) == (1 + 9 + 5) * S
        assert pace.begin_need_ns(trial, warms_up=False) == (1 + 5) * S
    assert hangs(pace, trained_s=20 * 4 + 1)
    meter = Meter({"setup": 11 * S, "train": 4 * S})
    pace.ended("trial_00001", meter, warming_ns=10 * S, outage_ns=0, starved=False)
    assert pace.begin_need_ns("trial_00001") == (1 + 5) * S


def test_recorded_starts_do_not_limit_the_time_of_a_save() -> None:
    """The earlier driver may have seen saves that took longer than any start."""
    known, pace = JobPace(), JobPace()
    pace.recall(ev.Reported(Instant(0), "trial_00000", 1, 0.5, ZERO, train_ns=S, start_ns=2 * S))
    for seconds in (121, 10**6):
        assert hangs(pace, overhead_s=seconds) == hangs(known, overhead_s=seconds)


def test_quick_steps_do_not_limit_the_setup_time() -> None:
    pace = JobPace()
    pace.stepped("trial_00000", S // 10)
    assert hangs(pace, trained_s=31)
    assert not hangs(pace, overhead_s=100)
    pace.ended("trial_00000", Meter({"setup": 60 * S}), warming_ns=0, outage_ns=0, starved=False)
    assert not hangs(pace, overhead_s=1200)
    assert hangs(pace, overhead_s=1201)


def test_storage_outage_does_not_extend_hang_limits() -> None:
    """Otherwise a trial that hangs later would be waited for, and paid for, twenty times as long as the outage
    lasted.
    """
    pace = JobPace()
    meter = Meter({"restore": 101 * S, "train": S})
    pace.ended("trial_00000", meter, warming_ns=0, outage_ns=100 * S, starved=False)
    assert hangs(pace, overhead_s=121)
    assert pace.longest_overhead_ns == pace.least_overhead_ns == S
