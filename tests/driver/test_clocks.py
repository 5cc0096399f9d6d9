"""Test that setting the clock changes recorded times, but neither bills nor ends anything."""

from dataclasses import replace

import pytest

from tests.driver.looping import Job
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.calendar import Window
from tuner.domain.cost import Meter
from tuner.domain.money import Money
from tuner.domain.time import NS, Instant
from tuner.driver.deadlines import Deadlines
from tuner.driver.loop import SILENT_NS
from tuner.driver.messages import WorkerMessage
from tuner.simulator.worker import SimulatedClock

HOUR_NS = 3600 * NS
# 2023-11-14, 22:13:20 UTC, the start of a simulated clock.
EVENING = Window("22:00", "23:00")


def after(clock: SimulatedClock, ns: int) -> None:
    clock.after(ns, lambda: None)
    clock.run_next()


def hours(
    clock: SimulatedClock, *, wall_clock_ns: int | None = None, window: Window | None = None
) -> Deadlines:
    deadlines = Deadlines(clock, 0, window)
    deadlines.limit(Budget(usd=Money(1), wall_clock_ns=wall_clock_ns))
    return deadlines


@pytest.mark.parametrize("by_ns", [-HOUR_NS, HOUR_NS])
def test_clock_adjustment_does_not_end_the_job(by_ns: int) -> None:
    clock = SimulatedClock()
    limited = hours(clock, wall_clock_ns=60 * NS)
    clock.offset_ns += by_ns
    assert limited.left_ns() == 60 * NS
    assert limited.over(clock.now()) is None
    after(clock, 59 * NS)
    assert limited.over(clock.now()) is None
    after(clock, NS)
    assert limited.over(clock.now()) == ev.WallClockEnded(clock.now())


@pytest.mark.parametrize("by_ns", [-HOUR_NS, HOUR_NS])
def test_clock_adjustment_does_not_change_the_bill(by_ns: int) -> None:
    """The time since a lost worker was last heard of is measured by the monotonic clock."""
    job = Job()
    clock = job.loop._clock
    assert isinstance(clock, SimulatedClock)
    job.loop.node_assigned(job.trial, 2)
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": NS})))
    before = job.journal.account().posted
    clock.offset_ns += by_ns
    after(clock, 2 * NS)
    job.loop.lost(job.trial, 2, "gone")
    rate, ended = job.loop.leases[job.trial].rate, job.journal.tables.attempts[job.trial, 2]
    assert (
        job.journal.account().posted.usd.micro_usd - before.usd.micro_usd == rate.cost(3 * NS).usd.micro_usd
    )
    assert set(ended.costs) == {"restore", "lost"}


def test_earlier_of_wall_clock_and_window_limits_the_work() -> None:
    clock = SimulatedClock()
    to_eleven = EVENING.left_ns(clock.now())
    assert hours(clock).left_ns() is None
    assert hours(clock, window=EVENING).left_ns() == to_eleven
    assert hours(clock, window=EVENING, wall_clock_ns=HOUR_NS).left_ns() == to_eleven
    assert hours(clock, window=EVENING, wall_clock_ns=60 * NS).left_ns() == 60 * NS


def test_changed_wall_clock_limit_counts_from_job_start() -> None:
    job = Job()
    clock, budget = job.loop._clock, job.loop.state.budget
    assert isinstance(clock, SimulatedClock)
    after(clock, 50 * NS)
    for limit_ns in (60 * NS, 120 * NS):
        job.loop.budget_changed(replace(budget, wall_clock_ns=limit_ns))
        job.loop.tick()
        assert job.loop._deadlines.wall_clock_ns() == limit_ns - 50 * NS
        assert job.loop.state.ending is None
    after(clock, 69 * NS)
    job.loop.tick()
    assert job.loop.state.ending is None
    after(clock, NS)
    job.loop.tick()
    assert job.loop.state.ending is not None
    assert job.loop.state.ending.reason == "wall_clock"
    job.loop.budget_changed(budget)
    assert job.loop.state.ending is None, "more came before it was over"


def test_trial_that_the_wall_clock_refused_begins_when_the_limit_is_raised() -> None:
    class TwoTrials(Job):
        concurrency = 2

    job = TwoTrials()
    budget = job.loop.state.budget
    job.loop.budget_changed(replace(budget, wall_clock_ns=NS // 1000))
    job.trains(2, 2)
    assert job.world.begun[job.trial].attempt == 2
    assert job.loop.state.exhausted_limit == "wall_clock"
    job.loop.budget_changed(replace(budget, wall_clock_ns=HOUR_NS))
    assert job.world.begun[job.trial].attempt == 3


def test_refused_time_names_wall_clock_or_window_as_the_limit() -> None:
    clock = SimulatedClock()
    assert hours(clock, wall_clock_ns=60 * NS).binding_limit("wall_clock") == "wall_clock"
    assert hours(clock, window=EVENING).binding_limit("wall_clock") == "window"
    assert hours(clock, window=EVENING).binding_limit("budget_usd") == "budget_usd"
    assert hours(clock, window=EVENING, wall_clock_ns=60 * NS).binding_limit("wall_clock") == "wall_clock"
    assert hours(clock, window=EVENING, wall_clock_ns=2 * HOUR_NS).binding_limit("wall_clock") == "window"


def test_closed_window_returns_its_next_opening() -> None:
    clock = SimulatedClock()
    windowed = hours(clock, window=EVENING)
    assert windowed.over(clock.now()) is None
    opening = windowed.next_opening(clock.now())
    assert opening == Instant(EVENING.closing(clock.now()) + 23 * HOUR_NS)
    after(clock, EVENING.left_ns(clock.now()))
    assert windowed.over(clock.now()) == ev.WindowClosed(clock.now())
    assert hours(clock).next_opening(clock.now()) is None


def test_worker_is_overdue_if_silent_after_lease_end_or_stop() -> None:
    job = Job()
    clock = job.loop._clock
    assert isinstance(clock, SimulatedClock)
    assert job.loop.overdue() == [], "it has no machine"
    job.loop.node_assigned(job.trial, 2)
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": NS})))
    lease_ns = job.loop.leases[job.trial].lease_ns
    after(clock, lease_ns - NS + SILENT_NS)
    assert job.loop.overdue() == []
    after(clock, 1)
    assert job.loop.overdue() == [(job.trial, 2)]
    job.loop.progress(WorkerMessage(job.trial, 2, "running", Meter({"restore": 2 * NS})))
    assert job.loop.overdue() == []
    job.loop.handle_event(ev.ControlRequested(clock.now(), "cancel"))
    assert job.world.stopped == [job.trial]
    after(clock, SILENT_NS + 1)
    assert job.loop.overdue() == [(job.trial, 2)]
    job.loop.lost(job.trial, 2, "it was killed")
    assert job.loop.end is not None
    assert job.loop.end.state == "cancelled"
