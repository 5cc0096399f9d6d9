"""Warm start of a trial from a trial of an earlier job."""

from tuner.domain.events import Inherited
from tuner.tuning import stopping
from tuner.tuning.schedulers import scheduler_for
from tuner.tuning.state import Ending, State, TrialRecord
from tuner.tuning.steps import record_rungs


def inherit(state: State, trial: TrialRecord, inherited: Inherited) -> Ending | None:
    """Give a new trial the progress of an earlier job's trial, as if this job had trained it so far.

    The earlier training time does not count as training time of this job.

    Returns:
        An ending if the inherited value already reaches the target, else None.
    """
    for step, value in inherited.curve:
        trial.steps, trial.value = step, value
        record_rungs(state, trial)
        stopping.lead(state, trial, value)
    trial.kept, trial.trained_ns = inherited.step, inherited.trained_ns
    trial.pace_ns = inherited.trained_ns // inherited.step
    if state.max_step is not None and trial.steps >= state.max_step:
        state.set(trial, "completed")
    elif trial.until is None or trial.steps < trial.until:
        state.set(trial, "paused")
    else:
        verdict = scheduler_for(state.spec).at_rung(state, trial)
        trial.reason = f"below the cut at step {trial.steps}" if verdict == "stop" else ""
        state.set(trial, "stopped" if verdict == "stop" else "paused")
    return stopping.on_target(state, trial.id, trial.steps, inherited.curve[-1][1])
