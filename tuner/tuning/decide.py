"""`decide(state, event) -> (state, commands)`: the only entry point of the tuning logic.

`decide` changes the given state in place, so the caller must use only the state that it returns. The same events in the same order
always result in the same commands: in a real job, in the simulator, and when a job is rebuilt from its recorded events.
"""

from dataclasses import replace
from typing import assert_never

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.budget import BUDGET
from tuner.domain.commands import Command
from tuner.domain.events import Event
from tuner.domain.ids import trial_id
from tuner.domain.job import COST_LIMITS, StopReason
from tuner.tuning import confirm, stopping
from tuner.tuning.reserve import Reserve
from tuner.tuning.schedulers import raise_target, scheduler_for
from tuner.tuning.state import Ending, State, Status, TrialRecord
from tuner.tuning.steps import (
    at_step,
    continue_trial,
    drop,
    inherit,
    lacks_metric,
    make_room,
    no_metric,
    pause_at_rung,
    pause_excess,
    promote_by_user,
    record_rungs,
    stop_by_user,
)

LOSSES_WITHOUT_NEW_STEP = 5
OUTSIDE_WINDOW = Ending(
    "paused",
    None,
    "outside its time window; the job continues automatically when the window opens again",
    reopens=True,
)


def decide(state: State, event: Event) -> tuple[State, list[Command]]:
    """Apply an event to the state and return the resulting commands.

    Free workers get work. If the job is ending and no attempt runs, the job ends instead.
    """
    orders = _note(state, event)
    orders += _fill(state)
    idle = not state.active and not state.suggesting and not isinstance(event, ev.Launched)
    if state.ending and not state.ended and idle:
        state.ended, state.accepting_work = True, False
        end = state.ending = _unless_nothing_was_learned(state, state.ending)
        orders.append(do.EndJob(end.state, end.reason, end.detail, end.reopens, end.waits_for))
    return state, orders


def _unless_nothing_was_learned(state: State, ending: Ending) -> Ending:
    """Turn a success into a failure if no trial ever reported the objective's metric, because the job then has no result.

    If the metric was reported, but no report met the constraints, the ending stays a success, and its detail names the constraints.
    """
    if ending.state != "succeeded":
        return ending
    if any(trial.value is not None for trial in state.trials):
        limits = ", ".join(map(str, state.spec.constraints))
        infeasible = f"no trial has met the constraints: {limits}" if state.leader_violation else ""
        return replace(ending, detail="; ".join(filter(None, [ending.detail, infeasible])))
    detail = f"no trial reported the metric {state.spec.objective.metric!r} before the job ended"
    return replace(ending, state="failed", detail=detail)


def _note(state: State, event: Event) -> list[Command]:
    match event:
        case ev.Launched():
            return _on_launched(state, event)
        case ev.Suggested() | ev.Predicted():
            return _on_answer(state, event)
        case ev.Reported():
            return _on_reported(state, event)
        case ev.Paused() | ev.Completed() | ev.Stopped() | ev.Failed() | ev.Lost() | ev.Preempted():
            return _on_attempt_end(state, event)
        case ev.Refused():
            return _on_refused(state, event)
        case ev.WallClockEnded() | ev.WindowClosed():
            return _out_of(state, "window" if isinstance(event, ev.WindowClosed) else "wall_clock")
        case _:
            return _on_user(state, event)


ByUser = ev.ControlRequested | ev.BudgetChanged | ev.ConcurrencyChanged | ev.TrialRequest


def _on_user(state: State, event: ByUser) -> list[Command]:
    match event:
        case ev.ControlRequested():
            return _on_control_request(state, event)
        case ev.BudgetChanged():
            return _on_budget_changed(state, event)
        case ev.ConcurrencyChanged():
            state.concurrency = event.concurrency
            return pause_excess(state)
        case ev.EnqueueRequested() | ev.StopRequested() | ev.PromoteRequested():
            return _on_trial_request(state, event)


