"""What a scheduler decides: how far a trial may go, and whom to send on from a rung."""

from typing import Literal, Protocol

from tuner.tuning.state import State, TrialRecord

Verdict = Literal["go", "park", "stop", "consult"]


class Scheduler(Protocol):
    """Pure: changes nothing but how far a trial may go (`TrialRecord.until`) and the rungs' record of promotions."""

    def first_stop(self, state: State) -> int | None:
        """The step to which a new trial may train; None: until it ends by itself."""

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        """Called when a running trial has done the last step that it earned, which is below the maximum."""

    def promote(self, state: State) -> TrialRecord | None:
        """A parked trial that has earned more steps, already sent on (`until` raised), or None."""


def next_stop(state: State, step: int) -> int | None:
    """The first rung above `step`, or the maximum."""
    return next((rung.step for rung in state.rungs if rung.step > step), state.max_step)


def send_on(state: State, trial: TrialRecord) -> None:
    """Lets the trial train to the next rung, and notes that it left the ones below."""
    for rung in state.rungs:
        if rung.step <= trial.steps and trial.number in rung.recorded:
            rung.promote(trial.number)
    trial.until = next_stop(state, trial.steps)
