"""Test how jobs end, wait for shared budgets, and follow predictions, as short stories."""

import math
from dataclasses import replace

import pytest

from tests.tuning.test_decide import AT, Story, begins
from tests.tuning.test_reserve import Trial, state_of
from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.events import Inherited
from tuner.domain.ids import trial_id
from tuner.domain.job import Confirm, Plateau, TrialLimits
from tuner.domain.money import Money, Price
from tuner.domain.objective import Fidelity, Objective
from tuner.tuning.decide import decide
from tuner.tuning.state import State

FIRST, SECOND = "trial_00000", "trial_00001"
LONG = Fidelity(min=1, max=48)  # `auto` compares at 4 and 16


def commands_after(state: State, event: ev.Event) -> list[do.Command]:
    """Return the commands that follow. Suggestions are not answered."""
    decided, orders = decide(state, event)
    assert decided is state
    return orders


def endings(orders: list[do.Command]) -> list[tuple[str, str | None]]:
    return [(order.state, order.reason) for order in orders if isinstance(order, do.EndJob)]


# Exhausted spaces, missing metrics, failures


def test_exhausted_search_space_ends_the_job() -> None:
    story = Story(scheduler="none")
    story.tell(ev.Suggested(AT, SECOND, None))
    story.report(0, 9, 0.5)
    assert endings(story.tell(ev.Completed(AT, FIRST))) == [("succeeded", "space_exhausted")]


def test_only_one_suggestion_is_requested_at_a_time() -> None:
    story = Story(concurrency=2)
    story.state.suggesting = True
    story.state.concurrency = 3
    assert commands_after(story.state, ev.ControlRequested(AT, "resume")) == []
    story.state.suggesting = False
    assert commands_after(story.state, ev.ControlRequested(AT, "resume")) == [do.Suggest("trial_00002")]


def test_a_trial_that_ends_without_its_metric_fails() -> None:
    story = Story(scheduler="none", trials=1)
    ended = story.tell(ev.Completed(AT, FIRST))
    assert endings(ended) == [("failed", "error")]
    assert (
        "did not report the metric 'acc' up to step 0; the trial ended without a report: return a number or {'acc': value}"
        in story.state.trials[0].reason
    )


@pytest.mark.parametrize(
    "event",
    [
        ev.Completed(AT, FIRST),
        ev.Paused(AT, FIRST, 0),
        ev.Lost(AT, FIRST, 0),
        ev.Preempted(AT, FIRST, 0),
        ev.Launched(AT, rules=ev.RULES),
    ],
)
def test_trial_is_complete_with_the_report_after_which_its_function_returned(event: ev.Event) -> None:
    """Its attempt may still be lost, or paused because the budget is used up. Limits of single trials do not apply any more."""
    limits = TrialLimits(max_cost_micro_usd=1)
    story = Story(scheduler="none", fidelity=Fidelity(), trial_limits=limits)
    last = ev.Reported(AT, FIRST, 1, 0.5, Money(9), resumable=False, cost=Money(9), last=True)
    assert story.tell(last) == [do.Finish(FIRST)]
    assert story.tell(ev.Refused(AT, FIRST, "budget_usd", running=True)) == []
    story.tell(event)
    assert story.state.trials[0].status == "completed"


def test_report_after_which_a_function_returned_needs_the_metric() -> None:
    story = Story(scheduler="none", fidelity=Fidelity())
    assert story.tell(ev.Reported(AT, FIRST, 1, None, Money(9), resumable=False, last=True)) == []
    story.tell(ev.Completed(AT, FIRST))
    assert story.state.trials[0].status == "failed"


def test_a_last_step_without_its_metric_fails_the_trial() -> None:
    story = Story(scheduler="none")
    (stop,) = story.report(0, 9, None)
    assert stop == do.Stop(FIRST, "did not report the metric 'acc' up to step 9")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("acc_val", "loss"), "; the trial reported 'acc_val', 'loss'; did you mean 'acc_val'?"),
        (("loss",), "; the trial reported 'loss'"),
        (("acc", "loss"), "; the value that the trial reported as 'acc' is not a number"),
        (None, ""),
    ],
)
def test_a_missing_metric_is_explained_by_what_was_reported(
    names: tuple[str, ...] | None, words: str
) -> None:
    story = Story(scheduler="none")
    (stop,) = story.tell(ev.Reported(AT, FIRST, 9, None, Money(0), names=names))
    assert stop == do.Stop(FIRST, f"did not report the metric 'acc' up to step 9{words}")


