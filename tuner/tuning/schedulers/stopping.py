"""Asynchronous successive halving by stopping, as Ray Tune's `ASHAScheduler` decides: no trial is paused."""

from tuner.tuning.schedulers.base import Verdict, next_stop, send_on
from tuner.tuning.state import State, TrialRecord


class StoppingAsha:
    """Stop a trial at a rung unless its score is at or above the (1 - 1/η) quantile of all trials that reached the rung."""

    def first_stop(self, state: State) -> int | None:
        return next_stop(state, 0)

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        if not keeps_going(state, trial):
            return "stop"
        send_on(state, trial)
        return "go"

    def promote(self, state: State) -> TrialRecord | None:
        return None


def keeps_going(state: State, trial: TrialRecord) -> bool:
    """Return whether the trial is among the best at the highest rung that it crossed."""
    rung = next(r for r in reversed(state.rungs) if trial.number in r.recorded)
    return rung.keeps(trial.number, state.reduction_factor)
