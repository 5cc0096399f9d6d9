"""Test how often checkpoints are saved, against the papers, against numeric minimisation, and at the bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.domain.checkpointing import (
    CRASH_MEAN_NS,
    SPOT_MEAN_NS,
    Hazard,
    InterruptionRisk,
    Notices,
    SaveTimes,
    daly_ns,
    saves_on_notice,
    steps_between,
)
from tuner.domain.time import HOUR_NS, NS

MINUTE_NS = 60 * NS
any_ns = st.integers(0, 2**62)
times = st.integers(1, 30 * 24 * HOUR_NS)


def run_time(interval: float, cost: float, mean: float) -> float:
    """Return the expected run time of a unit of work under exponential failures (Daly 2006, equation 20),
    without restarts.
    """
    return mean * math.expm1((interval + cost) / mean) / interval


def young_ns(stall_ns: int, mean_ns: int) -> int:
    """Return the training time between saves, to first order (Young 1974)."""
    return math.isqrt(2 * stall_ns * mean_ns)


def spot(mean_ns: int = SPOT_MEAN_NS, notice_ns: int | None = None) -> InterruptionRisk:
    return InterruptionRisk(preemption=Hazard(mean_ns), notice_ns=notice_ns)


@pytest.mark.parametrize(("mean_min", "published_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_interval_matches_published_daly_values(mean_min: int, published_min: float) -> None:
    """The values are from the captions of Daly's figures 3 to 5, for dumps of 5 minutes."""
    assert daly_ns(5 * MINUTE_NS, mean_min * MINUTE_NS) / MINUTE_NS == pytest.approx(published_min, rel=0.006)


@pytest.mark.parametrize("part", [1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.5, 1, 1.9])
def test_daly_interval_matches_numeric_minimum_of_run_time(part: float) -> None:
    from scipy.optimize import minimize_scalar  # takes half a second

    mean = HOUR_NS
    cost = round(part * mean)
    best = minimize_scalar(run_time, bounds=(1e-5 * mean, 2 * mean), args=(cost, mean), options={"xatol": 1})
    interval_ns = daly_ns(cost, mean)
    assert run_time(interval_ns, cost, mean) <= best.fun * 1.002
    assert interval_ns == pytest.approx(best.x, rel=0.06)
    if part <= 0.1:
        assert interval_ns == pytest.approx(best.x, rel=0.005)


def test_young_and_daly_agree_for_cheap_saves() -> None:
    assert daly_ns(2 * NS, 2 * HOUR_NS) == pytest.approx(young_ns(2 * NS, 2 * HOUR_NS), rel=0.01)


@given(any_ns, st.integers(1, 2**62), any_ns, any_ns, st.one_of(st.none(), any_ns), st.booleans())
def test_intervals_are_defined_for_all_inputs(
    step_ns: int, mean_ns: int, stall_ns: int, durable_ns: int, notice_ns: int | None, is_spot: bool
) -> None:
    exposure = spot(mean_ns, notice_ns) if is_spot else InterruptionRisk(crash=Hazard(mean_ns))
    assert steps_between(step_ns=step_ns, saving=SaveTimes(stall_ns, durable_ns), risk=exposure) >= 1
    assert 0 <= daly_ns(stall_ns, mean_ns) <= max(mean_ns, young_ns(stall_ns, mean_ns))


@given(times, times, times, times)
def test_longer_stalls_never_make_saves_more_frequent(
    step_ns: int, mean_ns: int, one_ns: int, other_ns: int
) -> None:
    few, many = (
        steps_between(step_ns=step_ns, saving=SaveTimes(stall_ns, 0), risk=spot(mean_ns))
        for stall_ns in sorted((one_ns, other_ns))
    )
    assert few <= many


@given(times, times, times, times, st.one_of(st.none(), st.integers(0, 600 * NS)))
def test_rarer_preemptions_never_make_saves_more_frequent(
    step_ns: int, stall_ns: int, one_ns: int, other_ns: int, notice_ns: int | None
) -> None:
    few, many = (
        steps_between(step_ns=step_ns, saving=SaveTimes(stall_ns, 0), risk=spot(mean_ns, notice_ns))
        for mean_ns in sorted((one_ns, other_ns))
    )
    assert few <= many


@given(times, times, times, times)
def test_stalls_take_at_most_a_twentieth_and_saves_do_not_overlap(
    step_ns: int, mean_ns: int, stall_ns: int, durable_ns: int
) -> None:
    steps = steps_between(step_ns=step_ns, saving=SaveTimes(stall_ns, durable_ns), risk=spot(mean_ns))
    assert 20 * stall_ns <= steps * step_ns
    assert durable_ns <= steps * step_ns


