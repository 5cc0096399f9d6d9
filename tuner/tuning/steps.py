"""What follows from a step of a running trial: it goes on, waits, is parked, stopped or finished."""

from tuner.domain import commands as do
from tuner.domain.commands import Command
from tuner.tuning.reserve import Reserve
from tuner.tuning.schedulers import scheduler_for
from tuner.tuning.schedulers.base import send_on
from tuner.tuning.state import State, Status, TrialRecord


def record_rungs(state: State, trial: TrialRecord) -> None:
    """A report counts for every rung that it crosses, not only for the highest."""
    if trial.value is None:
        return
    for rung in state.rungs:
        if rung.step <= trial.steps:
            rung.record(trial.number, state.spec.objective.score(trial.value))


def at_step(state: State, trial: TrialRecord, step: int) -> list[Command]:
    """What follows a report of `step`, the first one or a repeated one after a restart."""
    if trial.status != "running":
        return []
    if state.max_step is not None and step >= state.max_step:
        if trial.value is None:
            return drop(state, trial, "failed", no_metric(state, step))
        trial.unkept = False
        state.set(trial, "finishing")
        return [do.Finish(trial.id)]
    if trial.until is None or step < trial.until:
        return []
    if trial.value is None:
        return drop(state, trial, "failed", no_metric(state, step))
    return _at_rung(state, trial)


def _at_rung(state: State, trial: TrialRecord) -> list[Command]:
    match scheduler_for(state.spec).at_rung(state, trial):
        case "consult":
            return [do.Consult(trial.id)]
        case "go":
            return [do.Proceed(trial.id, trial.until)]
        case "stop":
            return drop(state, trial, "stopped", f"below the cut at step {trial.steps}")
        case "park":
            return park_at_rung(state, trial)


def go_on(state: State, trial: TrialRecord) -> list[Command]:
    send_on(state, trial)
    return [do.Proceed(trial.id, trial.until)]


def park_at_rung(state: State, trial: TrialRecord) -> list[Command]:
    if not state.may_suggest and not state.suggesting and state.leader == trial.number:
        return go_on(state, trial)
    return _park(state, trial)


def _park(state: State, trial: TrialRecord) -> list[Command]:
    state.set(trial, "parking")
    return [do.Park(trial.id)]


def make_room(state: State) -> list[Command]:
    """Parks what would use up the money that the leader takes to its end."""
    reserve = Reserve.of(state)
    orders: list[Command] = []
    for trial in reserve.in_the_way() if reserve is not None else ():
        if trial.resumable:
            orders += _park(state, trial)
    return orders


def drop(state: State, trial: TrialRecord, ends_as: Status, reason: str) -> list[Command]:
    """Stops a running trial for good."""
    assert ends_as in ("stopped", "failed")
    trial.ends_as, trial.reason = ends_as, reason
    state.set(trial, "stopping")
    return [do.Stop(trial.id, reason)]


def no_metric(state: State, step: int) -> str:
    return f"did not report the metric {state.spec.objective.metric!r} up to step {step}"
