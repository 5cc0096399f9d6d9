"""Test the finish reserve, which decides what the remaining money is for. A step takes one second and costs
1,000 micro-dollars.
"""

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.budget import Budget, OnExhausted
from tuner.domain.events import RULES
from tuner.domain.job import Algorithm, Confirm, JobSpec, SchedulerName
from tuner.domain.money import ZERO, Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.space import Float, Space
from tuner.domain.time import NS
from tuner.tuning.reserve import MARGIN, Reserve, affords_whole_trial
from tuner.tuning.state import State, Status, TrialRecord

PER_STEP = 1000
STEPS = 40


class Trial(NamedTuple):
    status: Status
    steps: int
    target_step: int
    step_s: float = 1


def state_of(
    left_steps: float,
    *trials: Trial,
    scheduler: SchedulerName = "auto",
    on_exhausted: OnExhausted = "finish",
    leader: int = 0,
    confirm: Confirm | None = None,
) -> State:
    """Return the state after these trials, with a budget for `left_steps` more steps. Attempts took no time
    besides their steps.
    """
    trained = sum(trial.steps * trial.step_s for trial in trials)
    budget = Budget(usd=Money(round((trained + left_steps) * PER_STEP)), on_exhausted=on_exhausted)
    spec = JobSpec(
        "a",
        "m:f",
        Objective("acc"),
        Space({"x": Float(0, 1)}),
        budget,
        fidelity=Fidelity(min=1, max=STEPS),
        algorithm=Algorithm(scheduler),
        confirm=confirm,
    )
    state = State.fresh(spec, concurrency=4, rate=Rate(Price(3_600 * PER_STEP)))
    for number, (status, steps, target_step, step_s) in enumerate(trials):
        record = TrialRecord(
            number, {"x": 0.5}, target_step, steps=steps, trained_ns=round(steps * step_s * NS)
        )
        state.trials.append(record)
        state.set(record, status)
        state.steps, state.trained_ns = state.steps + steps, state.trained_ns + record.trained_ns
    state.price_ns = state.trained_ns * state.rate.price.micro_usd_per_hour
    state.leader = state.finisher = leader
    state.begun, state.spent = len(trials), Money(round(trained * PER_STEP))
    return state


def reserve(*trials: Trial, left_steps: float, leader: int = 0) -> Reserve:
    leader_reserve = Reserve.of(state_of(left_steps, *trials, leader=leader))
    assert leader_reserve is not None
    return leader_reserve


def test_only_auto_scheduler_keeps_reserve_and_only_if_exhaustion_ends_job() -> None:
    trial = Trial("paused", 10, 10)
    assert Reserve.of(state_of(50, trial)) is not None
    assert Reserve.of(state_of(50, trial, scheduler="asha")) is None
    assert Reserve.of(state_of(50, trial, on_exhausted="pause")) is None
    assert Reserve.of(state_of(50)) is None


def test_money_for_repeats_is_not_left_for_the_search() -> None:
    """Two candidates with three seeds have two repeats with the second seed, and one with the third."""
    trial = Trial("paused", 10, 10)
    search, confirmed = (
        Reserve.of(state_of(400, trial, confirm=confirm)) for confirm in (None, Confirm(2, 3))
    )
    assert search is not None
    assert confirmed is not None
    assert search.left_ns - confirmed.left_ns >= 3 * STEPS * NS


def test_later_attempts_are_not_expected_to_start_the_workers_again() -> None:
    state = state_of(400, Trial("completed", STEPS, STEPS), confirm=Confirm(2, 3))
    quick = Reserve.of(state)
    state.spent, state.warming_ns = Money(state.spent.micro_usd + 200 * PER_STEP), 200 * NS
    slow = Reserve.of(state)
    assert quick is not None
    assert slow is not None
    assert quick.left_ns - slow.left_ns == 200 * NS, "only what was spent is missing"


def test_no_trial_begins_with_money_reserved_for_the_leader() -> None:
    leader = Trial("paused", 20, 20)
    assert not reserve(leader, left_steps=100).is_due
    assert reserve(leader, left_steps=100).may_begin()
    assert reserve(leader, left_steps=25).is_due
    assert not reserve(leader, left_steps=25).may_begin()


def test_nothing_is_reserved_for_an_unaffordable_leader() -> None:
    expensive = Trial("paused", 20, 20, step_s=3)
    assert reserve(expensive, left_steps=100).leader is not None
    leader_reserve = reserve(expensive, Trial("running", 3, STEPS), left_steps=25)
    assert leader_reserve.leader is None
    assert leader_reserve.blocking_trials() == []
    leader_reserve = reserve(expensive, left_steps=25)
    assert leader_reserve.may_begin()


def test_trial_can_finish_only_if_leader_remains_affordable() -> None:
    leader, other = Trial("running", 30, 40), Trial("paused", 20, 20)
    for left_steps, can in ((50, True), (25, False)):
        leader_reserve = reserve(leader, other, left_steps=left_steps)
        assert leader_reserve.can_finish(leader_reserve.state.trials[1]) is can
        assert leader_reserve.can_finish(leader_reserve.state.trials[0])


