"""Forecast what more money would buy: the results of the best unfinished trials if each were trained to its last step."""

from dataclasses import dataclass, replace

from tuner.database.database import Database
from tuner.domain.money import Money
from tuner.domain.objective import Objective
from tuner.planning.outlooks import Outlook, outlooks
from tuner.planning.paces import Scale, scale_of
from tuner.store import best, jobs
from tuner.store.best import BestTrial
from tuner.store.jobs import JobRow
from tuner.tuning.rungs import ladder
from tuner.tuning.stopping import points_per_usd

TRIALS = 200  # number of best trials that the forecast learns from
ASKED = 20  # number of these trials that are forecast: the best unfinished ones
SHOWN = 3
TOO_FEW_TRIALS = "too early to forecast: fewer than three trials have trained past the rung at which the best unfinished trials wait"
NONE_BETTER = "no trial is expected to beat the best if it is trained to its last step"
NO_LAST_STEP = (
    "fidelity.max is not set, so the last step is not known, and the metric at that step cannot be forecast"
)


@dataclass(frozen=True, slots=True)
class TrialContinuation:
    """Forecast of the result if one trial is trained to its last step."""

    trial: str
    from_step: int  #: Step of the trial's checkpoint; 0 if it starts from the beginning.
    to_step: int
    extra: Money  #: Additional cost of training it to `to_step`.
    metric: float  #: Expected metric at `to_step`. The low and high values bound the middle 80 %.
    low_metric: float
    high_metric: float
    gain: float  #: Expected improvement over the job's best metric.
    low_gain: float
    high_gain: float

    @property
    def gain_per_usd(self) -> float | None:
        """Return the gain per dollar of additional cost, or None if the continuation costs nothing."""
        return self.gain * 1_000_000 / self.extra.micro_usd if self.extra.micro_usd else None


@dataclass(frozen=True, slots=True)
class NextDollarForecast:
    """The unfinished trials that are expected to beat the job's best result if they are trained to their last step."""

    trials: tuple[TrialContinuation, ...]  #: Greatest gain per dollar first.
    reason: str  #: Why `trials` is empty. Empty if `trials` is not.
    as_of: int  #: Number of the newest event of the job when the forecast was made.
    #: Points (0.01 of the metric) that the next dollar is expected to gain if the job continues as before. None if it is not known.
    points_per_usd: float | None = None


def forecast(database: Database, row: JobRow) -> NextDollarForecast:
    """Forecast what more money for the job would gain: the metrics that its unfinished trials would reach.

    Each call computes the forecast again. `tuner.api.response_cache` caches the answers that clients poll.
    """
    made = _continuations(database, row)
    if row.spec.fidelity.proxies is not None:  # metrics of different stages are not comparable
        return made
    with database.read() as db:
        values, spent = best.results(db, row.id, row.spec)
    objective = row.spec.objective
    points = points_per_usd(list(map(objective.score, values)), spent, objective.mode)
    return replace(made, points_per_usd=points)


def _continuations(database: Database, row: JobRow) -> NextDollarForecast:
    fidelity, objective = ladder(row.spec), row.spec.objective
    last = fidelity.max
    with database.read() as db:
        as_of = jobs.newest_event(db, row.id)
        if last is None:
            return NextDollarForecast((), NO_LAST_STEP, as_of)
        known = best.best_trials(db, row.id, row.spec, TRIALS)
        leader = best.best(db, row.id)
    cut = [trial for trial in known if trial.curve[-1].step < last and trial.state != "failed"][:ASKED]
    if leader is None or leader.value is None:
        kept = " and met the constraints" if row.spec.constraints else ""
        return NextDollarForecast((), f"no trial has reported {objective.metric!r}{kept} yet", as_of)
    if not cut:
        return NextDollarForecast(
            (), f"the best {len(known)} trials have all reached the last step or failed", as_of
        )
    levels = [*fidelity.rungs(), last]
    curves = {
        trial.number: [objective.score(value) for value in best.values_at(trial.curve, levels)]
        for trial in known
    }
    forecasts = outlooks(len(levels), curves, [trial.number for trial in cut])
    if not forecasts:
        return NextDollarForecast((), TOO_FEW_TRIALS, as_of)
    top = objective.score(leader.value)
    scale = scale_of([score for curve in curves.values() for score in curve])
    made = [
        _continuation(trial, last, forecasts[trial.number], top, objective, scale)
        for trial in cut
        if trial.number in forecasts and scale.clip(forecasts[trial.number].mean) > top
    ]
    if not made:
        return NextDollarForecast((), NONE_BETTER, as_of)
    made.sort(key=lambda continuation: (-(continuation.gain_per_usd or 0.0), continuation.trial))
    return NextDollarForecast(tuple(made[:SHOWN]), "", as_of)


def _continuation(
    trial: BestTrial, last: int, outlook: Outlook, best_score: float, objective: Objective, scale: Scale
) -> TrialContinuation:
    """Return the forecast of a trial that is expected to beat the job's best result.

    The forecast metrics are clipped to the range of `scale`, such as 0 to 1 for an accuracy.
    """
    mean, (low, high) = scale.clip(outlook.mean), map(scale.clip, outlook.between())
    ends = sorted((objective.score(low), objective.score(high)))
    return TrialContinuation(
        trial=trial.trial,
        from_step=trial.saved,
        to_step=last,
        extra=_extra(trial, last),
        metric=objective.score(mean),
        low_metric=ends[0],
        high_metric=ends[1],
        gain=mean - best_score,
        low_gain=max(0.0, low - best_score),
        high_gain=max(0.0, high - best_score),
    )


def _extra(trial: BestTrial, last: int) -> Money:
    """Return the expected cost of training a trial from its checkpoint to step `last`, rounded up.

    A step is assumed to cost as much as the trial's steps so far. The cost of restoring the checkpoint is not included.
    """
    (first, _, begun), (newest, _, paid) = trial.curve[0], trial.curve[-1]
    if newest == first:
        begun, first = 0, 0
    steps = last - max(trial.saved, first)
    again = begun if trial.saved < first else 0
    return Money(again - (-steps * (paid - begun) // (newest - first)))