def _on_launched(state: State, event: ev.Launched) -> list[Command]:
    """Pause the trials that ran before this launch, so that they resume from their newest checkpoint.

    A trial that was being stopped gets its final status instead.
    """
    if state.ended and state.ending:
        stopping.renew_patience(state, state.ending, event.rules)
    state.confirming = state.confirming and not state.ended
    if state.ended or (state.ending and not state.ending.is_from_reports):
        state.ending = None
    state.accepting_work, state.suggesting, state.ended = False, False, False
    state.concurrency, state.rules = event.concurrency or state.concurrency, event.rules
    _money_moved(state)
    for number in sorted(state.active):
        trial = state.trials[number]
        if trial.status == "stopping":
            _ended_for_good(state, trial, trial.ends_as, trial.reason)
        else:
            _interrupt(state, trial, event.saved.get(trial.id, 0))
    return []


def _money_moved(state: State) -> None:
    """Forget earlier refusals of holds. Money may have been released or added, so that a refused hold is affordable now."""
    state.exhausted_limit, state.refusing_budget, state.skipped = None, "", {}


def _on_suggested(state: State, event: ev.Suggested) -> list[Command]:
    state.suggesting = False
    if event.config is None:
        state.space_exhausted = True
        return []
    # If the queue is not empty, the configuration comes from the queue: the sampler is asked only if the queue is empty.
    if state.queue and event.inherited is None:
        state.queue.popleft()
    trial = TrialRecord(len(state.trials), event.config, scheduler_for(state.spec).first_target(state))
    assert trial.id == event.trial, f"expected {trial.id}, got {event.trial}"
    state.trials.append(trial)
    state.set(trial, "new")
    ending = None if event.inherited is None else inherit(state, trial, event.inherited)
    return _end(state, ending) if ending is not None and state.ending is None else []


def _on_answer(state: State, event: ev.Suggested | ev.Predicted) -> list[Command]:
    return _on_suggested(state, event) if isinstance(event, ev.Suggested) else _on_predicted(state, event)


def _on_predicted(state: State, event: ev.Predicted) -> list[Command]:
    if event.trial is None:
        state.suggesting = False
        state.exhausted_limit = "budget_gpu_hours" if state.budget.usd is None else "budget_usd"
        return [] if state.active else _out_of(state, state.exhausted_limit)
    trial = state.trial(event.trial)
    if trial.status == "running":
        return continue_trial(state, trial) if event.go else pause_at_rung(state, trial)
    state.suggesting = False
    if event.go and trial.status == "paused":
        raise_target(state, trial)
        state.set(trial, "paused")
    return []


def _on_reported(state: State, event: ev.Reported) -> list[Command]:
    trial = state.trial(event.trial)
    if trial.status not in ("running", "pausing"):
        return []
    trial.resumable, trial.last_report = event.resumable, event.step
    trial.has_returned = event.last and event.value is not None
    _note_start_of_worker(state, event.warming_ns)
    trial.other_metrics = event.names or trial.other_metrics
    if event.step <= trial.steps:
        return at_step(state, trial, event.step)
    trial.losses = trial.losses_without_progress = 0
    if event.value is not None and not stopping.usable(event.value):
        metric = state.spec.objective.metric
        return drop(
            state,
            trial,
            "failed",
            f"reported {metric} = {event.value} at step {event.step}, which is not a finite number",
        )
    if event.lacks is not None and event.value is not None:
        return drop(state, trial, "failed", lacks_metric(state, trial, event.lacks, event.step))
    if event.value is not None:
        trial.value, trial.violation = event.value, event.violation or 0.0
    latest_ns = event.train_ns // (event.step - trial.steps)
    if state.spec.fidelity.proxies:
        stage = state.spec.fidelity.stage(event.step)
        steps, train_ns = state.stages.get(stage, (0, 0))
        state.stages[stage] = steps + event.step - trial.steps, train_ns + event.train_ns
    trial.pace_ns = (3 * trial.pace_ns + latest_ns) // 4 if trial.pace_ns else latest_ns
    state.steps, trial.steps = state.steps + event.step - trial.steps, event.step
    state.trained_ns, trial.trained_ns = (
        state.trained_ns + event.train_ns,
        trial.trained_ns + event.train_ns,
    )
    state.price_ns += (event.price or state.rate.price).micro_usd_per_hour * event.train_ns
    state.changed.add(trial.number)
    record_rungs(state, trial)
    ending = stopping.after_report(state, event) if event.value is not None else None
    if ending is not None and (state.ending is None or state.ending.state == "paused"):
        return _end(state, ending)
    over = stopping.trial_limit(state, trial, event)
    if over is not None and trial.status == "running" and not state.has_finished(trial):
        return drop(state, trial, "stopped", over) + make_room(state)
    return make_room(state) + at_step(state, trial, event.step)


