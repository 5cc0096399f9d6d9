"""Test the estimated spend of other search methods: it has a lower bound, and is exact if the truth is known."""

import math
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.strategies import examples
from tuner.domain.objective import Fidelity
from tuner.planning.search_estimates import (
    METHODS,
    MIN_TRIALS,
    REDUCTION_FACTOR,
    UNREACHED,
    Method,
    Path,
    Paths,
    ReplayEvidence,
    ReplayPoint,
    ReplayTrial,
    estimates,
    quantile_between,
    random_search,
    spending,
    stopping_asha,
)

LAST = 9
FIDELITY = Fidelity(min=1, max=LAST, reduction_factor=3)
SCORES = st.integers(-20, 20).map(lambda eighths: eighths / 8)  # eighths, so that sums are exact


def seen(scores: list[float], *, step_cost: int = 10, start: int = 0) -> ReplayTrial:
    """Build a trial that reported after each step."""
    curve = [ReplayPoint(i, score, start + i * step_cost) for i, score in enumerate(scores, 1)]
    return ReplayTrial(tuple(curve), start, "completed" if len(scores) == LAST else "cut")


@st.composite
def trials(draw: st.DrawFn, *, whole: bool = False) -> list[ReplayTrial]:
    """Generate trials, some cut short and at least one complete."""
    replay_trials = []
    for number in range(draw(st.integers(MIN_TRIALS, 12))):
        steps = LAST if whole or number == 0 else draw(st.integers(1, LAST))
        scores = draw(st.lists(SCORES, min_size=steps, max_size=steps))
        replay_trials.append(seen(scores, step_cost=draw(st.integers(1, 50)), start=draw(st.integers(0, 20))))
    return replay_trials


def goal_of(trials: list[ReplayTrial]) -> float:
    return max(point.score for trial in trials for point in trial.curve)


def evidence(trials: list[ReplayTrial], **changes: object) -> ReplayEvidence:
    return replace(ReplayEvidence(trials, goal_of(trials), FIDELITY, False), **changes)  # type: ignore[arg-type]


def paths(trials: list[ReplayTrial]) -> list[Path]:
    return Paths(trials, rungs=FIDELITY.rungs(), last_step=LAST, goal=goal_of(trials)).all


@examples(100, gate=40)
@given(trials(), st.sampled_from(list(METHODS)), st.integers())
def test_spend_lies_between_cheapest_successful_trial_and_all_trials(
    trials: list[ReplayTrial], method: Method, seed: int
) -> None:
    ways = paths(trials)
    least = min(path.goal.cost for path in ways if path.goal is not None)
    most = sum(path.cost for path in ways)
    for spent in spending(method, ways, seed=seed, orders=5):
        assert least <= spent <= most or spent == UNREACHED
    assert method == "stopping_asha" or UNREACHED not in spending(method, ways, seed=seed, orders=5)


@examples(100, gate=30)
@given(trials(), st.integers())
def test_estimates_are_repeatable_and_taken_from_simulated_spends(
    trials: list[ReplayTrial], seed: int
) -> None:
    asked = evidence(trials, seed=seed)
    answered = estimates(asked)
    assert answered == estimates(asked)
    for estimate in answered:
        known = [
            money.micro_usd for money in (estimate.low, estimate.usd, estimate.high) if money is not None
        ]
        assert known == sorted(known)
        assert set(known) <= set(spending(estimate.method, paths(trials), seed=seed))
        assert (estimate.status == "unreached") == (estimate.usd is None)


@examples(50)
@given(st.integers(5, 60), st.integers(0, 3))
def test_random_search_estimate_matches_its_average_spend(count: int, seed: int) -> None:
    rng = Random(count)
    replay_trials = [
        seen([rng.random() for _ in range(LAST)], step_cost=rng.randint(5, 15)) for _ in range(count)
    ]
    ways = paths(replay_trials)
    spent = spending("random_search", ways, seed=seed)
    others = sum(path.cost for path in ways if path.goal is None)
    (winner,) = (path.goal for path in ways if path.goal is not None)
    expected = winner.cost + others / 2
    assert abs(sum(spent) / len(spent) - expected) < 0.1 * sum(path.cost for path in ways)


@examples(100, gate=40)
@given(trials(whole=True))
def test_random_search_in_recorded_order_spends_the_recorded_amount(trials: list[ReplayTrial]) -> None:
    spent, goal = 0, goal_of(trials)
    for trial in trials:
        reached = next((point for point in trial.curve if point.score >= goal), None)
        if reached is not None:
            assert random_search(paths(trials)) == spent + reached.cost
            return
        spent += trial.last.cost


@examples(100, gate=40)
@given(trials(whole=True), st.integers(1, LAST - 1))
def test_trial_cut_short_is_extended_with_its_true_cost_and_rungs(
    trials: list[ReplayTrial], kept: int
) -> None:
    cut = [ReplayTrial(trial.curve[:kept], trial.start) for trial in trials]
    together = Paths([*trials, *cut], rungs=FIDELITY.rungs(), last_step=LAST, goal=goal_of(trials))
    assert together.cut == len(cut)
    for truth, taken in zip(together.all[: len(trials)], together.all[len(trials) :], strict=True):
        assert taken.cost == truth.cost
        assert len(taken.rungs) == len(truth.rungs)
        assert taken.goal is not None or truth.goal is None


