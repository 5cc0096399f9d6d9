"""Schedulers: how far a trial may run, and which trial to promote from a rung.

`none` trains every trial to its last step. `asha` is asynchronous successive halving (ASHA) by promotion, and `asha_stopping` is ASHA by
stopping. `auto` promotes by forecast: trials are ranked by the final scores that the sampler's model predicts, not by their current
scores. A trial is promoted from a rung if its forecast is among the best 1/η of that rung and close enough to the best forecast of all
trials. The largest allowed distance, the reach, is counted in standard deviations of the trial's own forecast. Without forecasts, `auto`
is `asha`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, Protocol

from tuner.domain.job import JobSpec
from tuner.tuning.reserve import Reserve
from tuner.tuning.rungs import Rung
from tuner.tuning.samplers.base import Forecast
from tuner.tuning.state import State, TrialRecord

# The initial reach: how many standard deviations a trial's forecast may be below the best forecast. It is small, because new trials teach
# the model more than continued ones at first. It grows with the number of trained steps.
REACH = 0.5
# The reach begins to grow when the job has trained as many steps as this many complete trials have. From then on, it is proportional to
# the job's steps, up to the largest reach.
REACH_TRAININGS = 2.5
# The largest reach. Without it, a job with a large budget continues so many trials that too little money is left for new ones.
REACH_MAX = 3.0

Verdict = Literal["continue", "pause", "stop", "predict"]


class Scheduler(Protocol):
    """Decide how far trials run.

    A scheduler is pure except that it changes `TrialRecord.target_step` and the promotions that the rungs record, and that `asha_stopping`
    stops trials that wait.
    """

    def first_target(self, state: State) -> int | None:
        """Return the step that a new trial may run to, or None if it may run until it ends."""

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        """Return what a running trial does when it reaches its target step, which is below the last step."""

    def promote(self, state: State) -> TrialRecord | None:
        """Promote the next paused trial: raise its target step and return it. Return None if no trial qualifies."""


def next_target(state: State, step: int) -> int | None:
    """Return the step of the first rung above `step`. Above all rungs, return the last step, or None if trials have no last step."""
    return next((rung.step for rung in state.rungs if rung.step > step), state.max_step)


def raise_target(state: State, trial: TrialRecord) -> None:
    """Set the trial's target step to the next rung, and record its promotion on the rungs that it has passed."""
    for rung in state.rungs:
        if rung.step <= trial.steps and trial.number in rung.recorded:
            rung.promote(trial.number)
    trial.target_step = next_target(state, trial.steps)


class FullFidelity:
    def first_target(self, state: State) -> int | None:
        return state.max_step

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        raise_target(state, trial)
        return "continue"

    def promote(self, state: State) -> TrialRecord | None:
        return None


class StoppingAsha:
    """ASHA by stopping: stop a trial at a rung unless it is among the best 1/η of all trials that have reached the rung so far."""

    def first_target(self, state: State) -> int | None:
        return next_target(state, 0)

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        if not is_among_best(state, trial):
            return "stop"
        raise_target(state, trial)
        return "continue"

    def promote(self, state: State) -> TrialRecord | None:
        """Decide on the trials that were paused in the step in which they reached a rung, for example because the window closed.

        Stop those that are not among the best, and return the first of the others.
        """
        for number in sorted(state.waiting):
            trial = state.trials[number]
            if trial.value is None:
                continue
            if is_among_best(state, trial):
                raise_target(state, trial)
                return trial
            trial.reason = f"not among the best trials at step {trial.steps}"
            state.set(trial, "stopped")
        return None


def is_among_best(state: State, trial: TrialRecord) -> bool:
    """Return whether the trial is among the best 1/η at the highest rung that it has passed."""
    rung = next(r for r in reversed(state.rungs) if trial.number in r.recorded)
    return rung.keeps(trial.number, state.reduction_factor)


