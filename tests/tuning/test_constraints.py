"""Constraints: feasible trials come before all others, and samplers learn which configurations are feasible."""

import math
from typing import Any

import pytest

from tests.tuning.test_decide import AT, Story
from tuner.database.codec import decode, encode
from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, Confirm, JobSpec, Plateau, SamplerName, SchedulerName
from tuner.domain.money import Money
from tuner.domain.objective import Constraint, Fidelity, Objective, constraint_faults, lacking, violation
from tuner.domain.space import Float, Space
from tuner.tuning.confirm import next_repeat
from tuner.tuning.rungs import Rung
from tuner.tuning.samplers import sampler_for
from tuner.tuning.schedulers import PromotionAsha, earned
from tuner.tuning.state import TrialRecord

LIMIT = Constraint("latency_ms", max=20)
LIMITS: Any = {"constraints": (LIMIT,)}


def report(story: Story, trial: int, step: int, value: float, violates: float) -> list[do.Command]:
    """Report a value whose latency violates the constraint this much."""
    name = f"trial_{trial:05d}"
    return story.tell(ev.Reported(AT, name, step, value, Money(0), violation=violates))


@pytest.mark.parametrize(
    ("constraint", "value", "expected"),
    [
        (LIMIT, 20, 0),
        (LIMIT, 30, 0.5),
        (Constraint("recall", min=0.8), 0.6, 0.25),
        (Constraint("gap", min=-1, max=0), 0.5, 0.5),
        (Constraint("gap", min=-1, max=0), -3, 2),
        (Constraint("gap", max=-1e-300), 1e300, 1.7976931348623157e308),
    ],
)
def test_violation_is_relative_to_the_limit(constraint: Constraint, value: float, expected: float) -> None:
    assert violation((constraint,), {constraint.metric: value}) == pytest.approx(expected)


@pytest.mark.parametrize("value", [None, True, "fast", math.nan, "Infinity"])
def test_metric_that_is_not_a_finite_number_is_lacking(value: object) -> None:
    metrics = {"latency_ms": value}
    assert (lacking((LIMIT.metric,), metrics), violation((LIMIT,), metrics)) == ("latency_ms", None)


def test_faults_of_constraints_name_the_field() -> None:
    wrong = [
        Constraint(" ", max=1),
        Constraint("a"),
        Constraint("b", min=2, max=1),
        Constraint("c", max=math.inf),
        Constraint("a", max=1),
    ]
    places = [fault.pointer.removeprefix("/constraints/") for fault in constraint_faults(wrong)]
    assert places == ["0/metric", "1", "2", "3", "4/metric"]


def test_rung_ranks_feasible_trials_first_and_others_by_their_violation() -> None:
    rung = Rung(1)
    for number, (score, violates) in enumerate([(0.9, 0.5), (0.1, 0), (0.8, 0.2), (0.3, 0)]):
        rung.record(number, score, violates)
    assert [number for *_, number in rung.ranked] == [3, 1, 2, 0]
    assert rung.promotable(2) == [3, 1]
    rung.promote(3)
    assert (rung.promotable(2), rung.keeps(0, 2), rung.keeps(1, 2)) == ([1], False, True)


@pytest.mark.parametrize("scheduler", ["asha", "auto"])
def test_infeasible_trial_waits_while_a_feasible_one_can_be_promoted(scheduler: SchedulerName) -> None:
    state = Story(scheduler=scheduler, trials=4, fidelity=Fidelity(max=27), **LIMITS).state
    low, high, *_ = state.rungs
    rows = [(0, high.step, 0.1), (1, high.step, 0.2), (2, high.step, 0.3), (3, low.step, 0.0)]
    state.trials = [TrialRecord(n, {}, step, "paused", step, 0.5, violates) for n, step, violates in rows]
    for number, step, violates in rows:
        for rung in (low, high):
            if rung.step <= step:
                rung.record(number, 0.5, violates)
    for number in range(3):
        low.promote(number)
    state.reduction_factor = 3
    promote = PromotionAsha().promote if scheduler == "asha" else lambda state: earned(state, None)
    first = promote(state)
    assert first is state.trials[3], "the infeasible trials are on the higher rung"
    first.target_step = high.step
    assert promote(state) is state.trials[0]


