"""Test which trials each scheduler promotes."""

from collections.abc import Mapping

import pytest

from tests.tuning.test_decide import Story
from tests.tuning.test_reserve import Trial, state_of
from tuner.domain.job import SchedulerName
from tuner.domain.objective import Fidelity
from tuner.tuning.rungs import rungs_of
from tuner.tuning.samplers.base import Forecast
from tuner.tuning.schedulers import ForecastPromotion, FullFidelity, PromotionAsha, StoppingAsha, earned
from tuner.tuning.state import State, TrialRecord


def paused(*values: float) -> State:
    """Return a state with trials paused at the first of four rungs, and without a reserve."""
    story = Story(scheduler="auto", fidelity=Fidelity(min=1, max=48), on_exhausted="pause")
    story.state.trials.clear()
    story.state.active.clear()
    for number, value in enumerate(values):
        record = TrialRecord(number, {"x": 0.5}, 4, steps=4, value=value)
        story.state.trials.append(record)
        story.state.set(record, "paused")
        story.state.rungs[0].record(number, value)
    return story.state


def number_of(trial: TrialRecord | None) -> int | None:
    return None if trial is None else trial.number


def foretold(state: State, forecasts: Mapping[int, Forecast] | None) -> int | None:
    return number_of(earned(state, forecasts))


@pytest.mark.parametrize(
    ("scheduler", "least", "rungs"),
    [
        ("auto", 1, (2, 4, 8, 16)),
        ("auto", 3, (3, 6, 12, 24)),
        ("asha", 1, (1, 3, 9)),
        ("asha_stopping", 1, (1, 3, 9)),
        ("none", 1, ()),
    ],
)
def test_rungs_are_those_of_the_scheduler(
    scheduler: SchedulerName, least: int, rungs: tuple[int, ...]
) -> None:
    assert rungs_of(Story(scheduler=scheduler, fidelity=Fidelity(min=least, max=27)).spec) == rungs


def test_ranks_decide_promotion_without_forecasts() -> None:
    assert foretold(paused(0.1, 0.4, 0.2, 0.3), None) == 1
    assert foretold(paused(0.1), None) is None, "half of one trial is none"


def test_best_forecast_is_promoted_if_it_may_reach_the_overall_best() -> None:
    state = paused(0.1, 0.4, 0.2, 0.3)
    low: dict[int, Forecast] = {number: (0.1, 0.0) for number in range(4)}
    assert foretold(state, {**low, 0: (0.9, 0.0)}) == 0
    assert foretold(state, {**low, 0: (0.9, 0.0), 4: (5.0, 0.0)}) is None
    assert foretold(state, {**low, 0: (0.9, 10.0), 4: (5.0, 0.0)}) == 0
    assert foretold(state, {}) is None


def test_reach_grows_with_the_trained_steps_up_to_three_deviations() -> None:
    state = paused(0.1, 0.4, 0.2, 0.3)

    def reached(deviations: float) -> bool:
        return foretold(state, {0: (5.0 - deviations, 1.0), 4: (5.0, 0.0)}) == 0

    assert (reached(0.5), reached(0.6)) == (True, False)
    state.steps = 48 * 5  # five complete trainings
    assert (reached(1.0), reached(1.1)) == (True, False)
    state.steps = 48 * 100
    assert (reached(3.0), reached(3.1)) == (True, False)


def test_promoted_or_skipped_trial_is_not_promoted() -> None:
    state = paused(0.1, 0.4, 0.2, 0.3)
    sure: dict[int, Forecast] = {1: (0.9, 0.0)}
    assert foretold(state, sure) == 1
    state.skipped[1] = "budget_usd"
    assert foretold(state, sure) is None
    state.skipped.clear()
    state.rungs[0].promote(1)
    assert foretold(state, sure) is None


def test_running_trial_is_considered_only_if_requested() -> None:
    state = paused(0.1, 0.4)
    running = state.trials[1]
    state.set(running, "running")
    assert foretold(state, None) is None
    assert earned(state, None, running) is running


def test_leader_finishes_first_then_best_affordable_forecast() -> None:
    assert foretold(state_of(25, Trial("paused", 20, 20)), None) == 0
    state = state_of(25, Trial("running", 20, 40), Trial("paused", 39, 39), Trial("paused", 38, 38))
    assert foretold(state, {0: (0.9, 0.0), 1: (0.7, 0.0), 2: (0.8, 0.0)}) == 1, "the other is too expensive"
    assert foretold(state, {0: (0.9, 0.0), 2: (0.8, 0.0)}) is None
    assert foretold(state, None) is None


def test_stopping_asha_decides_on_trials_that_were_paused_at_a_rung() -> None:
    state = paused(0.1, 0.4, 0.2, 0.3)
    for best in (1, 3):
        assert number_of(StoppingAsha().promote(state)) == best
        assert state.trials[best].target_step == 8
        state.set(state.trials[best], "running")
    assert StoppingAsha().promote(state) is None
    assert [trial.status for trial in state.trials] == ["stopped", "running", "stopped", "running"]


def test_trial_is_promoted_only_at_its_highest_rung() -> None:
    """A good rank at a low rung does not carry a trial past a high rung, at which its rank is bad."""
    state = paused(0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    low, high = state.rungs[:2]
    for trial, score in zip(state.trials[:3], (0.1, 0.2, 0.3), strict=True):
        trial.steps, trial.target_step = high.step, high.step
        high.record(trial.number, score)
    assert low.promotable(3)[:2] == [0, 1]
    promoted = PromotionAsha().promote(state)
    assert number_of(promoted) == 2
    assert PromotionAsha().promote(state) is None


def test_forecast_promotion_waits_until_space_is_exhausted() -> None:
    state = paused(0.1, 0.4)
    assert ForecastPromotion().promote(state) is None
    state.space_exhausted = True
    assert number_of(ForecastPromotion().promote(state)) == 1
    assert state.trials[1].target_step == 8
    assert ForecastPromotion().promote(state) is None
    assert PromotionAsha().promote(state) is None


def test_full_fidelity_and_stopping_asha_continue_or_stop_without_promotion() -> None:
    state = paused(0.1, 0.4, 0.2, 0.3)
    assert FullFidelity().at_rung(state, state.trials[0]) == "continue"
    assert state.trials[0].target_step == 8
    assert FullFidelity().promote(state) is None
    assert StoppingAsha().at_rung(state, state.trials[1]) == "continue"
    assert StoppingAsha().at_rung(state, state.trials[2]) == "stop"
