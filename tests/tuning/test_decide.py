"""Test decisions as short stories: a sequence of events, and the commands that follow."""

import math
from collections.abc import Sequence

import pytest

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, JobSpec, Plateau, SchedulerName, TrialLimits
from tuner.domain.money import Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.space import Float, Space
from tuner.domain.time import NS, Instant
from tuner.tuning.decide import decide
from tuner.tuning.state import State, Status

AT = Instant(0)


class Story:
    """A job that receives events one by one. Suggestions are answered immediately."""

    def __init__(
        self,
        concurrency: int = 1,
        scheduler: SchedulerName = "asha",
        trials: int | None = None,
        configs: Sequence[float] = (),
        **more: object,
    ) -> None:
        """`configs` are the values of `x` that are suggested first. All later values are 0.5."""
        self.configs = iter(configs)
        self.spec = JobSpec(
            "a",
            "m:f",
            more.pop("objective", Objective("acc")),  # type: ignore[arg-type]
            Space({"x": Float(0, 1)}),
            Budget(usd=Money(10**6), trials=trials, on_exhausted=more.pop("on_exhausted", "finish")),  # type: ignore[arg-type]
            fidelity=more.pop("fidelity", Fidelity(min=1, max=9)),  # type: ignore[arg-type]
            algorithm=Algorithm(scheduler=scheduler),
            **more,  # type: ignore[arg-type]
        )
        self.state = State.fresh(self.spec, concurrency=concurrency, rate=Rate(Price(3_600_000)))
        self.orders: list[do.Command] = []
        self.tell(ev.Launched(AT, rules=ev.RULES), ev.ControlRequested(AT, "resume"))

    def tell(self, *events: ev.Event) -> list[do.Command]:
        """Return the commands that follow, without requests for suggestions."""
        shown: list[do.Command] = []
        waiting = list(events)
        while waiting:
            self.state, orders = decide(self.state, waiting.pop(0))
            for order in orders:
                if isinstance(order, do.Suggest):
                    waiting.insert(0, ev.Suggested(AT, order.trial, {"x": next(self.configs, 0.5)}))
                else:
                    shown.append(order)
        self.orders += shown
        return shown

    def report(
        self, trial: int, step: int, value: float | None, *, resumable: bool = True, spent: int = 0
    ) -> list[do.Command]:
        return self.tell(ev.Reported(AT, f"trial_{trial:05d}", step, value, Money(spent), resumable))

    def paused(self, trial: int, step: int) -> list[do.Command]:
        return self.tell(ev.Paused(AT, f"trial_{trial:05d}", step))


def begins(orders: list[do.Command]) -> list[tuple[str, int | None]]:
    return [(order.trial, order.target_step) for order in orders if isinstance(order, do.Begin)]


def test_job_starts_as_many_trials_as_its_concurrency() -> None:
    assert begins(Story(concurrency=3).orders) == [(f"trial_0000{n}", 1) for n in range(3)]


def test_start_of_a_worker_that_replaces_an_earlier_one_is_not_a_first_start() -> None:
    story = Story(concurrency=2)
    for step, warming_ns in enumerate((5, 0, 7, 11), start=1):
        story.tell(ev.Reported(AT, "trial_00000", step, 0.5, Money(0), True, warming_ns=warming_ns))
    assert (story.state.warmed, story.state.warming_ns) == (2, 12)


def test_a_trial_below_the_cut_pauses_and_a_new_one_begins() -> None:
    story = Story()
    assert story.report(0, 1, 0.5) == [do.Pause("trial_00000")]
    assert begins(story.paused(0, 1)) == [("trial_00001", 1)]


def test_the_best_third_of_a_rung_is_promoted() -> None:
    story = Story()
    for number, value in enumerate([0.5, 0.9]):
        story.report(number, 1, value)
        story.paused(number, 1)
    story.report(2, 1, 0.1)
    assert begins(story.paused(2, 1)) == [("trial_00001", 3)]


def test_trial_promoted_by_its_own_report_continues_without_pause() -> None:
    story = Story()
    for number, value in enumerate([0.1, 0.2]):
        story.report(number, 1, value)
        story.paused(number, 1)
    assert story.report(2, 1, 0.9) == [do.Continue("trial_00002", 3)]


