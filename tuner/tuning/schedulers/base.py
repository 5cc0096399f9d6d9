"""The scheduler interface: how far a trial may run, and which trial to promote from a rung."""

from typing import Literal, Protocol

from tuner.tuning.state import State, TrialRecord

Verdict = Literal["continue", "pause", "stop", "predict"]


class Scheduler(Protocol):
    """Decide how far trials run.

    A scheduler is pure except that it changes `TrialRecord.until` and the promotions that the rungs record.
    """

    def first_stop(self, state: State) -> int | None:
        """Return the step that a new trial may run to, or None if it may run until it ends."""

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        """Return what a running trial does when it reaches its `until` step, which is below the maximum."""

    def promote(self, state: State) -> TrialRecord | None:
        """Promote a paused trial, if one has earned it, and return it with `until` already raised. Return None otherwise."""


def next_stop(state: State, step: int) -> int | None:
    """Return the first rung above `step`, or the maximum step."""
    return next((rung.step for rung in state.rungs if rung.step > step), state.max_step)


def raise_target(state: State, trial: TrialRecord) -> None:
    """Let the trial run to the next rung, and record its promotion on the rungs below."""
    for rung in state.rungs:
        if rung.step <= trial.steps and trial.number in rung.recorded:
            rung.promote(trial.number)
    trial.until = next_stop(state, trial.steps)