def _note_start_of_worker(state: State, warming_ns: int) -> None:
    """Add the start of a worker to `State.warming_ns`, unless the worker replaces an earlier one."""
    if warming_ns and state.warmed < state.concurrency:
        state.warmed, state.warming_ns = state.warmed + 1, state.warming_ns + warming_ns


def _on_attempt_end(state: State, event: ev.AttemptEnded) -> list[Command]:
    trial = state.trial(event.trial)
    if trial.status not in ("running", "pausing", "finishing", "stopping"):
        return []
    _money_moved(state)
    orders = _on_end(state, trial, event)
    ending = stopping.ending(state) if state.ending is None else None
    return orders if ending is None else orders + _end(state, ending)


def _on_end(state: State, trial: TrialRecord, event: ev.AttemptEnded) -> list[Command]:
    if trial.status == "stopping":
        return _ended_for_good(state, trial, trial.ends_as, trial.reason)
    match event:
        case ev.Paused():
            return _interrupt(state, trial, event.step)
        case ev.Completed() if trial.value is None:
            return _ended_for_good(state, trial, "failed", no_metric(state, trial, trial.steps))
        case ev.Completed():
            return _ended_for_good(state, trial, "completed", "")
        case ev.Stopped():
            return _ended_for_good(state, trial, "stopped", "")
        case ev.Failed():
            return _ended_for_good(state, trial, "failed", event.reason)
        case ev.Lost() | ev.Preempted():
            return _on_gone(state, trial, event)


def _on_gone(state: State, trial: TrialRecord, event: ev.Lost | ev.Preempted) -> list[Command]:
    return _on_lost(state, trial, event) if isinstance(event, ev.Lost) else _on_preempted(state, trial, event)


def _on_lost(state: State, trial: TrialRecord, event: ev.Lost) -> list[Command]:
    reported_nothing = trial.last_report is None or trial.last_report >= trial.steps
    trial.losses = trial.losses + 1 if reported_nothing else 0
    progressed = event.step > trial.saved or event.in_step
    trial.losses_without_progress = 0 if progressed else trial.losses_without_progress + 1
    if trial.losses >= LOSSES_WITHOUT_NEW_STEP:
        reason = f"{trial.losses} attempts were lost without a new step in between: {event.reason}"
        return _ended_for_good(state, trial, "failed", reason)
    if event.most is not None and trial.losses_without_progress >= event.most:
        count = trial.losses_without_progress
        reason = (
            f"{count} attempts in a row were lost without a new step or a newer checkpoint: {event.reason}"
        )
        return _ended_for_good(state, trial, "failed", reason)
    return _interrupt(state, trial, event.step)


def _on_preempted(state: State, trial: TrialRecord, event: ev.Preempted) -> list[Command]:
    """Pause a trial whose attempt was preempted, and let it resume before other trials.

    Preemptions are not the trial's fault, so a trial may be preempted any number of times. Only the budget limits it.
    """
    trial.preemptions += 1
    trial.preemptions_without_progress = (
        0 if event.step > trial.kept or event.in_step else trial.preemptions_without_progress + 1
    )
    trial.kept, trial.was_preempted = event.step, True
    return _interrupt(state, trial, event.step)


