"""Test what the next dollar is expected to gain, and that a job ends when that is not worth it."""

import pytest

from tests.tuning.test_decide import AT, Story
from tests.tuning.test_endings import endings
from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.ids import trial_id
from tuner.domain.job import Confirm
from tuner.domain.money import ZERO, Money
from tuner.domain.objective import Constraint, Mode, gain_of_next
from tuner.tuning.stopping import FEWEST, points_per_usd

DOLLAR = Money(1_000_000)


@pytest.mark.parametrize(
    ("points", "text"),
    [
        (0.0206, "the next $1.00 is expected to gain 0.0206 points"),
        (193, "the next $0.001 is expected to gain 0.193 points"),
    ],
)
def test_shown_amount_is_expected_to_gain_at_most_one_point(points: float, text: str) -> None:
    assert gain_of_next(points) == text


def test_expected_gain_is_the_excess_of_the_best_results_per_dollar() -> None:
    # Of all results, 2.22 to 2.31 are 5.5 points above the next one, and 2.16 to 2.31 are 8.5 points above it. Of the newer half, which
    # cost half a dollar, 2.27 to 2.31 are 3 points above the next one, and 2.24 to 2.31 are 4.5 points above it.
    scores = [2 + n / 100 for n in range(32)]
    assert points_per_usd(scores, DOLLAR, "max") == pytest.approx((5.5 + 8.5 + 6 + 9) / 4)
    assert points_per_usd(scores, Money(5_000_000), "max") == pytest.approx((5.5 + 8.5 + 6 + 9) / 20)


@pytest.mark.parametrize(("top", "mode"), [(1.0, "max"), (0.0, "min")], ids=["accuracy", "loss"])
def test_expected_gain_is_cut_off_at_what_the_metric_can_reach(top: float, mode: Mode) -> None:
    far, near, reached = (
        points_per_usd([top - below - n / 100 for n in range(32)], DOLLAR, mode) for below in (0.4, 0.01, 0.0)
    )
    assert far == pytest.approx((5.5 + 8.5 + 3 * 2 + 4.5 * 2) / 4, rel=0.02)
    # somewhat less than half of the one point that is left
    assert near == pytest.approx((1 + 1 + 2 + 2) / 2 / 4, rel=0.1)
    assert near < 0.75
    assert reached == 0.0
    elsewhere = points_per_usd([top - 1 - n / 100 for n in range(32)], DOLLAR, "max")
    assert elsewhere == pytest.approx(7.25), "a metric to maximise that was negative may exceed 0"


def test_expected_gain_is_unknown_with_few_trials_or_without_cost() -> None:
    assert points_per_usd([0.5] * (FEWEST - 1), DOLLAR, "max") is None
    assert points_per_usd([0.5] * FEWEST, ZERO, "max") is None


@pytest.mark.parametrize("scores", [[1e308] * FEWEST, [-1e308, 1e308] * FEWEST, [0.0] * FEWEST + [1e307]])
def test_expected_gain_is_unknown_if_it_exceeds_the_largest_number(scores: list[float]) -> None:
    assert points_per_usd(scores, DOLLAR, "max") is None


@pytest.mark.parametrize(
    ("usd_per_point", "ends"), [(40, True), (160, False), (None, False)], ids=["little", "much", "no_rule"]
)
def test_job_ends_when_the_next_dollar_gains_less_than_it_is_worth(
    usd_per_point: float | None, *, ends: bool
) -> None:
    """After 16 trials that rise by 0.001 and cost $20 in total, the next dollar is expected to gain 0.0206 points."""
    worth = None if usd_per_point is None else round(usd_per_point * 1e6)
    story = Story(scheduler="none", worth_micro_usd=worth)
    for number in range(FEWEST):
        assert story.state.ending is None
        story.report(number, 9, number / 1000, spent=20_000_000)
        last = story.tell(ev.Completed(AT, trial_id(number)))
    assert endings(last) == ([("succeeded", "worth")] if ends else [])
    if ends:
        assert "is expected to gain 0.0206 points, and a point is worth $40.00" in str(last[-1])
        assert story.state.ending is not None
        assert story.state.ending.is_from_reports


@pytest.mark.parametrize(("rules", "more"), [(0, 1), (ev.RULES, FEWEST)], ids=["earlier release", "now"])
def test_resumed_job_gets_new_results_before_it_ends_again(rules: int, more: int) -> None:
    story = Story(scheduler="none", worth_micro_usd=40_000_000)

    def complete(number: int) -> list[do.Command]:
        story.report(number, 9, number / 1000 if number < FEWEST else 0.0, spent=20_000_000)
        return story.tell(ev.Completed(AT, trial_id(number)))

    for number in range(FEWEST):
        last = complete(number)
    assert endings(last) == [("succeeded", "worth")]
    story.tell(ev.Launched(AT, rules=rules), ev.ControlRequested(AT, "resume"))
    for number in range(FEWEST, FEWEST + more):
        assert story.state.ending is None
        last = complete(number)
    assert endings(last) == [("succeeded", "worth")]


@pytest.mark.parametrize(("rules", "ends"), [(4, True), (ev.RULES, False)], ids=["earlier release", "now"])
def test_repeats_of_a_confirmation_do_not_count_as_the_cost_of_the_search(rules: int, *, ends: bool) -> None:
    """The search spends $10, so the next dollar is expected to gain 0.0412 points. Then the repeat spends $20."""
    confirm = Confirm(candidates=1, seeds=2)
    story = Story(scheduler="none", trials=FEWEST, worth_micro_usd=40_000_000, confirm=confirm)

    def complete(number: int, value: float, spent: int) -> list[do.Command]:
        story.report(number, 9, value, spent=spent)
        return story.tell(ev.Completed(AT, trial_id(number)))

    for number in range(FEWEST):
        complete(number, number / 1000, spent=10_000_000)
    assert endings(complete(FEWEST, 0.015, spent=30_000_000)) == [("succeeded", "confirmed")]
    more = Budget(usd=Money(10**8), trials=2 * FEWEST)
    story.tell(ev.BudgetChanged(AT, more), ev.Launched(AT, rules=rules), ev.ControlRequested(AT, "resume"))
    last = complete(FEWEST + 1, 0.016, spent=30_500_000)
    assert endings(last) == ([("succeeded", "worth")] if ends else [])


@pytest.mark.parametrize("violation", [0.0, 0.1])
def test_only_feasible_trials_count_for_the_next_dollar(violation: float) -> None:
    story = Story(
        scheduler="none", worth_micro_usd=40_000_000, constraints=(Constraint("latency_ms", max=20),)
    )
    for number in range(FEWEST):
        spent, violates = Money(20_000_000), violation if number == 0 else 0.0
        name, value = trial_id(number), number / 1000
        story.tell(ev.Reported(AT, name, 9, value, spent, violation=violates))
        last = story.tell(ev.Completed(AT, name))
    assert bool(endings(last)) is not bool(violation), "with an infeasible one, the trials are too few"
