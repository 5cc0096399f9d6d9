"""React to the steps of trials: reports of running trials, requests of users, and steps that a new trial inherits from an earlier job."""

from tuner.domain import commands as do
from tuner.domain.commands import Command
from tuner.domain.events import Inherited
from tuner.domain.objective import SERVING_METRICS
from tuner.domain.text import did_you_mean
from tuner.tuning import stopping
from tuner.tuning.reserve import Reserve
from tuner.tuning.schedulers import next_target, raise_target, scheduler_for
from tuner.tuning.state import Ending, State, Status, TrialRecord

NAMES_SHOWN = 10
BY_USER = "stopped by a user"


def record_rungs(state: State, trial: TrialRecord) -> None:
    """Record the trial's score on every rung that it has crossed, not only on the highest."""
    if trial.value is None or trial.repeats is not None:
        return
    for rung in state.rungs:
        if rung.step <= trial.steps:
            rung.record(trial.number, state.spec.objective.score(trial.value), trial.violation)


def at_step(state: State, trial: TrialRecord, step: int) -> list[Command]:
    """React to a report of `step`: after the last step, finish the trial. At its target step, decide whether it continues.

    The last step is that of the job, or the one with which the trial's user code returned.

    A step may be reported again after the trial was restarted from an older checkpoint.
    """
    if trial.status != "running":
        return []
    if trial.has_returned or (state.max_step is not None and step >= state.max_step):
        if trial.value is None:
            return drop(state, trial, "failed", no_metric(state, trial, step))
        trial.last_step_unsaved = False
        state.set(trial, "finishing")
        return [do.Finish(trial.id)]
    if trial.target_step is None or step < trial.target_step:
        return []
    trial.by_user = False
    if trial.value is None:
        return drop(state, trial, "failed", no_metric(state, trial, step))
    return _at_rung(state, trial)


def _at_rung(state: State, trial: TrialRecord) -> list[Command]:
    match scheduler_for(state.spec).at_rung(state, trial):
        case "predict":
            return [do.Predict(trial.id)]
        case "continue":
            return [do.Continue(trial.id, trial.target_step)]
        case "stop":
            return drop(state, trial, "stopped", f"not among the best trials at step {trial.steps}")
        case "pause":
            return pause_at_rung(state, trial)


def continue_trial(state: State, trial: TrialRecord) -> list[Command]:
    raise_target(state, trial)
    return [do.Continue(trial.id, trial.target_step)]


def pause_at_rung(state: State, trial: TrialRecord) -> list[Command]:
    if not state.may_suggest and not state.suggesting and state.finisher == trial.number:
        return continue_trial(state, trial)
    return _pause(state, trial)


def _pause(state: State, trial: TrialRecord) -> list[Command]:
    state.set(trial, "pausing")
    return [do.Pause(trial.id)]


def make_room(state: State) -> list[Command]:
    """Pause running trials that would otherwise use the money that the leader needs to reach its last step."""
    reserve = Reserve.of(state)
    orders: list[Command] = []
    for trial in reserve.blocking_trials() if reserve is not None else ():
        if trial.resumable:
            orders += _pause(state, trial)
    return orders


def drop(state: State, trial: TrialRecord, ends_as: Status, reason: str) -> list[Command]:
    """Stop a running trial for good. Its status becomes `ends_as` once its attempt has ended."""
    assert ends_as in ("stopped", "failed")
    trial.ends_as, trial.reason = ends_as, reason
    state.set(trial, "stopping")
    return [do.Stop(trial.id, reason)]


def stop_by_user(state: State, trial: TrialRecord) -> list[Command]:
    """Stop a trial for good. Do nothing if it has ended or is saving its last step."""
    if trial.status in ("running", "pausing"):
        return drop(state, trial, "stopped", BY_USER)
    if trial.status in ("new", "paused"):
        trial.reason = BY_USER
        state.set(trial, "stopped")
    return []