def _interrupt(state: State, trial: TrialRecord, saved: int) -> list[Command]:
    """Pause a trial whose attempt ended with its newest checkpoint at step `saved`.

    A trial that has reported its last step is complete if that step was saved, or if the trial cannot save checkpoints. If the step
    could be saved but was not, the trial has to run it again.
    """
    trial.saved = saved
    is_complete = state.is_complete(trial, saved)
    trial.last_step_unsaved = state.has_finished(trial) and not is_complete
    state.set(trial, "completed" if is_complete else "paused")
    return []


def _ended_for_good(state: State, trial: TrialRecord, status: Status, reason: str) -> list[Command]:
    trial.reason = reason
    state.set(trial, status)
    ending = stopping.after_failure(state, reason) if status == "failed" else None
    return _end(state, ending) if ending is not None and state.ending is None else []


def _on_refused(state: State, event: ev.Refused) -> list[Command]:
    """React to a refused hold (reserved money): pause the trial if it was running. If it was about to start, let it wait.

    While other trials are active, nothing else happens, because their holds may release money. If no trial is active:

    - If a shared budget refused the hold, the job pauses until that budget allows more.
    - With `on_exhausted: finish`, a trial that already has steps is skipped, and the job tries other trials, which may be cheaper.
      The trial is tried again when money may have been released or added.
    - Otherwise the limit is exhausted: the job ends or pauses, or begins its confirmation.
    """
    trial = state.trial(event.trial)
    state.refusing_budget = event.above
    if trial.status == "running" and event.running:
        state.exhausted_limit = event.limit
        state.set(trial, "pausing")
        return [do.Pause(trial.id)]
    if trial.status == "running":
        state.set(trial, "paused" if trial.steps else "new")
    may_pass = trial.steps and not state.active and state.budget.on_exhausted == "finish"
    if may_pass and event.limit != "window" and not event.above:
        state.skipped[trial.number], state.exhausted_limit = event.limit, None
        return []
    state.exhausted_limit = event.limit
    return [] if state.active else _out_of(state, event.limit)


def _out_of(state: State, reason: StopReason | ev.Limit) -> list[Command]:
    if state.ending is not None or (
        reason in COST_LIMITS and not state.refusing_budget and confirm.begin(state)
    ):
        return []
    return _end(state, OUTSIDE_WINDOW if reason == "window" else _exhausted(state, reason))


def _exhausted(state: State, reason: StopReason) -> Ending:
    if state.refusing_budget and reason in COST_LIMITS:
        name = (
            "quota of the project"
            if state.refusing_budget == BUDGET
            else f"shared budget {state.refusing_budget!r}"
        )
        detail = f"the {name} is used up; the job continues when this budget has room again"
        return Ending("paused", reason, detail, waits_for=state.refusing_budget)
    return Ending("paused" if state.budget.on_exhausted == "pause" else "succeeded", reason)


def _on_budget_changed(state: State, event: ev.BudgetChanged) -> list[Command]:
    """Use the new budget. If the job is ending because of the old budget, cancel the ending.

    If the new budget is exhausted too, a later event ends the job.
    """
    state.budget = event.budget
    _money_moved(state)
    if not state.may_suggest:
        state.suggesting = False  # withdraw a pending suggestion, which would add a trial above the new limit
    if not state.ended and state.ending and state.ending.limit:
        state.ending = None
    return []


def _on_trial_request(state: State, event: ev.TrialRequest) -> list[Command]:
    state.requests = event.request
    match event:
        case ev.EnqueueRequested():
            state.queue.append(event.config)
            return []
        case ev.StopRequested():
            return stop_by_user(state, state.trial(event.trial))
        case ev.PromoteRequested():
            return promote_by_user(state, state.trial(event.trial))


def _on_control_request(state: State, event: ev.ControlRequested) -> list[Command]:
    match event.what:
        case "resume":
            state.accepting_work = True
            return []
        case "pause":
            state.accepting_work = True
            return (
                [] if state.ending and state.ending.is_from_reports else _end(state, Ending("paused", None))
            )
        case "cancel":
            state.ending = None
            return _end(state, Ending("cancelled", "cancelled"), pause=False)
        case _:
            assert_never(event.what)