def test_running_trials_are_funded_before_new_ones_begin() -> None:
    leader = Trial("completed", STEPS, STEPS)
    assert reserve(leader, left_steps=10).may_begin()
    assert not reserve(leader, Trial("running", 20, STEPS), left_steps=20).may_begin()


def test_interrupted_trial_resumes_unless_leader_needs_the_money() -> None:
    leader, interrupted = Trial("running", 20, STEPS), Trial("paused", 5, 12)
    rich, poor = (reserve(leader, interrupted, left_steps=n) for n in (100, 28))
    assert rich.may_continue(rich.state.trials[1])
    assert not poor.may_continue(poor.state.trials[1])
    assert poor.may_continue(poor.state.trials[0])


def test_unaffordable_running_trials_block_the_leader() -> None:
    leader = Trial("running", 30, STEPS)
    near, far = Trial("running", 10, 13), Trial("running", 13, STEPS)
    assert reserve(leader, near, far, left_steps=60).blocking_trials() == []
    assert [t.number for t in reserve(leader, near, far, left_steps=20).blocking_trials()] == [2]
    assert [t.number for t in reserve(leader, near, far, left_steps=13).blocking_trials()] == [1, 2]


def test_new_trial_may_use_half_of_the_free_money() -> None:
    finished, running = Trial("completed", STEPS, STEPS), Trial("running", 20, STEPS)
    alone, with_running = reserve(finished, left_steps=100), reserve(finished, running, left_steps=100)
    assert 2 * alone.new_step_s * STEPS == pytest.approx(100 / MARGIN, rel=0.03)
    assert 2 * with_running.new_step_s * STEPS == pytest.approx((100 - 20 * MARGIN) / MARGIN, rel=0.03)
    assert reserve(finished, running, left_steps=10).new_step_s == 0


def test_slowed_trial_is_expected_to_stay_slow() -> None:
    state = state_of(60, Trial("running", 12, STEPS), Trial("completed", STEPS, STEPS))
    state.trials[0].pace_ns = 4 * NS
    leader_reserve = Reserve.of(state)
    assert leader_reserve is not None
    assert leader_reserve.leader is None


@pytest.mark.parametrize(("step_s", "affordable"), [(1, True), (4, False)])
def test_each_trial_is_expected_to_keep_its_own_pace(step_s: float, affordable: bool) -> None:
    leader_reserve = reserve(Trial("paused", 12, 12, step_s), Trial("completed", STEPS, STEPS), left_steps=60)
    assert (leader_reserve.leader is not None) is affordable