def promote_by_user(state: State, trial: TrialRecord) -> list[Command]:
    """Let a trial run to the next rung, on a user's request. Do nothing if it has not begun or has ended."""
    if trial.status == "paused":
        trial.by_user = True
        if not trial.ready:
            raise_target(state, trial)
        state.set(trial, "paused")
    elif trial.status == "running" and trial.target_step is not None:
        trial.by_user, trial.target_step = True, next_target(state, trial.target_step)
        return [do.Continue(trial.id, trial.target_step)]
    return []


def pause_excess(state: State) -> list[Command]:
    """Pause running trials until at most `concurrency` trials run. Trials with the fewest steps are paused first, and of these the newest.

    Trials that cannot save checkpoints keep running.
    """
    running = [state.trials[n] for n in state.active if state.trials[n].status == "running"]
    running.sort(key=lambda trial: (trial.steps, -trial.number))
    excess = max(0, len(running) - state.concurrency)
    return [order for trial in running[:excess] if trial.resumable for order in _pause(state, trial)]


def no_metric(state: State, trial: TrialRecord, step: int) -> str:
    """Return the failure reason of a trial that did not report the objective's metric: what it reported instead, and how to fix it."""
    metric = state.spec.objective.metric
    return _missing(
        metric, f"did not report the metric {metric!r} up to step {step}", trial.other_metrics, step
    )


def lacks_metric(state: State, trial: TrialRecord, metric: str, step: int) -> str:
    """Return the failure reason of a trial whose report has the objective's metric, but not `metric`.

    `metric` is the metric of a constraint or of the second objective.
    """
    second = state.spec.second
    user = "the second objective" if second is not None and metric == second.metric else "a constraint"
    text = f"did not report {metric!r} at step {step}, which {user} of the job needs with each report"
    return _missing(metric, text, trial.other_metrics, step)


def _missing(metric: str, text: str, names: tuple[str, ...], step: int) -> str:
    if not step:
        return f"{text}; the trial ended without a report: return a number or {{{metric!r}: value}}, or call report()"
    if metric in names:
        return f"{text}; the value that the trial reported as {metric!r} is not a number"
    if metric in SERVING_METRICS:
        text += "; report the metric, or let the service measure it: train in one process with SpotSafe, and define export(config, state)"
    if not names:
        return text
    fix = did_you_mean(metric, names, cutoff=0.4)  # names of metrics are often abbreviated
    return f"{text}; the trial reported {', '.join(map(repr, names[:NAMES_SHOWN]))}{fix}"


def inherit(state: State, trial: TrialRecord, inherited: Inherited) -> Ending | None:
    """Give a new trial the progress of an earlier job's trial (warm start), as if this job had trained these steps.

    The earlier training time does not count as training time of this job.

    Returns:
        An ending if the inherited value already reaches the target, else None.
    """
    violations = inherited.violations or (0.0,) * len(inherited.curve)
    for (step, value), violation in zip(inherited.curve, violations, strict=True):
        trial.steps, trial.value, trial.violation = step, value, violation
        record_rungs(state, trial)
        stopping.lead(state, trial, value)
    if state.leader == trial.number and not trial.violation:
        state.plateau_score = max(state.plateau_score, state.leader_score)
    trial.kept = trial.saved = inherited.step
    trial.trained_ns = inherited.trained_ns
    trial.pace_ns = inherited.trained_ns // inherited.step
    if state.max_step is not None and trial.steps >= state.max_step:
        state.set(trial, "completed")
    elif trial.target_step is None or trial.steps < trial.target_step:
        state.set(trial, "paused")
    else:
        verdict = scheduler_for(state.spec).at_rung(state, trial)
        trial.reason = f"not among the best trials at step {trial.steps}" if verdict == "stop" else ""
        state.set(trial, "stopped" if verdict == "stop" else "paused")
    return stopping.on_target(state, trial, trial.steps, inherited.curve[-1][1])
