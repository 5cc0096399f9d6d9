"""No multi-fidelity: every trial is trained to its last step."""

from tuner.tuning.schedulers.base import Verdict, send_on
from tuner.tuning.state import State, TrialRecord


class FullFidelity:
    def first_stop(self, state: State) -> int | None:
        return state.max_step

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        send_on(state, trial)
        return "go"

    def promote(self, state: State) -> TrialRecord | None:
        return None