def test_a_report_that_crosses_two_rungs_counts_on_both() -> None:
    story = Story()
    story.report(0, 4, 0.5)
    assert [0 in rung.recorded for rung in story.state.rungs] == [True, True]


def test_the_last_step_finishes_the_trial() -> None:
    story = Story(scheduler="none")
    assert begins(story.orders) == [("trial_00000", 9)]
    assert story.report(0, 9, 0.5) == [do.Finish("trial_00000")]
    story.tell(ev.Completed(AT, "trial_00000"))
    assert story.state.trial("trial_00000").status == "completed"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_value_fails_the_trial_but_not_the_job(value: float) -> None:
    story = Story()
    (stop,) = story.report(0, 1, value)
    assert isinstance(stop, do.Stop)
    assert begins(story.tell(ev.Stopped(AT, "trial_00000"))) == [("trial_00001", 1)]
    assert story.state.trial("trial_00000").status == "failed"


def test_metric_missing_at_rung_fails_trial_and_is_named() -> None:
    story = Story()
    (stop,) = story.report(0, 1, None)
    assert isinstance(stop, do.Stop)
    assert "'acc'" in stop.reason


def test_rung_uses_last_reported_value_if_metric_is_missing() -> None:
    story = Story(fidelity=Fidelity(min=2, max=8, reduction_factor=2))
    story.report(0, 1, 0.5)
    assert story.report(0, 2, None) == [do.Pause("trial_00000")]
    assert story.state.rungs[0].ranked == [(0.0, -0.5, 0)]


def test_three_identical_failures_at_start_end_the_job() -> None:
    story = Story()
    for number in range(3):
        story.tell(ev.Failed(AT, f"trial_{number:05d}", "ValueError: no data"))
    end = story.orders[-1]
    assert isinstance(end, do.EndJob)
    assert (end.state, end.reason) == ("failed", "error")
    assert "no data" in end.detail


def test_failures_after_a_successful_report_do_not_end_the_job() -> None:
    story = Story()
    story.report(0, 1, 0.5)
    story.paused(0, 1)
    for number in range(1, 9):
        story.tell(ev.Failed(AT, f"trial_{number:05d}", "ValueError: no data"))
    assert story.state.ending is None


def test_reached_target_pauses_all_trials_and_ends_the_job() -> None:
    story = Story(concurrency=2, objective=Objective("acc", target=0.9))
    orders = story.report(0, 1, 0.95)
    assert orders == [do.Pause("trial_00000"), do.Pause("trial_00001")]
    story.paused(0, 1)
    assert story.paused(1, 0)[-1] == do.EndJob(
        "succeeded", "target", "trial_00000 reached acc 0.95 at step 1"
    )


def test_a_plateau_ends_the_job_once_the_patience_is_spent() -> None:
    story = Story(plateau=Plateau(100, 0.01))
    story.report(0, 1, 0.5, spent=50)
    story.paused(0, 1)
    story.report(1, 1, 0.505, spent=149)
    story.paused(1, 1)
    assert story.state.ending is None
    story.report(2, 1, 0.4, spent=150)
    assert story.state.ending is not None
    assert story.state.ending.reason == "plateau"


def test_refused_hold_ends_job_only_when_no_trial_runs() -> None:
    story = Story(concurrency=2)
    assert story.tell(ev.Refused(AT, "trial_00001", "budget_usd")) == []
    assert story.report(0, 1, 0.5) == [do.Pause("trial_00000")]
    assert begins(story.paused(0, 1))[0] == ("trial_00001", 1)
    story.tell(ev.Refused(AT, "trial_00002", "budget_usd"))
    orders = story.tell(ev.Refused(AT, "trial_00001", "budget_usd"))
    assert orders == [do.EndJob("succeeded", "budget_usd")]


def test_refused_promotion_is_skipped_for_a_new_trial_and_retried() -> None:
    story = Story(trials=2)
    story.report(0, 1, 0.5)
    assert begins(story.paused(0, 1)) == [("trial_00001", 1)]
    story.report(1, 1, 0.4)
    assert begins(story.paused(1, 1)) == [("trial_00000", 3)], "the leader goes on"
    story.state.budget = Budget(usd=Money(10**6), trials=3)
    assert begins(story.tell(ev.Refused(AT, "trial_00000", "budget_usd"))) == [("trial_00002", 1)]
    story.report(2, 1, 0.1)
    assert begins(story.paused(2, 1)) == [("trial_00000", 3)], "the money that came back may be enough"
    assert story.tell(ev.Refused(AT, "trial_00000", "budget_usd")) == [do.EndJob("succeeded", "budget_usd")]