def test_completed_or_failed_trial_is_not_extended() -> None:
    whole, short = seen([0.1] * LAST), seen([0.1, 0.2])
    for end in ("completed", "failed"):
        path = paths([whole, replace(short, end=end)])[1]  # type: ignore[arg-type]
        assert (path.cost, [point.step for point in path.rungs]) == (20, [1])
    path = paths([whole, short])[1]
    assert (path.cost, [point.step for point in path.rungs]) == (90, [1, 3])


def test_scores_of_other_stages_of_the_proxies_do_not_reach_the_goal() -> None:
    fidelity = replace(FIDELITY, proxies={"resolution": (16, 32)})
    whole, short = seen([0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]), seen([0.95])
    rungs, stage = fidelity.rungs(), fidelity.stage(LAST)
    goals = [
        path.goal
        for path in Paths(
            [whole, short], rungs=rungs, last_step=LAST, goal=0.5, fidelity=fidelity, stage=stage
        ).all
    ]
    # The short trial is extended by what the whole one gained after its first step: -0.7 until step 3, and -0.1 until step 9.
    assert [goal and goal.step for goal in goals] == [6, 9]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
@example([-0.25, 0.125])
def test_rung_cutoff_equals_the_numpy_percentile_exactly(scores: list[float]) -> None:
    cut = quantile_between(sorted(scores), 1 - 1 / REDUCTION_FACTOR)
    assert cut == float(np.percentile(scores, (1 - 1 / REDUCTION_FACTOR) * 100))


def rays_choice(trials: list[ReplayTrial]) -> list[int]:
    """Return the step at which Ray Tune's own scheduler stops each trial, in the order of the trials."""
    from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler  # takes a second

    scheduler = AsyncHyperBandScheduler(
        time_attr="step", metric="score", mode="max", max_t=LAST, grace_period=1, reduction_factor=3
    )
    ended = []
    for number, trial in enumerate(trials):
        shown = SimpleNamespace(trial_id=str(number))
        scheduler.on_trial_add(None, shown)
        for point in trial.curve:
            result = {"step": point.step, "score": point.score}
            if scheduler.on_trial_result(None, shown, result) == TrialScheduler.STOP:
                ended.append(point.step)
                break
    return ended


@examples(100, gate=30)
@given(trials(whole=True))
def test_trials_stop_at_the_same_steps_as_in_ray_tune(trials: list[ReplayTrial]) -> None:
    expected = sum(
        trial.curve[step - 1].cost for trial, step in zip(trials, rays_choice(trials), strict=True)
    )
    never = Paths(trials, rungs=FIDELITY.rungs(), last_step=LAST, goal=math.inf).all
    spent = [stopping_asha([*never, Path((), 0, ReplayPoint(1, 0, 0))])]
    assert spent == [expected]


@pytest.mark.parametrize(
    ("replayed", "word"),
    [
        (None, "no trial has reported"),
        (evidence([seen([0.1] * LAST)] * (MIN_TRIALS - 1)), f"at least {MIN_TRIALS} are needed"),
        (evidence([seen([0.1])] * MIN_TRIALS), "trained to the last step"),
    ],
    ids=["no report", "few trials", "none finished"],
)
def test_insufficient_data_is_reported_with_its_reason(replayed: ReplayEvidence | None, word: str) -> None:
    for estimate in estimates(replayed):
        assert (estimate.status, estimate.usd, estimate.low, estimate.high) == (
            "not_enough_data",
            None,
            None,
            None,
        )
        assert word in estimate.note


def test_early_stopping_does_not_reach_a_winner_that_starts_badly() -> None:
    late = seen([0.0] * (LAST - 1) + [1.0])
    early = [seen([0.5] * LAST) for _ in range(20)]
    random, stopping = estimates(evidence([late, *early]))
    assert (random.status, stopping.status) == ("estimated", "unreached")
    assert stopping.high is None
    assert "stops every trial that would have reached the goal" in stopping.note


def test_estimates_from_a_learning_sampler_are_marked_as_biased_low() -> None:
    replay_trials = [seen([0.1 * i] * LAST) for i in range(6)]
    for estimate, other in zip(
        estimates(evidence(replay_trials)), estimates(evidence(replay_trials, learned=True)), strict=True
    ):
        assert (estimate.is_biased_low, other.is_biased_low) == (False, True)
        assert "the true figure should be higher" in other.note
        assert (estimate.usd, estimate.high) == (other.usd, other.high)


def test_missing_last_step_is_taken_from_the_longest_completed_trial() -> None:
    replay_trials = [seen([0.1 * i] * LAST) for i in range(6)]
    assert estimates(evidence(replay_trials, fidelity=Fidelity())) == estimates(evidence(replay_trials))