def _end(state: State, ending: Ending, *, pause: bool = True) -> list[Command]:
    """Set the job's ending, so that no attempt starts any more, and end the active attempts.

    Args:
        ending: How the job ends.
        pause: Whether to pause running trials with a checkpoint. If false, they are stopped at once.
    """
    state.ending = ending
    orders: list[Command] = []
    for number in sorted(state.active):
        trial = state.trials[number]
        if pause and trial.status == "running":
            state.set(trial, "pausing")
            orders.append(do.Pause(trial.id))
        elif not pause and trial.status in ("running", "pausing", "finishing"):
            orders += drop(state, trial, "stopped", ending.detail or str(ending.reason))
    return orders


def _fill(state: State) -> list[Command]:
    """Give work to free workers: return the commands that start or resume trials or ask the sampler for a new configuration.

    Waiting trials come first, then configurations that the user queued, then trials to promote, then new configurations. The best trial
    comes last, if it is paused.
    """
    orders: list[Command] = []
    while (
        state.accepting_work
        and not state.ending
        and not state.exhausted_limit
        and len(state.active) < state.concurrency
    ):
        trial = confirm.next_repeat(state) if state.confirming else _next_to_run(state)
        if trial is None and state.may_suggest and not state.confirming:
            if not state.suggesting:
                state.suggesting = True
                orders.append(do.Suggest(trial_id(len(state.trials))))
            return orders
        trial = trial or (None if state.confirming else _leader_unfinished(state))
        if trial is None and confirm.begin(state):
            continue
        if trial is None:
            _nothing_left(state)
            return orders
        state.set(trial, "running")
        trial.last_report, trial.was_preempted = None, False
        state.begun += 1
        orders.append(do.Begin(trial.id, trial.config, trial.target_step))
    return orders


def _next_to_run(state: State) -> TrialRecord | None:
    """Return the next trial to start or resume, or None if no trial may run.

    A waiting trial comes first. Among the waiting trials, those that a user promoted come first, then preempted ones, then the others,
    each in the order of their numbers. A waiting trial is left out if its hold was refused (`State.skipped`), or if the money
    that is kept back for the best trial (the finish reserve) does not allow it to resume.

    If no waiting trial may run, the scheduler promotes a trial. It promotes none in two cases: while a trial is skipped,
    because that trial waits for the money, and while a configuration that the user queued may start, because it comes first.
    """
    reserve = Reserve.of(state)
    waiting = [state.trials[number] for number in sorted(state.ready) if number not in state.skipped]
    waiting.sort(key=lambda trial: (not trial.by_user, not trial.was_preempted))
    for trial in waiting:
        may_run = trial.status == "new" or trial.by_user
        if may_run or reserve is None or reserve.may_continue(trial):
            return trial
    wants_new = bool(state.queue) and state.may_suggest
    return None if state.skipped or wants_new else scheduler_for(state.spec).promote(state)


def _leader_unfinished(state: State) -> TrialRecord | None:
    """If the best trial is paused, raise its target step to the next rung, and return the trial. Otherwise return None.

    If the best trial has failed or was stopped, the best other trial takes its place. Call this if no new configuration may start. The
    rest of the budget then trains the best trial to its last step.
    """
    if state.finisher is None or not state.rungs or state.skipped:
        return None
    leader = state.trials[state.finisher]
    if leader.status != "paused":
        return None
    raise_target(state, leader)
    return leader


def _nothing_left(state: State) -> None:
    if state.active:
        return
    if state.skipped:
        state.ending = _exhausted(state, next(iter(state.skipped.values())))
    elif state.confirming:
        state.ending = Ending("succeeded", "confirmed")
    elif state.trials and all(trial.status == "failed" for trial in state.trials):
        state.ending = Ending(
            "failed", "error", f"all {len(state.trials)} trials failed, the last with: {state.failures[-1]}"
        )
    elif state.space_exhausted:
        state.ending = Ending("succeeded", "space_exhausted")
    else:
        state.ending = _exhausted(state, "trials")