def test_job_that_pauses_on_exhaustion_does_not_skip_refused_trials() -> None:
    story = Story(trials=1, on_exhausted="pause")
    story.report(0, 1, 0.5)
    assert begins(story.paused(0, 1)) == [("trial_00000", 3)]
    story.state.budget = Budget(usd=Money(10**6), trials=2, on_exhausted="pause")
    assert story.tell(ev.Refused(AT, "trial_00000", "budget_usd")) == [do.EndJob("paused", "budget_usd")]


def test_hold_refused_for_wall_clock_does_not_end_other_trials() -> None:
    story = Story(concurrency=2)
    assert story.tell(ev.Refused(AT, "trial_00001", "wall_clock")) == []
    assert story.state.trial("trial_00000").status == "running"


def test_reached_target_survives_driver_restart_and_pause_request() -> None:
    story = Story(concurrency=2, objective=Objective("acc", target=0.9))
    story.report(0, 1, 0.95)
    story.tell(ev.Launched(AT, {"trial_00000": 1}))
    ended = story.tell(ev.ControlRequested(AT, "pause"))
    assert [(order.state, order.reason) for order in ended if isinstance(order, do.EndJob)] == [
        ("succeeded", "target")
    ]


def test_target_reached_while_pausing_ends_the_job() -> None:
    story = Story(objective=Objective("acc", target=0.9))
    story.tell(ev.ControlRequested(AT, "pause"))
    story.report(0, 1, 0.95)
    assert [order.reason for order in story.paused(0, 1) if isinstance(order, do.EndJob)] == ["target"]


def test_failure_counts_after_driver_restart() -> None:
    story = Story(trials=1)
    story.report(0, 1, math.nan)
    story.tell(ev.Launched(AT))
    ended = story.tell(ev.ControlRequested(AT, "resume"))
    assert [order.state for order in ended if isinstance(order, do.EndJob)] == ["failed"]


def test_job_paused_by_budget_resumes_with_the_refused_trial() -> None:
    story = Story(on_exhausted="pause")
    assert story.tell(ev.Refused(AT, "trial_00000", "budget_usd")) == [do.EndJob("paused", "budget_usd")]
    story.tell(ev.BudgetChanged(AT, Budget(usd=Money(10**7))), ev.Launched(AT))
    assert begins(story.tell(ev.ControlRequested(AT, "resume"))) == [("trial_00000", 1)]


def test_wall_clock_end_pauses_all_trials_and_ends_the_job() -> None:
    story = Story(concurrency=2)
    story.state.trials[0].value = 0.5
    assert story.tell(ev.WallClockEnded(AT)) == [do.Pause("trial_00000"), do.Pause("trial_00001")]
    story.paused(0, 0)
    assert story.paused(1, 0) == [do.EndJob("succeeded", "wall_clock")]


def test_job_that_ends_without_any_metric_fails() -> None:
    story = Story(concurrency=1)
    story.tell(ev.WallClockEnded(AT))
    why = "no trial reported the metric 'acc' before the job ended"
    assert story.paused(0, 0) == [do.EndJob("failed", "wall_clock", why)]


def test_changed_budget_cancels_a_pending_wall_clock_end() -> None:
    story = Story()
    assert story.tell(ev.WallClockEnded(AT)) == [do.Pause("trial_00000")]
    story.tell(ev.BudgetChanged(AT, Budget(usd=Money(10**7))))
    assert begins(story.paused(0, 0)) == [("trial_00000", 1)]


def test_cancel_stops_running_trials_immediately() -> None:
    story = Story(concurrency=2)
    orders = story.tell(ev.ControlRequested(AT, "cancel"))
    assert [type(order) for order in orders] == [do.Stop, do.Stop]
    story.tell(ev.Stopped(AT, "trial_00000"))
    assert story.tell(ev.Stopped(AT, "trial_00001")) == [do.EndJob("cancelled", "cancelled")]