def test_candidate_with_an_infeasible_repeat_is_confirmed_after_the_others() -> None:
    state = Story(scheduler="auto", fidelity=Fidelity(max=9), confirm=Confirm(2, 3), **LIMITS).state
    first, second = ((n, {"x": n}, 9, "completed", 9, 0.9 - n / 10) for n in (0, 1))
    repeats = [
        TrialRecord(n + 2, {"x": n}, 9, "completed", 9, 0.9, 0.1 * (1 - n), repeats=n, seed=1) for n in (0, 1)
    ]
    state.trials = [TrialRecord(*first), TrialRecord(*second), *repeats]
    state.active.clear()
    repeat = next_repeat(state)
    assert repeat is not None
    assert (repeat.repeats, repeat.seed) == (1, 2)


def test_only_feasible_reports_reach_the_target_and_lead() -> None:
    story = Story(objective=Objective("acc", target=0.9), **LIMITS)
    report(story, 0, 1, 0.95, 0.1)
    assert (story.state.ending, story.state.leader) == (None, 0)
    story.paused(0, 1)
    report(story, 1, 1, 0.5, 0)
    assert (story.state.leader, story.state.leader_score) == (1, 0.5)
    story.paused(1, 1)
    report(story, 2, 1, 0.92, 0)
    assert story.state.ending is not None
    assert story.state.ending.reason == "target"


def test_infeasible_report_is_no_gain_for_the_plateau() -> None:
    story = Story(plateau=Plateau(100), **LIMITS)
    for step, (value, violates, spent) in enumerate([(0.5, 0, 0), (0.9, 0.2, 60), (0.95, 0.1, 120)]):
        story.tell(ev.Reported(AT, "trial_00000", step + 1, value, Money(spent), violation=float(violates)))
    assert story.state.ending is not None
    assert story.state.ending.reason == "plateau"


def test_job_without_a_feasible_trial_says_so_at_its_end() -> None:
    story = Story(trials=1, fidelity=Fidelity(max=1), **LIMITS)
    report(story, 0, 1, 0.5, 0.1)
    (end,) = story.tell(ev.Completed(AT, "trial_00000"))
    assert isinstance(end, do.EndJob)
    assert (end.state, end.detail) == ("succeeded", "no trial has met the constraints: latency_ms at most 20")


def test_trial_fails_at_the_first_report_without_the_metric_of_a_constraint() -> None:
    story = Story(**LIMITS)
    missing = ev.Reported(AT, "trial_00000", 1, 0.5, Money(0), names=("acc", "latency_s"), lacks="latency_ms")
    (stop,) = story.tell(missing)
    assert isinstance(stop, do.Stop)
    assert stop.reason == (
        "did not report 'latency_ms' at step 1, which a constraint of the job needs with each report; "
        "report the metric, or let the service measure it: train in one process with SpotSafe, and define export(config, state); "
        "the trial reported 'acc', 'latency_s'; did you mean 'latency_s'?"
    )
    assert story.state.trials[0].value is None, "the report does not count"
    assert decode(encode(missing)) == missing


def test_spec_with_constraints_survives_the_codec() -> None:
    spec = Story(**LIMITS).spec
    assert decode(encode(spec)) == spec


def job(sampler: SamplerName, **more: Any) -> JobSpec:
    fidelity, algorithm = Fidelity(max=1), Algorithm(sampler=sampler, seed=3)
    space = Space({"x": Float(0, 1), "y": Float(0, 1)})
    return JobSpec(
        "a",
        "m:f",
        Objective("acc"),
        space,
        Budget(usd=Money(1)),
        fidelity=fidelity,
        algorithm=algorithm,
        **more,
    )


def feasible_share(sampler: SamplerName, trials: int, **more: Any) -> float:
    """Let the sampler suggest configurations whose score grows with x, of which those with x above 0.3 are infeasible.

    Return the share of feasible ones in the second half.
    """
    suggests, good = sampler_for(job(sampler, **more)), 0
    for number in range(trials):
        config = suggests.suggest(number)
        assert config is not None
        x = float(str(config["x"]))
        violates = max(0.0, x - 0.3) if more else 0.0
        suggests.tell(number, 1, x, 0, at_rung=True, violation=violates)
        suggests.finish(number, failed=False)
        good += number >= trials // 2 and x <= 0.3
    return good / (trials - trials // 2)


@pytest.mark.parametrize("sampler", ["auto", "tpe"])
def test_sampler_learns_what_is_feasible(sampler: SamplerName) -> None:
    assert feasible_share(sampler, 30, **LIMITS) >= 0.5
    assert feasible_share(sampler, 30) < 0.3, "without the constraint, it goes to the other side"
