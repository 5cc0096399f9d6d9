"""Promotion by forecast: trials are ranked by the final scores that the sampler's model predicts, not by their current scores.

A trial is promoted from a rung if its forecast is among the best 1/η of that rung, and at most the reach below the best forecast
of all. The reach is a number of standard deviations of the trial's own forecast. Without forecasts this is promotion ASHA (`promotion.py`).
"""

from collections.abc import Iterable, Iterator, Mapping

from tuner.tuning.reserve import Reserve
from tuner.tuning.rungs import Rung
from tuner.tuning.samplers.base import Forecast
from tuner.tuning.schedulers.base import Verdict
from tuner.tuning.schedulers.promotion import PromotionAsha
from tuner.tuning.state import State, TrialRecord

# The reach, in standard deviations. It is small at first, when new trials teach the model more than continued ones, and grows with
# the number of trained steps.
REACH = 0.5
# After the steps of so many complete trainings, the reach grows in proportion to the trained steps.
REACH_TRAININGS = 5


class ForecastPromotion(PromotionAsha):
    """Ask the model at each rung if the trial can be paused. If no new configuration may start, the ranks decide instead."""

    def at_rung(self, state: State, trial: TrialRecord) -> Verdict:
        return "predict" if trial.resumable else super().at_rung(state, trial)

    def promote(self, state: State) -> TrialRecord | None:
        return None if state.may_suggest else super().promote(state)


def earned(
    state: State, forecasts: Mapping[int, Forecast] | None, also: TrialRecord | None = None
) -> TrialRecord | None:
    """Return the trial to promote next, from the highest rung first. The running trial `also` counts as waiting.

    When the finish reserve is due, return the leader, or else the trial with the best forecast among those that can still be finished.
    """
    reserve = Reserve.of(state)
    if reserve is not None and reserve.is_due:
        if reserve.leader is not None and _may_go(state, reserve, reserve.leader, also):
            return reserve.leader
        if forecasts is not None:
            best = sorted(forecasts, key=lambda number: (-forecasts[number][0], number))
            return _first_waiting(state, reserve, best, also)
    reach = REACH * max(1.0, state.steps / (REACH_TRAININGS * (state.max_step or 1)))
    for rung in reversed(state.rungs):
        found = _first_waiting(
            state, reserve, _best_first(rung, state.reduction_factor, forecasts, reach), also
        )
        if found is not None:
            return found
    return None


def _first_waiting(
    state: State, reserve: Reserve | None, numbers: Iterable[int], also: TrialRecord | None
) -> TrialRecord | None:
    return next((t for t in map(state.trials.__getitem__, numbers) if _may_go(state, reserve, t, also)), None)


def _may_go(state: State, reserve: Reserve | None, trial: TrialRecord, also: TrialRecord | None) -> bool:
    waits = trial is also or (trial.status == "paused" and not trial.ready)
    return waits and trial.number not in state.skipped and (reserve is None or reserve.can_finish(trial))


def _best_first(
    rung: Rung, reduction_factor: int, forecasts: Mapping[int, Forecast] | None, reach: float
) -> Iterator[int]:
    if forecasts is None:
        yield from rung.promotable(reduction_factor)
        return
    best = max((mean for mean, _ in forecasts.values()), default=0.0)
    known = sorted((-mean, number) for number, (mean, _) in forecasts.items() if number in rung.recorded)
    for mean, number in known[: len(rung.recorded) // reduction_factor]:
        if number not in rung.promoted and -mean + reach * forecasts[number][1] >= best:
            yield number