def test_leader_continues_to_last_step_if_no_trial_may_begin() -> None:
    story = Story(trials=2)
    story.report(0, 1, 0.5)
    story.paused(0, 1)
    assert story.report(1, 1, 0.9) == [do.Continue("trial_00001", 3)]
    assert story.report(1, 3, 0.9) == [do.Continue("trial_00001", 9)]
    assert story.report(1, 9, 0.9) == [do.Finish("trial_00001")]
    assert story.tell(ev.Completed(AT, "trial_00001")) == [do.EndJob("succeeded", "trials")]


def test_job_out_of_trials_pauses_if_configured_and_resumes_with_more_trials() -> None:
    story = Story(scheduler="none", trials=1, on_exhausted="pause")
    story.report(0, 9, 0.5)
    assert story.tell(ev.Completed(AT, "trial_00000")) == [do.EndJob("paused", "trials")]
    story.tell(ev.BudgetChanged(AT, Budget(usd=Money(10**6), trials=2, on_exhausted="pause")))
    story.tell(ev.Launched(AT))
    assert begins(story.tell(ev.ControlRequested(AT, "resume"))) == [("trial_00001", 9)]


def test_trial_of_lost_worker_repeats_steps_without_new_decisions() -> None:
    story = Story(fidelity=Fidelity(min=3, max=9))
    story.report(0, 1, 0.5)
    story.report(0, 2, 0.6)
    assert begins(story.tell(ev.Lost(AT, "trial_00000", 1, "node gone"))) == [("trial_00000", 3)]
    assert story.report(0, 2, 0.6) == []
    assert story.report(0, 3, 0.7) == [do.Pause("trial_00000")]


def test_a_trial_that_kills_every_worker_fails() -> None:
    story = Story()
    for _ in range(5):
        story.tell(ev.Lost(AT, "trial_00000", 0, "node gone"))
    assert story.state.trial("trial_00000").status == "failed"


def test_trial_that_loses_its_worker_at_the_same_step_five_times_fails() -> None:
    story = Story(fidelity=Fidelity(min=9, max=9))
    for _ in range(5):
        assert story.state.trial("trial_00000").status == "running"
        story.report(0, 1, 0.5)
        story.report(0, 2, 0.5)
        story.tell(ev.Lost(AT, "trial_00000", 0, "node gone"))
    assert story.state.trial("trial_00000").status == "failed"


def test_trial_that_loses_workers_at_different_steps_keeps_running() -> None:
    story = Story(fidelity=Fidelity(min=9, max=9))
    story.report(0, 4, 0.5)
    for step in (1, 2, 3, 1, 2, 3, 1, 2):
        story.tell(ev.Lost(AT, "trial_00000", 0, "node gone"))
        assert story.state.trial("trial_00000").status == "running"
        story.report(0, step, 0.5)


def test_trial_that_loses_workers_without_progress_fails_after_a_bounded_number_of_attempts() -> None:
    """Newer checkpoints and new steps are progress. Steps that were reported before are not."""
    story = Story(fidelity=Fidelity(min=9, max=9))
    trial = story.state.trial("trial_00000")

    def lose(saved: int, times: int, *, in_step: bool = False) -> None:
        for _ in range(times):
            assert trial.status == "running"
            story.report(0, saved + 1, 0.5)
            story.tell(ev.Lost(AT, trial.id, saved, "node gone", in_step, most=3))

    story.report(0, 6, 0.5)
    lose(0, 2)
    lose(1, 3)  # the first of them brought a newer checkpoint
    lose(1, 1, in_step=True)
    lose(1, 2)
    story.report(0, 7, 0.5)
    lose(1, 3)
    assert (trial.status, trial.losses_without_progress) == ("failed", 3)
    assert trial.reason == "3 attempts in a row were lost without a new step or a newer checkpoint: node gone"


def test_unsaveable_trial_continues_or_stops_at_its_rung() -> None:
    story = Story()
    assert story.report(0, 1, 0.9, resumable=False) == [do.Continue("trial_00000", 3)]
    story.report(0, 3, 0.9, resumable=False)
    story.tell(ev.Failed(AT, "trial_00000", "x"))
    (stop,) = story.report(1, 1, 0.1, resumable=False)
    assert isinstance(stop, do.Stop)