def test_ten_failures_of_any_kind_at_the_start_end_the_job() -> None:
    story = Story()
    for number in range(10):
        assert story.state.ending is None
        orders = story.tell(ev.Failed(AT, f"trial_{number:05d}", f"ValueError: {number}"))
    assert endings(orders) == [("failed", "error")]
    assert "the first 10 trials all failed, the last with: ValueError: 9" in str(orders[-1])


def test_trial_that_stops_itself_is_stopped_and_the_next_begins() -> None:
    story = Story()
    assert begins(story.tell(ev.Stopped(AT, FIRST))) == [(SECOND, 1)]
    assert story.state.trial(FIRST).status == "stopped"


def test_events_of_a_trial_that_is_not_running_are_ignored() -> None:
    story = Story()
    story.report(0, 1, 0.5)
    story.paused(0, 1)
    assert story.report(0, 2, 0.9) == []
    assert story.state.trial(FIRST).value == 0.5
    assert story.tell(ev.Failed(AT, FIRST, "late")) == []
    assert story.state.trial(FIRST).status == "paused"


def test_improvement_restarts_the_plateau_patience() -> None:
    story = Story(plateau=Plateau(100, 0.01), fidelity=Fidelity(min=9, max=9))
    for step, value, spent in ((1, 0.5, 0), (2, 0.6, 90), (3, 0.6, 189)):
        story.report(0, step, value, spent=spent)
        assert story.state.ending is None
    story.report(0, 4, 0.6, spent=190)
    assert story.state.ending is not None