def test_reserve_learns_what_the_steps_of_each_rung_cost() -> None:
    """With proxies, the two cheap steps say little about the 38 that follow."""
    proxies = Fidelity(min=2, max=STEPS, reduction_factor=10, proxies={"resolution": (16, 32)})
    cheap, whole = Trial("paused", 2, 2, step_s=0.25), Trial("stopped", 20, 20, step_s=1.825)

    def leads(left_steps: float, *trials: Trial, stages: dict[int, tuple[int, int]]) -> bool:
        state = state_of(left_steps, *trials)
        state.spec, state.stages = replace(state.spec, fidelity=proxies), stages
        due = Reserve.of(state)
        assert due is not None
        return due.leader is not None

    known = {0: (4, NS), 1: (18, 36 * NS)}  # a quarter of a second, and two seconds
    assert leads(15, cheap, stages={0: (2, NS // 2)}), "later steps are taken to be like the first"
    assert not leads(15, cheap, whole, stages=known)
    assert not leads(38 * 2 * MARGIN, cheap, whole, stages=known)
    assert leads(39 * 2 * MARGIN, cheap, whole, stages=known)


def test_any_trial_may_use_the_last_money_if_none_runs() -> None:
    """If nothing runs and the leader is finished, the ledger alone limits how far a trial gets."""
    leader, interrupted = Trial("completed", STEPS, STEPS), Trial("paused", 5, 12)
    leader_reserve = reserve(leader, interrupted, left_steps=2)
    assert leader_reserve.may_continue(leader_reserve.state.trials[1])
    assert leader_reserve.may_begin()
    busy = reserve(leader, interrupted, Trial("running", 3, 4), left_steps=2)
    assert not busy.may_continue(busy.state.trials[1])
    assert not busy.may_begin()


def test_gpu_hour_budget_is_reserved_on_free_machines() -> None:
    state = state_of(25, Trial("paused", 20, 20))
    state.rate, state.budget, state.spent = Rate(Price(0), 1000), Budget(gpu_ms=45_000), ZERO
    leader_reserve = Reserve.of(state)
    assert leader_reserve is not None
    assert leader_reserve.left_ns == 25 * NS
    assert leader_reserve.is_due


def test_remaining_time_is_computed_at_mean_price() -> None:
    """Half of the steps were free and half were paid, each in 1.25 times its own time. The rest is expected to
    cost the same on average.
    """
    state = state_of(0, Trial("completed", STEPS, STEPS), Trial("running", 20, STEPS))
    state.price_ns //= 2
    state.spent = Money(round(1.25 * 60 * PER_STEP / 2))
    state.budget = Budget(usd=Money(state.spent.micro_usd + 60 * PER_STEP // 2))
    leader_reserve = Reserve.of(state)
    assert leader_reserve is not None
    assert leader_reserve.left_ns == pytest.approx(60 * NS)
    assert 2 * leader_reserve.new_step_s * STEPS == pytest.approx((60 - 20 * MARGIN - 7.5) / MARGIN, rel=0.03)


def test_free_time_does_not_count_as_paid_time() -> None:
    state = state_of(25, Trial("paused", 20, 20))
    state.price_ns, state.spent = 0, Money(1)
    leader_reserve = Reserve.of(state)
    assert leader_reserve is not None
    assert leader_reserve.left_ns > 10**6 * NS


def without_last_step(
    left_s: float,
    *trials: Trial,
    overhead_s: float = 0,
    rules: int = RULES,
    on_exhausted: OnExhausted = "finish",
) -> State:
    """Return the state of a job without a known last step, with a budget for `left_s` more seconds.

    Each attempt took `overhead_s` seconds besides its steps.
    """
    overhead = round(len(trials) * overhead_s * PER_STEP)
    state = state_of(left_s, *trials, on_exhausted=on_exhausted)
    assert state.budget.usd is not None
    state.spent = Money(state.spent.micro_usd + overhead)
    state.budget = replace(state.budget, usd=Money(state.budget.usd.micro_usd + overhead))
    state.spec, state.rungs, state.rules = replace(state.spec, fidelity=Fidelity()), [], rules
    return state


SHORT, LONG = Trial("completed", 10, 10), Trial("completed", 30, 30)  # 20 s on average


@pytest.mark.parametrize("left_s", [19.9, 20])
def test_trial_without_last_step_begins_only_if_the_budget_pays_for_a_mean_trial(left_s: float) -> None:
    assert affords_whole_trial(without_last_step(left_s, SHORT, LONG)) is (left_s >= 20)


def test_any_trial_begins_if_its_length_is_unknown_or_a_top_up_can_continue_it() -> None:
    poor = without_last_step(1, SHORT, LONG)
    assert not affords_whole_trial(poor)
    assert affords_whole_trial(without_last_step(1, SHORT, LONG, rules=6)), (
        "jobs of older rules replay as before"
    )
    assert affords_whole_trial(without_last_step(1, SHORT, LONG, on_exhausted="pause"))
    assert affords_whole_trial(without_last_step(1, Trial("failed", 10, 10), Trial("stopped", 30, 30)))
    poor.spec = replace(poor.spec, fidelity=Fidelity(max=STEPS))
    assert affords_whole_trial(poor)


def test_whole_trial_needs_its_start_and_the_rest_of_the_running_trials() -> None:
    """Attempts take 3 s besides their steps. Of the running trials, one has 8 s left, one is longer than expected, and one has not reported."""
    running = Trial("running", 12, STEPS), Trial("running", 25, STEPS), Trial("running", 0, STEPS)
    for left_s, affords in ((53.9, False), (54, True)):
        state = without_last_step(left_s, SHORT, LONG, *running, overhead_s=3)
        assert affords_whole_trial(state) is affords


def test_whole_trial_needs_gpu_hours() -> None:
    for left_s, affords in ((19.9, False), (20, True)):
        state = without_last_step(1000, SHORT, LONG)
        state.rate = Rate(state.rate.price, 500)
        state.budget = replace(state.budget, gpu_ms=round((40 + left_s) * 500))
        assert affords_whole_trial(state) is affords


def some_trials(statuses: list[Status], *, least: int) -> st.SearchStrategy[Trial]:
    """Draw a trial with one of the statuses and with at least `least` steps of a second."""
    return st.builds(Trial, st.sampled_from(statuses), st.integers(least, 50), st.just(50), st.just(1))


@examples(60)
@given(
    st.lists(some_trials(["completed", "stopped", "failed", "paused"], least=1), min_size=1, max_size=6),
    st.lists(some_trials(["running"], least=0), max_size=4),
    some_trials(["running"], least=0),
    st.integers(0, 200),
    st.integers(0, 5),
)
def test_more_money_or_fewer_running_trials_never_prevent_a_trial(
    before: list[Trial], active: list[Trial], another: Trial, left_s: int, overhead_s: int
) -> None:
    def affords(left_s: float, *now: Trial) -> bool:
        return affords_whole_trial(without_last_step(left_s, *before, *now, overhead_s=overhead_s))

    affordable = affords(left_s, *active)
    assert affordable <= affords(left_s + 1, *active)
    assert affords(left_s, *active, another) <= affordable
    assert affords(1000, *active)