def test_stopping_asha_continues_first_trial_and_stops_trial_below_cut() -> None:
    story = Story(scheduler="asha_stopping")
    assert story.report(0, 1, 0.5) == [do.Continue("trial_00000", 3)]
    story.report(0, 3, 0.5), story.report(0, 9, 0.5)
    story.tell(ev.Completed(AT, "trial_00000"))
    assert isinstance(story.report(1, 1, 0.4)[0], do.Stop)


def test_restarted_driver_resumes_running_trials_but_not_stopped_ones() -> None:
    story = Story(concurrency=2, fidelity=Fidelity(min=3, max=9))
    story.report(0, 1, 0.5)
    story.report(1, 1, math.nan)
    story.tell(ev.Launched(AT))
    assert begins(story.tell(ev.ControlRequested(AT, "resume"))) == [("trial_00000", 3), ("trial_00002", 3)]
    assert story.state.trial("trial_00001").status == "failed"


def test_finishing_trial_lost_before_save_repeats_to_its_last_step() -> None:
    story = Story(scheduler="none")
    story.report(0, 9, 0.5)
    assert begins(story.tell(ev.Lost(AT, "trial_00000", 6, "node gone"))) == [("trial_00000", 9)]
    assert story.report(0, 7, 0.5) == []
    assert story.report(0, 9, 0.5) == [do.Finish("trial_00000")]


def test_minimised_objective_promotes_lowest_value() -> None:
    story = Story(objective=Objective("loss", mode="min"))
    for number, value in enumerate([0.5, 0.1]):
        story.report(number, 1, value)
        story.paused(number, 1)
    story.report(2, 1, 0.9)
    assert begins(story.paused(2, 1)) == [("trial_00001", 3)]


def test_pace_of_trial_follows_its_latest_steps() -> None:
    story = Story(fidelity=Fidelity(min=9, max=9))
    for step, (train_ns, pace_ns) in enumerate([(100, 100), (100, 100), (500, 200), (200, 200)], start=1):
        story.tell(ev.Reported(AT, "trial_00000", step, 0.5, Money(0), True, train_ns))
        assert story.state.trials[0].pace_ns == pace_ns
    story.tell(ev.Reported(AT, "trial_00000", 6, 0.5, Money(0), True, 800))
    assert story.state.trials[0].pace_ns == 250, "two steps at once"


# Requests of users about trials


def paused_trials(*values: float, trials: int | None = None) -> Story:
    """A job whose trials wait at the first rung with these values, and whose budget may allow no more of them."""
    story = Story(trials=trials)
    for number, value in enumerate(values):
        story.report(number, 1, value)
        story.paused(number, 1)
    return story


def test_more_trials_at_once_begin_at_once() -> None:
    story = Story(concurrency=1)
    assert begins(story.tell(ev.ConcurrencyChanged(AT, 3))) == [("trial_00001", 1), ("trial_00002", 1)]


def test_fewer_trials_at_once_pause_those_with_the_fewest_steps_and_they_resume_first() -> None:
    story = Story(concurrency=3, scheduler="none")
    story.report(1, 2, 0.5)
    story.report(2, 4, 0.5)
    assert story.tell(ev.ConcurrencyChanged(AT, 1)) == [do.Pause("trial_00000"), do.Pause("trial_00001")]
    assert story.paused(0, 0) + story.paused(1, 2) == []
    assert begins(story.tell(ev.ConcurrencyChanged(AT, 2))) == [("trial_00000", 9)]


def test_launch_sets_how_many_trials_run_at_once() -> None:
    story = Story()
    story.tell(ev.Launched(AT, {}, 2))
    assert len(begins(story.tell(ev.ControlRequested(AT, "resume")))) == 2


def test_enqueued_configuration_comes_before_a_promotion() -> None:
    story = paused_trials(0.5, 0.9)
    story.tell(ev.EnqueueRequested(AT, 1, {"x": 0.1}))
    story.report(2, 1, 0.1)
    assert begins(story.paused(2, 1)) == [("trial_00003", 1)]
    assert (story.state.requests, list(story.state.queue)) == (1, [])