class PromotionAsha:
    """ASHA by promotion: pause each trial at a rung until it is among the best 1/η of all trials that have reached the rung.

    Trials are promoted from the highest rung first.
    """

    def first_target(self, state: State) -> int | None:
        return next_target(state, 0)

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        # A trial that cannot save a checkpoint would have to start from the beginning after a pause. Therefore it either continues or
        # is stopped at once, by the rule of `StoppingAsha`.
        earned = (
            next(_promotable(state, also=trial), None) is trial
            if trial.resumable
            else is_among_best(state, trial)
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
    """Yield the trials that wait at a rung and are among its best 1/η, highest rung first. The running trial `also` counts as waiting.

    Trials that violate a constraint are ranked, and yielded, after all others.
    """
    for is_feasible in _feasible_first(state):
        for rung, higher in _from_the_top(state):
            for number in rung.promotable(state.reduction_factor):
                if number in higher:
                    continue
                trial = state.trials[number]
                waits = trial is also or (trial.status == "paused" and not trial.ready)
                if waits and (not trial.violation) == is_feasible:
                    yield trial


def _from_the_top(state: State) -> Iterator[tuple[Rung, Collection[int]]]:
    """Yield the rungs, highest first, each with the trials that have also passed the next higher rung. They wait there, not at the lower rung."""
    higher: Collection[int] = ()
    for rung in reversed(state.rungs):
        yield rung, higher
        higher = rung.recorded


def _feasible_first(state: State) -> tuple[bool, ...]:
    """Return the order in which to look for a trial to promote: (True, False), first among feasible trials, then among infeasible ones.

    Without constraints, all trials are feasible, so return (True,).
    """
    return (True, False) if state.spec.constraints else (True,)


class ForecastPromotion(PromotionAsha):
    """Promotion by forecast. At each rung, the sampler's model decides whether the trial continues.

    A trial that cannot save checkpoints cannot be paused, so the rule of `StoppingAsha` decides. Paused trials are promoted by rank,
    but only if no new configuration may start: otherwise the sampler decides between a new trial and a promotion.
    """

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        return "predict" if trial.resumable else super().at_rung(state, trial)

    def promote(self, state: State) -> TrialRecord | None:
        return None if state.may_suggest else super().promote(state)


def earned(
    state: State, forecasts: Mapping[int, Forecast] | None, also: TrialRecord | None = None
) -> TrialRecord | None:
    """Return the next trial to promote, from the highest rung first, or None if none qualifies. The running trial `also` counts as waiting.

    If the rest of the budget cannot pay for a typical new trial (`Reserve.is_due`), return the best trial, the leader. If the leader cannot
    be promoted and there are forecasts, return the trial with the best forecast among those that the budget can still finish.
    """
    reserve = Reserve.of(state)
    if reserve is not None and reserve.is_due:
        if reserve.leader is not None and _may_be_promoted(state, reserve, reserve.leader, also):
            return reserve.leader
        if forecasts is not None:
            best = sorted(
                forecasts, key=lambda number: (state.trials[number].violation, -forecasts[number][0], number)
            )
            return _first_waiting(state, reserve, best, also)
    reach = reach_after(state.steps, state.max_step or 1)
    for is_feasible in _feasible_first(state):
        for rung, higher in _from_the_top(state):
            ranked = _best_first(rung, state.reduction_factor, forecasts, reach)
            numbers = (
                number
                for number in ranked
                if number not in higher and (not state.trials[number].violation) == is_feasible
            )
            trial = _first_waiting(state, reserve, numbers, also)
            if trial is not None:
                return trial
    return None


def reach_after(steps: float, max_step: int) -> float:
    """Return the reach of a job that has trained `steps` steps, if a complete trial has `max_step` steps."""
    return min(REACH_MAX, REACH * max(1.0, steps / (REACH_TRAININGS * max_step)))


def _first_waiting(
    state: State, reserve: Reserve | None, numbers: Iterable[int], also: TrialRecord | None
) -> TrialRecord | None:
    return next(
        (t for t in map(state.trials.__getitem__, numbers) if _may_be_promoted(state, reserve, t, also)), None
    )


def _may_be_promoted(
    state: State, reserve: Reserve | None, trial: TrialRecord, also: TrialRecord | None
) -> bool:
    waits = trial is also or (trial.status == "paused" and not trial.ready)
    return waits and trial.number not in state.skipped and (reserve is None or reserve.can_finish(trial))


def _best_first(
    rung: Rung, reduction_factor: int, forecasts: Mapping[int, Forecast] | None, reach: float
) -> Iterator[int]:
    if forecasts is None:
        yield from rung.promotable(reduction_factor)
        return
    best = max((mean for mean, _ in forecasts.values()), default=0.0)
    known = sorted(
        (rung.recorded[number][0], -mean, number)
        for number, (mean, _) in forecasts.items()
        if number in rung.recorded
    )
    for _, mean, number in known[: len(rung.recorded) // reduction_factor]:
        if number not in rung.promoted and -mean + reach * forecasts[number][1] >= best:
            yield number


def scheduler_for(spec: JobSpec) -> Scheduler:
    """Return the scheduler of a job. `auto` promotes by forecasts if the job has rungs."""
    match spec.algorithm.scheduler:
        case "none":
            return FullFidelity()
        case "asha_stopping":
            return StoppingAsha()
        case "auto":
            return ForecastPromotion() if spec.fidelity.rungs() else FullFidelity()
        case "asha":
            return PromotionAsha() if spec.fidelity.rungs() else FullFidelity()