def test_mean_price_includes_machines_with_other_prices() -> None:
    story = Story(fidelity=Fidelity(min=9, max=9))
    story.tell(ev.Reported(AT, FIRST, 1, 0.5, Money(0), True, 100))
    assert story.state.mean_price == story.state.rate.price
    story.tell(ev.Reported(AT, FIRST, 2, 0.5, Money(0), True, 300, Price(0)))
    assert story.state.mean_price == Price(3_600_000 // 4)


# Money, time, control requests


def test_exhausted_shared_budget_pauses_the_job() -> None:
    story = Story()
    (end,) = story.tell(ev.Refused(AT, FIRST, "budget_usd", above="org"))
    assert isinstance(end, do.EndJob)
    assert (end.state, end.reason, end.waits_for) == ("paused", "budget_usd", "org")
    assert "the shared budget 'org' is used up" in end.detail


def test_running_trial_whose_hold_is_refused_is_paused() -> None:
    story = Story(concurrency=2)
    assert story.tell(ev.Refused(AT, FIRST, "budget_usd", running=True)) == [do.Pause(FIRST)]
    assert story.tell(ev.Refused(AT, FIRST, "budget_usd")) == [], "it is on its way"


def test_closed_window_pauses_job_until_it_reopens() -> None:
    story = Story()
    assert story.tell(ev.WindowClosed(AT)) == [do.Pause(FIRST)]
    assert story.tell(ev.WallClockEnded(AT)) == [], "it ends already"
    (end,) = story.paused(0, 0)
    assert isinstance(end, do.EndJob)
    assert (end.state, end.reason, end.reopens) == ("paused", None, True)


def test_target_reached_after_wall_clock_end_does_not_change_the_reason() -> None:
    story = Story(objective=Objective("acc", target=0.9))
    story.tell(ev.WallClockEnded(AT))
    assert story.report(0, 1, 0.95) == []
    assert endings(story.paused(0, 1)) == [("succeeded", "wall_clock")]


def test_cancel_does_not_stop_a_stopping_trial_again() -> None:
    story = Story()
    (stop,) = story.report(0, 1, math.nan)
    assert isinstance(stop, do.Stop)
    assert story.tell(ev.ControlRequested(AT, "cancel")) == []
    assert endings(story.tell(ev.Stopped(AT, FIRST))) == [("cancelled", "cancelled")]


def test_pause_request_lets_a_finishing_trial_complete() -> None:
    story = Story(scheduler="none")
    story.report(0, 9, 0.5)
    assert story.tell(ev.ControlRequested(AT, "pause")) == []
    assert endings(story.tell(ev.Completed(AT, FIRST))) == [("paused", None)]


def spent_at_plateau(story: Story, number: int, spent_by_step: dict[int, int]) -> int | None:
    """Report steps without a gain until the job ends by `plateau`, and return what the job has spent then. None if it does not end."""
    for step, spent in spent_by_step.items():
        story.report(number, step, 0.6, spent=spent)
        if story.state.ending is not None:
            assert story.state.ending.reason == "plateau"
            return spent
    return None


@pytest.mark.parametrize(("rules", "until"), [(0, 191), (ev.RULES, 290)], ids=["earlier release", "now"])
def test_resumed_job_has_new_plateau_patience(rules: int, until: int) -> None:
    story = Story(plateau=Plateau(100, 0.01), fidelity=Fidelity(min=9, max=9))
    story.report(0, 1, 0.6, spent=90)
    story.report(0, 2, 0.6, spent=190)
    assert endings(story.paused(0, 2)) == [("succeeded", "plateau")]
    story.tell(ev.Launched(AT, rules=rules), ev.ControlRequested(AT, "resume"))
    assert spent_at_plateau(story, 0, {3: 191, 4: 289, 5: 290}) == until


@pytest.mark.parametrize(("rules", "until"), [(2, 151), (ev.RULES, 250)], ids=["earlier release", "now"])
def test_repeats_of_a_confirmation_do_not_use_up_the_plateau_patience(rules: int, until: int) -> None:
    """The search spends 10, and then the repeat spends 140."""
    confirm = Confirm(candidates=1, seeds=2)
    story = Story(scheduler="none", trials=1, plateau=Plateau(100, 0.01), confirm=confirm)
    for number, spent in ((0, 10), (1, 150)):
        story.report(number, 9, 0.6, spent=spent)
        last = story.tell(ev.Completed(AT, trial_id(number)))
    assert endings(last) == [("succeeded", "confirmed")]
    story.tell(ev.BudgetChanged(AT, Budget(usd=Money(10**6), trials=2)))
    story.tell(ev.Launched(AT, rules=rules), ev.ControlRequested(AT, "resume"))
    assert spent_at_plateau(story, 2, {1: 151, 2: 249, 3: 250}) == until


def test_replaced_driver_does_not_renew_the_plateau_patience() -> None:
    story = Story(plateau=Plateau(100, 0.01), fidelity=Fidelity(min=9, max=9))
    story.report(0, 1, 0.6, spent=90)
    story.report(0, 2, 0.6, spent=150)
    story.tell(ev.Launched(AT, rules=ev.RULES), ev.ControlRequested(AT, "resume"))
    story.report(0, 3, 0.6, spent=190)
    assert story.state.ending is not None


def test_launched_job_waits_for_a_control_request() -> None:
    story = Story()
    assert story.tell(ev.Launched(AT)) == []
    assert begins(story.tell(ev.ControlRequested(AT, "resume"))) == [(FIRST, 1)]


def test_relaunched_job_continues_after_its_budget_is_raised() -> None:
    story = Story(trials=1, scheduler="none")
    story.report(0, 9, 0.5)
    assert endings(story.tell(ev.Completed(AT, FIRST))) == [("succeeded", "trials")]
    story.tell(ev.BudgetChanged(AT, Budget(usd=Money(10**6), trials=2)))
    assert story.state.ending is not None, "it has ended, until it is launched again"
    story.tell(ev.Launched(AT))
    assert begins(story.tell(ev.ControlRequested(AT, "resume"))) == [(SECOND, 9)]


# Predictions


def advised(**more: object) -> Story:
    return Story(scheduler="auto", fidelity=LONG, on_exhausted="pause", **more)  # type: ignore[arg-type]


def test_prediction_at_a_rung_decides_whether_trial_continues() -> None:
    for go, order in ((True, do.Continue(FIRST, 8)), (False, do.Pause(FIRST))):
        story = advised()
        assert story.report(0, 4, 0.5) == [do.Predict(FIRST)]
        assert story.tell(ev.Predicted(AT, FIRST, go)) == [order]


def test_paused_trial_with_positive_prediction_resumes_next() -> None:
    story = advised(concurrency=2)
    story.report(0, 4, 0.5)
    story.tell(ev.Predicted(AT, FIRST, False))
    story.paused(0, 4)
    assert story.tell(ev.Predicted(AT, FIRST, False)) == []
    assert story.tell(ev.Predicted(AT, FIRST, True)) == [], "all workers are busy"
    story.report(1, 4, 0.4)
    story.tell(ev.Predicted(AT, SECOND, False))
    assert begins(story.paused(1, 4)) == [(FIRST, 8)]


@pytest.mark.parametrize(
    ("budget", "limit"), [(Budget(usd=Money(9)), "budget_usd"), (Budget(gpu_ms=9), "budget_gpu_hours")]
)
def test_budget_is_exhausted_if_no_trial_can_finish_and_none_runs(budget: Budget, limit: str) -> None:
    story = advised()
    story.state.budget = budget
    assert story.tell(ev.Predicted(AT, None, False)) == []
    assert story.state.exhausted_limit == limit
    story.report(0, 4, 0.5)
    story.tell(ev.Predicted(AT, FIRST, False))
    assert commands_after(story.state, ev.Paused(AT, FIRST, 4)) == [do.Suggest(SECOND)]
    assert endings(commands_after(story.state, ev.Predicted(AT, None, False))) == [("succeeded", limit)]


def test_trial_without_checkpoint_is_not_paused_for_the_leader() -> None:
    """It would have to start again from the beginning."""
    story = Story(concurrency=2, scheduler="auto", fidelity=LONG)
    second_ns = 10**9
    story.state.budget = Budget(usd=Money(60_000))  # at 1,000 micro-dollars per second: 60 steps
    for number, resumable, steps in ((0, True, 30), (1, False, 3), (1, True, 4)):
        record = story.state.trials[number]
        record.target_step = 48
        report = ev.Reported(
            AT, record.id, steps, 0.9 - number / 2, Money(0), resumable, (steps - record.steps) * second_ns
        )
        orders = story.tell(report)
        parks = number == 1 and resumable
        assert orders == ([do.Pause(SECOND)] if parks else [])


def test_affordable_waiting_trial_resumes_before_an_unaffordable_one() -> None:
    """Of two waiting trials, the first cannot be finished any more, the second can, and no new trial begins."""
    leader, far, near = Trial("running", 20, 40), Trial("paused", 5, 12), Trial("paused", 36, 40)
    state = state_of(28, leader, far, near)
    state.budget = replace(state.budget, trials=3)
    assert commands_after(state, ev.ControlRequested(AT, "resume")) == [
        do.Begin("trial_00002", {"x": 0.5}, 40)
    ]


def test_continuing_leader_is_not_promoted_twice() -> None:
    story = Story(concurrency=2, trials=1)
    assert story.report(0, 1, 0.5) == [do.Continue(FIRST, 3)]
    assert story.state.ending is None


def test_trial_is_promoted_only_after_its_checkpoint_is_saved() -> None:
    story = Story(concurrency=3)
    for trial, value in enumerate((0.9, 0.5, 0.1)):
        assert story.report(trial, 1, value) == [do.Pause(f"trial_0000{trial}")]
    assert begins(story.paused(1, 1)) == [("trial_00003", 1)]
    assert begins(story.paused(0, 1)) == [(FIRST, 3)]


# Warm start


def inherits(story: Story, *curve: tuple[int, float]) -> str:
    number = len(story.state.trials)
    story.state.suggesting = False
    event = ev.Suggested(AT, f"trial_{number:05d}", {"x": 0.1}, Inherited("job_0", FIRST, curve, 3000))
    commands_after(story.state, event)
    return story.state.trials[number].status


def test_inherited_trial_gets_the_status_its_curve_implies() -> None:
    assert inherits(Story(), (1, 0.5), (3, 0.6)) == "paused"
    assert inherits(Story(), (1, 0.5), (9, 0.6)) == "completed"
    assert inherits(advised(), (3, 0.6)) == "paused"
    assert inherits(Story(scheduler="none", fidelity=Fidelity()), (3, 0.6)) == "paused"
    story = Story(scheduler="asha_stopping")
    assert inherits(story, (1, 0.5)) == "paused"
    assert inherits(story, (1, 0.4)) == "stopped"
    assert story.state.trials[-1].reason == "not among the best trials at step 1"


def test_best_other_trial_is_finished_if_the_leader_fails() -> None:
    story = Story(trials=3)
    for number, value in enumerate((0.9, 0.5, 0.4)):
        story.report(number, 1, value)
        story.paused(number, 1)
    assert story.state.trial(FIRST).status == "running", "it is the best third"
    story.tell(ev.Failed(AT, FIRST, "diverged"))
    assert (story.state.leader, story.state.finisher) == (0, 1)
    assert begins(story.orders)[-1] == (SECOND, 3)
    story.report(1, 3, 0.6)
    assert story.state.finisher == 1


def test_trial_that_was_paused_at_a_rung_continues_with_asha_stopping() -> None:
    story = Story(scheduler="asha_stopping", concurrency=3, trials=3)
    story.tell(ev.ControlRequested(AT, "pause"))
    for number, value in enumerate((None, 0.5, 0.9)):  # the first trial reports no metric
        story.report(number, 1, value)
        story.paused(number, 1)
    story.state.ended, story.state.ending = False, None
    story.tell(ev.Launched(AT), ev.ControlRequested(AT, "resume"))
    assert begins(story.orders)[-1] == ("trial_00002", 3)
    assert story.state.trial(SECOND).status == "stopped"


def test_inherited_result_counts_for_the_plateau() -> None:
    story = Story(plateau=Plateau(100, 0.0), fidelity=Fidelity(min=9, max=9))
    inherits(story, (1, 0.96))
    for step, value, spent in ((1, 0.1, 0), (2, 0.2, 50)):
        story.report(0, step, value, spent=spent)
        assert story.state.ending is None
    story.report(0, 3, 0.3, spent=150)
    assert story.state.ending is not None
    assert story.state.ending.reason == "plateau"


def test_scores_of_a_lower_stage_of_the_proxies_are_no_gain() -> None:
    fidelity = Fidelity(min=1, max=9, reduction_factor=3, proxies={"resolution": (16, 32)})
    loss = Objective("loss", mode="min")
    story = Story(objective=loss, fidelity=fidelity, concurrency=2, plateau=Plateau(100, 0.0))
    story.report(1, 1, 3.0)
    story.report(1, 2, 2.0)
    story.report(0, 1, 1.0, spent=50)
    assert story.state.plateau_score == -2.0
    assert story.state.leader_stage == 1


def test_an_inherited_trial_that_reached_the_target_ends_the_job() -> None:
    story = Story(objective=Objective("acc", target=0.9))
    inherits(story, (1, 0.95))
    assert story.state.ending is not None
    assert story.state.ending.reason == "target"


def test_with_proxies_only_scores_of_the_highest_stage_are_compared() -> None:
    """A score at a low resolution neither leads nor reaches the target."""
    proxies = {"resolution": (16, 32)}
    fidelity = Fidelity(min=1, max=9, reduction_factor=3, proxies=proxies)
    story = Story(objective=Objective("acc", target=0.9), fidelity=fidelity, concurrency=2)
    story.report(0, 1, 0.95)
    assert (story.state.leader, story.state.ending) == (0, None)
    story.report(1, 1, 0.5)
    story.report(1, 2, 0.4)
    assert (story.state.leader, story.state.leader_score) == (1, 0.4)
    story.report(1, 3, 0.91)
    assert story.state.ending is not None
    assert story.state.ending.reason == "target"
    assert story.state.stages == {0: (2, 0), 1: (2, 0)}, "the steps of each stage, and their time"


def test_with_proxies_auto_uses_the_rungs_that_have_values() -> None:
    story = Story(scheduler="auto", fidelity=Fidelity(min=1, max=27, proxies={"resolution": (16, 24, 32)}))
    assert [rung.step for rung in story.state.rungs] == [1, 3, 9]