def test_enqueued_configuration_is_tried_after_the_space_is_exhausted() -> None:
    story = Story()
    story.state.space_exhausted = True
    story.tell(ev.EnqueueRequested(AT, 1, {"x": 0.1}))
    assert begins(story.tell(ev.Failed(AT, "trial_00000", "no data"))) == [("trial_00001", 1)]


def test_stopped_trial_frees_its_worker_and_is_never_promoted() -> None:
    story = paused_trials(0.5, 0.9)
    assert story.tell(ev.StopRequested(AT, 1, "trial_00001")) == []
    assert story.state.trials[1].status == "stopped"
    (stop,) = story.tell(ev.StopRequested(AT, 2, "trial_00002"))
    assert stop == do.Stop("trial_00002", "stopped by a user")
    assert begins(story.tell(ev.Stopped(AT, "trial_00002"))) == [("trial_00003", 1)]
    story.report(3, 1, 0.1)
    assert begins(story.paused(3, 1)) == [("trial_00004", 1)]


def test_paused_trial_that_a_user_promotes_resumes_next() -> None:
    story = paused_trials(0.5, 0.1)
    assert story.tell(ev.PromoteRequested(AT, 1, "trial_00001")) == []
    assert story.tell(ev.PromoteRequested(AT, 2, "trial_00001")) == []  # it resumes already, to the same rung
    story.report(2, 1, 0.2)
    assert begins(story.paused(2, 1)) == [("trial_00001", 3)]


def test_running_trial_that_a_user_promotes_passes_its_next_rung() -> None:
    story = Story()
    assert story.tell(ev.PromoteRequested(AT, 1, "trial_00000")) == [do.Continue("trial_00000", 3)]
    assert story.report(0, 1, 0.5) == []
    assert story.report(0, 3, 0.5) == [do.Pause("trial_00000")]


@pytest.mark.parametrize("status", ["new", "completed", "stopped", "failed", "stopping", "finishing"])
def test_request_that_a_trial_cannot_follow_changes_nothing(status: Status) -> None:
    story = Story()
    trial = story.state.trials[0]
    story.state.set(trial, status)
    story.state.accepting_work = False
    assert story.tell(ev.PromoteRequested(AT, 1, "trial_00000")) == []
    assert (trial.status, trial.target_step) == (status, 1)
    if status != "new":
        assert story.tell(ev.StopRequested(AT, 2, "trial_00000")) == []
        assert trial.status == status


# Limits of single trials


@pytest.mark.parametrize(
    ("values", "stops"), [((0.5, 0.51, 0.52, 0.53), True), ((0.5, 0.55, 0.58, 0.62), False)]
)
def test_trial_without_a_gain_stops(values: tuple[float, ...], stops: bool) -> None:
    story = Story(scheduler="none", trial_limits=TrialLimits(patience=3, min_gain=0.05))
    for step, value in enumerate(values, 1):
        commands = story.report(0, step, value)
    reason = "no gain of at least 0.05 in 3 steps"
    assert commands == ([do.Stop("trial_00000", reason)] if stops else [])


def test_gains_of_a_trial_are_compared_within_a_stage_of_the_proxies() -> None:
    story = Story(
        scheduler="none",
        objective=Objective("loss", mode="min"),
        fidelity=Fidelity(min=3, max=27, reduction_factor=3, proxies={"resolution": (16, 32)}),
        trial_limits=TrialLimits(patience=3),
    )
    for step, value in enumerate((1.2, 1.1, 1.0, 2.0, 1.8, 1.6, 1.5), 1):
        assert story.report(0, step, value) == []


def test_trial_stops_before_a_step_that_would_exceed_its_limits() -> None:
    for limits, last in (
        (TrialLimits(max_duration_ns=4 * NS), 4),
        (TrialLimits(max_cost_micro_usd=290), 2),
        (TrialLimits(max_duration_ns=100 * NS), 9),
    ):
        story = Story(scheduler="none", trial_limits=limits)
        for step in range(1, 10):
            money, extra = Money(100 * step), (None, None, step * NS, Money(100 * step))
            commands = story.tell(ev.Reported(AT, "trial_00000", step, 0.5, money, True, NS, *extra))
            if commands:
                break
        assert step == last
        assert isinstance(commands[0], do.Finish if last == 9 else do.Stop)
