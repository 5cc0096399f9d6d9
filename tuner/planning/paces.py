"""Step times and learning curves for untried configurations, drawn from the trials that were seen.

A new configuration gets the pace (its step time) and the learning curve of a seen trial that is drawn at random. Pace and score are then
varied by a smoothed bootstrap (Silverman 1986, section 6.4): it adds noise and shrinks the result towards the mean, so that the spread
remains that of the seen trials. A curve that was cut short continues with the mean gain of the other curves. If no trial was seen, paces
are log-normal around the assumed step time, and scores are arbitrary numbers that only rank the trials.

A diverged trial gets the mean curve and ends at a floor, because a single loss of a million would determine every mean and spread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import fmean, median

import numpy as np
import numpy.typing as npt

from tuner.domain.space import Config
from tuner.planning.outlooks import FAR
from tuner.planning.pace_evidence import EARLY_STEPS, PaceEvidence, SeenTrial

EDGE_MIN, EDGE_MAX = 1e-300, 0.001  # the smallest and the largest `Scale.edge`
# The floor of the trials' last scores, if their median is 0 and the best is 1. It is lower than that of the model (`curves.FLOOR`), because
# bad trials are simulated too.
FLOOR = -3.0
LOG_MAX = 700.0  # a little less than the logarithm of the largest floating-point number
FENCE = 3.0  # gains farther from the quartiles than this many interquartile ranges are limited (Tukey 1977, outer fences)
IQR_OF_NORMAL = 1.349  # the interquartile range of a normal distribution, in standard deviations


@dataclass(frozen=True, slots=True)
class Scale:
    """A transformation of scores to numbers that can be extrapolated and smoothed. The number is called the *place* of the score."""

    #: The lowest and the highest score. The scale is logistic between two finite bounds, and logarithmic below a single one. None means that
    #: each score is its own place.
    bounds: tuple[float, float] | None = None
    #: Scores nearer to a bound than this are moved to this distance, because the place of a bound is infinite.
    edge: float = EDGE_MAX

    def clip(self, score: float) -> float:
        """Limit a score to the range of the scale."""
        low, high = self.bounds or (-math.inf, math.inf)
        return min(high, max(low, score))

    def place(self, score: float) -> float:
        if self.bounds is None:
            return score
        low, high = self.bounds
        # Unlike the share of the range, both distances are exact for losses as small as 1e-20.
        above = 0.0 if low == -math.inf else math.log(max(self.edge, score - low))
        return above - math.log(max(self.edge, high - score))

    def score(self, place: float) -> float:
        if self.bounds is None:
            return place
        low, high = self.bounds
        if low == -math.inf:
            return high - math.exp(min(-place, LOG_MAX))
        odds = math.exp(-abs(place))
        distance = (high - low) * odds / (1 + odds)
        return high - distance if place > 0 else low + distance


def scale_of(scores: Sequence[float]) -> Scale:
    """Return the scale on which these scores are extrapolated and smoothed.

    It is logistic if all scores are between 0 and 1, such as accuracies, or all between -1 and 0, such as error rates. The latter
    are negative because a higher score is better. It is logarithmic if all scores are below 0, such as those of losses. So extrapolated
    scores keep to these bounds. Otherwise each score is its own place.
    """
    for low, high in ((0.0, 1.0), (-1.0, 0.0), (-math.inf, 0.0)):
        if scores and all(low <= score <= high for score in scores):
            # An edge that does not depend on the scores would make all losses below it equal.
            distances = [
                distance
                for score in scores
                for distance in (score - low, high - score)
                if 0 < distance < math.inf
            ]
            return Scale((low, high), edge=min(EDGE_MAX, max(EDGE_MIN, min(distances, default=1.0) / 2)))
    return Scale()


Floats = npt.NDArray[np.float64]
# The error of the planned best metric, as shares of `Paces.progress`. The first is the error if trials were seen to their last step. The square
# of the second, times the doublings of the steps beyond the last seen one, adds to the square of the first. Both were chosen on nine of 17
# recorded tables (benchmarks/README.md).
ERROR, ERROR_A_DOUBLING = 0.25, 0.2
DECAY = 0.7  # beyond all seen steps, each doubling of the steps adds this share of what the previous doubling added to the score


class Paces:
    """The distribution of paces (step times) and learning curves for one plan. All simulations of the plan share it.

    `steps` is the length of a full training.
    """

    def __init__(self, evidence: PaceEvidence, steps: int) -> None:
        self.evidence, self.steps = evidence, steps
        self._curves: dict[int, tuple[Floats, Floats]] = {}
        #: The trials to draw from: only those with a learning curve, if there are enough of them.
        self.trials = evidence.curves if evidence.knows_curves else evidence.trials

    def training_ns(self, trial: SeenTrial, steps: float) -> float:
        """Return how long the first `steps` steps of a seen trial take."""
        if trial.early_ns is None:
            return trial.step_ns * steps
        later_ns = trial.later_ns or trial.early_ns * self.evidence.later
        return trial.early_ns * min(steps, EARLY_STEPS) + later_ns * max(0.0, steps - EARLY_STEPS)

    @cached_property
    def floor(self) -> float:
        """The lowest score at which a trial ends. The trials that reported a lower last score count as diverged.

        It is -inf if most trials have the same last score, because the distance of the others then says nothing.
        """
        last = [trial.curve[-1][1] for trial in self.evidence.curves]
        middle = median(last)
        spread = median(abs(score - middle) for score in last)
        # If the median is near the best score, as with many good trials, usual bad trials are far below the first of the two floors.
        return min(middle + FLOOR * (max(last) - middle), middle - FAR * spread) if spread > 0 else -math.inf

    def has_diverged(self, trial: SeenTrial) -> bool:
        return trial.curve[-1][1] < self.floor

    @cached_property
    def _usual(self) -> list[SeenTrial]:
        """The trials with a learning curve that have not diverged."""
        return [trial for trial in self.evidence.curves if not self.has_diverged(trial)]

    @cached_property
    def scale(self) -> Scale:
        return scale_of([score for trial in self._usual for _, score in trial.curve])

    @property
    def knows_curves(self) -> bool:
        return self.evidence.knows_curves

    @cached_property
    def width(self) -> float:
        """The standard deviation of the noise that the smoothed bootstrap adds, by Silverman's rule.

        The unit is the standard deviation of the seen trials' values.
        """
        return float(1.06 * max(1, len(self.evidence.trials)) ** -0.2)

    @cached_property
    def log_pace(self) -> float:
        return fmean(math.log(trial.step_ns) for trial in self.evidence.trials)

    @cached_property
    def _last_places(self) -> Floats:
        """Each usual trial's score at the last step of a full training, transformed by `scale` (the place of the score).

        `scale` makes scores suitable for extrapolation. If the trial ended before that step, its score is extrapolated.
        """
        return np.array([self.place(trial, self.steps) for trial in self._usual])

    @cached_property
    def place_spread(self) -> float:
        """The spread of the last places: their standard deviation, or that of a normal distribution with the same interquartile range.

        The smaller of both is used (Silverman 1986, section 3.4.2). A few very bad or very good trials do not increase it.
        """
        if not self.knows_curves:
            return 0.0
        low, high = np.percentile(self._last_places, (25, 75))
        return float(min(self._last_places.std(), (high - low) / IQR_OF_NORMAL))

    @property
    def last_seen_step(self) -> int:
        """The last step that a usual trial reported."""
        return max(trial.curve[-1][0] for trial in self._usual)

    @cached_property
    def progress(self) -> float:
        """How far the best last place is above the median first place: about how much a good trial improves during its training."""
        first = [self.scale.place(trial.curve[0][1]) for trial in self._usual]
        return float(self._last_places.max()) - median(first)

    @property
    def best_error(self) -> float:
        """The standard deviation of the error with which simulations find the best score of a job, after scores are transformed by `scale`."""
        doublings = max(0.0, math.log2(self.steps / self.last_seen_step))
        return self.progress * math.hypot(ERROR, ERROR_A_DOUBLING * math.sqrt(doublings))

    def moved(self, trial: SeenTrial, noise: float) -> float:
        """Return the offset by which a new configuration's curve differs from the curve of the seen trial `trial`.

        Both curves consist of scores that were transformed by `scale`, for example to a logistic scale. `noise` is a random number from the
        standard normal distribution. Without known curves, and for a trial that has diverged, return 0.
        """
        if not self.knows_curves or self.has_diverged(trial):
            return 0.0
        end = self.place(trial, self.steps)
        return smoothed(end, float(self._last_places.mean()), self.place_spread, noise, self.width) - end

    def place(self, trial: SeenTrial, step: float) -> float:
        """Return a seen trial's score at a step, transformed by `scale` (the place of the score).

        `scale` makes scores suitable for extrapolation. Between reports, the score is interpolated on the logarithm of steps. Before the
        first and after the last report, it changes as the mean curve does. A diverged trial has the mean curve, which ends at the floor.
        """
        log = math.log2(step)
        if self.has_diverged(trial):
            return self.scale.place(self.floor) + self._gained(log) - self._gained(math.log2(self.steps))
        logs, places = self._curve(trial)
        inside = min(max(log, logs[0]), logs[-1])
        return float(np.interp(inside, logs, places)) + self._gained(log) - self._gained(inside)

    def _curve(self, trial: SeenTrial) -> tuple[Floats, Floats]:
        """Return the base-2 logarithms of the steps that a trial reported, and its scores at these steps, transformed by `scale`."""
        if id(trial) not in self._curves:
            steps, scores = zip(*trial.curve, strict=True)
            self._curves[id(trial)] = np.log2(steps), np.array([self.scale.place(score) for score in scores])
        return self._curves[id(trial)]

    def _gained(self, log: float) -> float:
        """Return the mean gain in score from step 1 to the step with the base-2 logarithm `log`, after scores are transformed by `scale`."""
        return float(np.interp(log, np.arange(len(self._mean_curve)), self._mean_curve))

    @cached_property
    def _mean_curve(self) -> Floats:
        """The mean gain in score from step 1 to each power of two, 1, 2, 4 and so on, after scores are transformed by `scale`.

        The highest power is the first one that is at or above the last step of a training.
        The gain from one power of two to the next is the mean over the trials whose reports cover both steps, without outliers (FENCE). If
        no trial covers them, it is the preceding gain times DECAY.
        """
        gains = [0.0]
        curves = [self._curve(trial) for trial in self._usual]
        for log in range(math.ceil(math.log2(max(2, self.steps)))):
            seen = [
                np.interp(log + 1, logs, places) - np.interp(log, logs, places)
                for logs, places in curves
                if logs[0] <= log and logs[-1] >= log + 1
            ]
            gains.append(_fenced_mean(seen) if seen else gains[-1] * DECAY)
        return np.cumsum(gains)


def _fenced_mean(values: Sequence[float]) -> float:
    """Return the mean of the values, after outliers were moved to the outer fences. One huge first loss would otherwise determine it."""
    low, high = np.percentile(values, (25, 75))
    reach = FENCE * (high - low)
    return float(np.clip(values, low - reach, high + reach).mean())


@dataclass(frozen=True, slots=True)
class DrawnTrial:
    """The pace and the learning curve that were drawn for a configuration."""

    step_ns: int  #: The mean time of a simulated step.
    seen: SeenTrial | None  #: The trial whose curve the configuration gets. None if no trial was seen.
    moved: float  #: The offset that is added to the curve of `seen`, after its scores are transformed by `Paces.scale`.
    #: How good the configuration is after a full training. Determines scores only if no curves are known.
    quality: float
    luck: float  #: The noise of its early scores. Determines scores only if no curves are known.


class DrawnTraining:
    """The training of a simulated job. It implements the simulator's `Training` protocol.

    Args:
        paces: The distribution to draw from.
        seed: The seed of the draws. The same seed and configuration always give the same pace and curve.
        factor: A factor by which all step times are multiplied.
        coarse: The number of real steps in one simulated step.
    """

    def __init__(self, paces: Paces, *, seed: int, factor: float, coarse: float) -> None:
        self._paces, self._seed, self._factor, self._coarse = paces, seed, factor, coarse
        self._drawn: dict[str, DrawnTrial] = {}

    def step_ns(self, config: Config, step: int) -> int:
        drawn = self._of(config)
        if drawn.seen is None:
            return drawn.step_ns
        before, behind = (step - 1) * self._coarse, step * self._coarse
        ns = self._paces.training_ns(drawn.seen, behind) - self._paces.training_ns(drawn.seen, before)
        return max(1, round(drawn.step_ns * ns / (self._coarse * drawn.seen.step_ns)))

    def value(self, config: Config, step: int) -> float:
        drawn, known = self._of(config), max(1, round(step * self._coarse))
        if drawn.seen is not None and self._paces.knows_curves:
            return self._paces.scale.score(self._paces.place(drawn.seen, known) + drawn.moved)
        # Without known curves, scores only rank trials. At later steps, the ranking depends more on quality and less on luck.
        part = min(1.0, math.sqrt(step * self._coarse / self._paces.steps))
        return drawn.quality * part + drawn.luck * (1 - part) - 3 / math.sqrt(step)

    def normalized_score(self, config: Config, step: int) -> float:
        """Return the configuration's score at a step, divided by the standard deviation of the seen trials' final scores.

        Scores are first transformed by `Paces.scale`, for example to a logistic scale. Without known curves, return the score unchanged.
        """
        value = self.value(config, step)
        return (self._paces.scale.place(value) if self._paces.knows_curves else value) / (
            self._paces.place_spread or 1.0
        )

    def _of(self, config: Config) -> DrawnTrial:
        key = str(sorted(config.items()))
        if key not in self._drawn:
            self._drawn[key] = self._draw(Random(f"{self._seed}/{key}"))
        return self._drawn[key]

    def _draw(self, rng: Random) -> DrawnTrial:
        paces, evidence = self._paces, self._paces.evidence
        seen = rng.choice(paces.trials) if paces.trials else None
        quality, luck, own = rng.gauss(0, 1), rng.gauss(0, 1), rng.gauss(0, 1)
        moved = 0.0 if seen is None else paces.moved(seen, quality)
        if seen is None:
            ns = evidence.step_ns * math.exp(own * evidence.spread - evidence.spread**2 / 2)
        else:
            ns = math.exp(smoothed(math.log(seen.step_ns), paces.log_pace, evidence.spread, own, paces.width))
        return DrawnTrial(max(1, round(ns * self._factor * self._coarse)), seen, moved, quality, luck)


def smoothed(value: float, mean: float, deviation: float, noise: float, width: float) -> float:
    """Add noise to a value and shrink the result towards the mean, so that the values as a whole keep their mean and standard deviation.

    Args:
        value: One of the values.
        mean: The mean of all values.
        deviation: The standard deviation of all values.
        noise: A random number from the standard normal distribution.
        width: The standard deviation of the added noise, in units of `deviation`.
    """
    return mean + (value - mean + width * deviation * noise) / math.sqrt(1 + width * width)
