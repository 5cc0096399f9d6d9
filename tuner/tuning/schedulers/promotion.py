"""The usual schedulers: asynchronous successive halving (ASHA) by promotion and by stopping, and full fidelity."""

from collections.abc import Iterator

from tuner.tuning.schedulers.base import Verdict, next_stop, raise_target
from tuner.tuning.state import State, TrialRecord


class FullFidelity:
    def first_stop(self, state: State) -> int | None:
        return state.max_step

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        raise_target(state, trial)
        return "continue"

    def promote(self, state: State) -> TrialRecord | None:
        return None


class StoppingAsha:
    """Stop a trial at a rung unless its score is at or above the (1 - 1/η) quantile of all trials that reached the rung."""

    def first_stop(self, state: State) -> int | None:
        return next_stop(state, 0)

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        if not keeps_going(state, trial):
            return "stop"
        raise_target(state, trial)
        return "continue"

    def promote(self, state: State) -> TrialRecord | None:
        return None


def keeps_going(state: State, trial: TrialRecord) -> bool:
    """Return whether the trial is among the best at the highest rung that it crossed."""
    rung = next(r for r in reversed(state.rungs) if trial.number in r.recorded)
    return rung.keeps(trial.number, state.reduction_factor)


class PromotionAsha:
    """Pause each trial at a rung until it is among the best 1/η of all that reached it. The highest rung comes first."""

    def first_stop(self, state: State) -> int | None:
        return next_stop(state, 0)

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        # A trial that cannot save a checkpoint would have to start over after a pause. So it is not paused: it continues or is
        # stopped at once, by the rule of `StoppingAsha`.
        earned = (
            next(_promotable(state, also=trial), None) is trial
            if trial.resumable
            else keeps_going(state, trial)
        )
        if earned:
            raise_target(state, trial)
            return "continue"
        return "pause" if trial.resumable else "stop"

    def promote(self, state: State) -> TrialRecord | None:
        trial = next(_promotable(state), None)
        if trial is not None:
            raise_target(state, trial)
        return trial


def _promotable(state: State, also: TrialRecord | None = None) -> Iterator[TrialRecord]:
    """Yield the trials that wait at a rung and are among its best 1/η, highest rung first. `also` counts as waiting."""
    for rung in reversed(state.rungs):
        for number in rung.promotable(state.reduction_factor):
            trial = state.trials[number]
            if trial is also or (trial.status == "paused" and not trial.ready):
                yield trial