@given(times, times, times, st.one_of(st.none(), times))
def test_interval_of_cheap_saves_is_at_most_a_tenth_of_mean_time_between_losses(
    step_ns: int, mean_ns: int, stall_ns: int, notice_ns: int | None
) -> None:
    exposure = spot(mean_ns, notice_ns)
    steps = steps_between(step_ns=step_ns, saving=SaveTimes(stall_ns, 0), risk=exposure)
    forced = max(1, -(-20 * stall_ns // step_ns))
    assert steps <= max(forced, exposure.mean_ns // 10 // step_ns)


def test_notice_is_relied_on_only_if_step_and_save_fit_into_it() -> None:
    assert saves_on_notice(120 * NS, 60 * NS, 55 * NS)
    assert not saves_on_notice(120 * NS, 60 * NS, 56 * NS)
    assert not saves_on_notice(30 * NS, 26 * NS, 0)
    assert not saves_on_notice(None, 1, 0)


def test_saves_are_rarer_if_notices_are_long_enough() -> None:
    saving = SaveTimes(2 * NS, 20 * NS)
    noticed, unnoticed = (
        steps_between(step_ns=NS, saving=saving, risk=spot(notice_ns=notice_ns))
        for notice_ns in (120 * NS, None)
    )
    # one notice in ten is assumed to be missed
    assert noticed == pytest.approx(unnoticed * math.sqrt(10), rel=0.05)


@pytest.mark.parametrize("step_s", [10, 15, 18, 20, 26, 30, 600])
def test_every_step_is_saved_if_notice_is_too_short_for_step_and_save(step_s: int) -> None:
    """Saving every step means that no finished step is lost with the machine."""
    saving, step_ns = SaveTimes(NS // 10, NS // 2), step_s * NS
    assert steps_between(step_ns=step_ns, saving=saving, risk=spot(notice_ns=15 * NS)) == 1
    assert steps_between(step_ns=9 * NS, saving=saving, risk=spot(notice_ns=15 * NS)) > 1


def test_stall_and_overlap_limits_hold_with_short_notice() -> None:
    for saving, steps in ((SaveTimes(2 * NS, 3 * NS), 3), (SaveTimes(NS // 2, 50 * NS), 4)):
        assert steps_between(step_ns=15 * NS, saving=saving, risk=spot(notice_ns=15 * NS)) == steps


def test_notice_counts_for_the_steps_that_fit_into_it() -> None:
    """Steps take 20, 40 and 80 s. A save takes 30 s and a reaction 5 s, so 20 s of the notice are left: enough
    for all, half, or a quarter of the steps.
    """
    saving, mean = SaveTimes(2 * NS, 30 * NS), SPOT_MEAN_NS
    exposure = InterruptionRisk(
        preemption=Hazard(mean), crash=Hazard(2**80), notice_ns=55 * NS, notices=Notices(2**60, missed=1)
    )
    unnotified = [mean / exposure.unsaved_mean_ns(step_s * NS, saving) for step_s in (20, 40, 80)]
    assert unnotified == pytest.approx([0, 0.5, 0.75], abs=1e-6)
    nothing = exposure.unsaved_mean_ns(20 * NS, SaveTimes(2 * NS, 50 * NS))
    assert nothing == exposure.mean_ns


def test_missed_notices_shorten_the_interval() -> None:
    saving, intervals = SaveTimes(2 * NS, 20 * NS), []
    for missed in range(20):
        notices = Notices(10 + missed, 1 + missed)
        exposure = InterruptionRisk(preemption=Hazard(SPOT_MEAN_NS), notice_ns=120 * NS, notices=notices)
        intervals.append(steps_between(step_ns=NS, saving=saving, risk=exposure))
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[-1] < intervals[0] / 2


def test_hazard_combines_prior_with_observed_time_and_events() -> None:
    fresh = Hazard.of_spot()
    assert fresh.mean_ns == SPOT_MEAN_NS
    assert fresh.after(10 * HOUR_NS).mean_ns == 12 * HOUR_NS
    assert fresh.after(10 * HOUR_NS, 1).mean_ns == 6 * HOUR_NS


@given(st.integers(1, 10_000), times)
def test_observed_preemptions_outweigh_the_prior(events: int, mean_ns: int) -> None:
    posterior_ns = Hazard.of_spot().after(events * mean_ns, events).mean_ns
    assert abs(posterior_ns - mean_ns) * (events + 1) <= abs(SPOT_MEAN_NS - mean_ns) + events + 1


def test_on_demand_interval_depends_only_on_crashes() -> None:
    saving = SaveTimes(2 * NS, 20 * NS)
    steps = steps_between(step_ns=NS, saving=saving, risk=InterruptionRisk())
    assert steps == pytest.approx(young_ns(2 * NS, CRASH_MEAN_NS) / NS, rel=0.01)
    assert steps > 5 * steps_between(step_ns=NS, saving=saving, risk=spot())


def test_slow_save_counts_immediately_and_fades_over_time() -> None:
    saving = SaveTimes(2 * NS, 20 * NS).after(10 * NS, 200 * NS)
    assert saving == SaveTimes(4 * NS, 200 * NS)
    for _ in range(20):
        saving = saving.after(2 * NS, 20 * NS)
    assert saving.stall_ns == pytest.approx(2 * NS, rel=0.01)
    assert saving.durable_ns == 20 * NS
