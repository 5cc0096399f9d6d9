"""Step times and learning curves for untried configurations, drawn from the trials that were seen.

A new configuration gets the pace (its step time) and the learning curve of a seen trial. That trial is its nearest neighbour in the unit
cube, or one drawn at random. A random trial is used more often if neighbours are less similar. Pace and score are then varied by a smoothed
bootstrap (Silverman 1986, section 6.4). It adds noise that has the correlation of pace and score, and shrinks the result towards the mean,
so that the spread remains that of the seen trials. If the parameters predict step times (`pace_model.py`), that prediction replaces the
pace. A curve that was cut short continues with the mean gain of the other curves. If no trial was seen, paces are log-normal around the
assumed step time, and scores only rank the trials.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from random import Random
from statistics import fmean

import numpy as np
import numpy.typing as npt

from tuner.domain.history import transferred
from tuner.domain.space import Config, Space
from tuner.planning.evidence import EARLY_STEPS, PaceEvidence, SeenTrial, pace_model_of
from tuner.planning.scale import Scale, scale_of
from tuner.tuning.samplers.encoding import UnitCube

Curve = Sequence[tuple[int, float]]
Floats = npt.NDArray[np.float64]
MILESTONES = 24
DECAY = 0.7  # beyond all seen steps, each doubling of the steps adds this share of what the previous doubling added to the score
NEIGHBOURS_MIN = 8  # with fewer trials, it is not known whether neighbours are similar


class Paces:
    """The distribution of paces and learning curves for one plan. All scenarios of the plan share it.

    `steps` is the length of a full training.
    """

    def __init__(self, evidence: PaceEvidence, space: Space, steps: int) -> None:
        self.evidence, self.steps = evidence, steps
        self._cube = UnitCube(space)
        self._curves: dict[int, Curve] = {}
        self.model = pace_model_of(evidence.trials, space) if evidence.trials else None
        trials = evidence.curves if evidence.knows_curves else evidence.trials
        placed = [(trial, transferred(space, trial.config)) for trial in trials]
        self._near = [trial for trial, config in placed if config is not None]
        points = [self._cube.point(config) for _, config in placed if config is not None]
        self._points: Floats = np.array(points).reshape(len(points), self._cube.parameters)

    def training_ns(self, trial: SeenTrial, steps: float) -> float:
        """Return how long the first `steps` steps of a seen trial take."""
        if trial.early_ns is None:
            return trial.step_ns * steps
        later_ns = trial.later_ns or trial.early_ns * self.evidence.later
        return trial.early_ns * min(steps, EARLY_STEPS) + later_ns * max(0.0, steps - EARLY_STEPS)

    @cached_property
    def scale(self) -> Scale:
        return scale_of([score for trial in self.evidence.curves for _, score in trial.curve])

    @property
    def knows_curves(self) -> bool:
        return self.evidence.knows_curves

    def seen_for(self, config: Config, rng: Random) -> SeenTrial | None:
        """Choose the trial whose pace and learning curve this configuration gets. Return None if no trial was seen."""
        trials = self.evidence.curves if self.knows_curves else self.evidence.trials
        if not trials:
            return None
        if rng.random() < self.similarity and self._near:
            squares = ((self._points - self._cube.point(config)) ** 2).sum(axis=1)
            return self._near[int(np.argmin(squares))]
        return trials[int(rng.random() * len(trials))]

    @cached_property
    def similarity(self) -> float:
        """How similar nearest neighbours are, from 0 to 1: the larger of the correlations of their paces and of their scores.

        It is the probability that a configuration gets the pace and the curve of its nearest neighbour. It is 0 with fewer than
        NEIGHBOURS_MIN trials.
        """
        if len(self._near) < NEIGHBOURS_MIN:
            return 0.0
        squares = ((self._points[:, None, :] - self._points[None, :, :]) ** 2).sum(axis=2)
        np.fill_diagonal(squares, np.inf)
        nearest = squares.argmin(axis=1)
        paces = np.log([trial.step_ns for trial in self._near])
        correlations = [_correlation(paces, paces[nearest])]
        if all(trial.curve for trial in self._near):
            scores = np.array([self.place(trial, trial.curve[0][0]) for trial in self._near])
            correlations.append(_correlation(scores, scores[nearest]))
        return max(0.0, *correlations)

    @cached_property
    def width(self) -> float:
        """The width of the bootstrap's kernel in standard deviations, by Silverman's rule for this number of trials."""
        return float(1.06 * max(1, len(self.evidence.trials)) ** -0.2)

    @cached_property
    def log_pace(self) -> float:
        return fmean(math.log(trial.step_ns) for trial in self.evidence.trials)

    @cached_property
    def _last_places(self) -> Floats:
        """The score of each seen trial at the last step, on the transformed scale (`scale.py`), extrapolated if necessary."""
        return np.array([self.place(trial, self.steps) for trial in self.evidence.curves])

    @cached_property
    def place_spread(self) -> float:
        return float(self._last_places.std()) if self.knows_curves else 0.0

    @cached_property
    def pace_score_correlation(self) -> float:
        """The correlation of the logarithm of the pace with the score. It is positive if slower configurations are better."""
        if not self.knows_curves:
            return 0.0
        paces = np.log([trial.step_ns for trial in self.evidence.curves])
        return max(-1.0, min(1.0, _correlation(paces, self._last_places)))

    def moved(self, trial: SeenTrial, noise: float) -> float:
        """Return the offset that is added to this trial's curve for a new configuration."""
        if not self.knows_curves or not trial.curve:
            return 0.0
        end = self.place(trial, self.steps)
        return smoothed(end, float(self._last_places.mean()), self.place_spread, noise, self.width) - end

    def place(self, trial: SeenTrial, step: int) -> float:
        """Return the score of a seen trial at a step, on the transformed scale (`scale.py`).

        Between reports, the score is interpolated on the logarithm of steps. Before the first and after the last report, it changes as the
        mean curve does.
        """
        curve = self._curve(trial)
        last, score = curve[-1]
        if step > last:
            return score + self._gained(step) - self._gained(last)
        place = bisect_right(curve, step, key=lambda point: point[0])
        if place == 0:
            return curve[0][1] - self._gained(curve[0][0]) + self._gained(step)
        before, low = curve[place - 1]
        if before == step:
            return low
        after, high = curve[place]
        return low + (high - low) * math.log(step / before) / math.log(after / before)

    def _curve(self, trial: SeenTrial) -> Curve:
        if id(trial) not in self._curves:
            self._curves[id(trial)] = [(step, self.scale.place(score)) for step, score in trial.curve]
        return self._curves[id(trial)]

    def _gained(self, step: int) -> float:
        """Return the mean gain in score from the first milestone to a step."""
        milestones, heights = self._mean_curve
        if step <= milestones[-1]:
            return float(np.interp(math.log(step), np.log(milestones), heights))
        doublings = math.log2(step / milestones[-1])
        half = float(np.interp(math.log(milestones[-1] / 2), np.log(milestones), heights))
        last = (heights[-1] - half) * DECAY
        return float(heights[-1] + last * (1 - DECAY**doublings) / (1 - DECAY))

    @cached_property
    def _mean_curve(self) -> tuple[list[int], list[float]]:
        seen = sorted({step for trial in self.evidence.curves for step, _ in trial.curve})
        milestones = _thinned(seen, MILESTONES)
        heights = [0.0]
        for a, b in pairwise(milestones):
            gains = [
                _between(self._curve(trial), b) - _between(self._curve(trial), a)
                for trial in self.evidence.curves
                if trial.curve[0][0] <= a and trial.curve[-1][0] >= b
            ]
            heights.append(heights[-1] + (float(np.mean(gains)) if gains else 0.0))
        return milestones, heights


@dataclass(frozen=True, slots=True)
class DrawnTrial:
    """The pace and the learning curve that were drawn for a configuration."""

    step_ns: int  #: The mean time of a simulated step.
    seen: SeenTrial | None  #: The trial whose curve it gets. None if no trial was seen.
    moved: float  #: The offset that is added to the curve of `seen`.
    talent: float  #: Without known curves: how good the configuration really is.
    luck: float  #: Without known curves: the noise of its early scores.


class DrawnTraining:
    """The training of a simulated job. It implements the simulator's `Training` protocol.

    Args:
        paces: The distribution to draw from.
        seed: The seed of the draws. The same seed and configuration always give the same pace and curve.
        stretch: A factor by which all step times are multiplied.
        coarse: The number of real steps in one simulated step.
    """

    def __init__(self, paces: Paces, *, seed: int, stretch: float, coarse: float) -> None:
        self._paces, self._seed, self._stretch, self._coarse = paces, seed, stretch, coarse
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
        # Without known curves, scores only rank trials. At later steps, the ranking depends more on talent and less on luck.
        part = min(1.0, math.sqrt(step * self._coarse / self._paces.steps))
        return drawn.talent * part + drawn.luck * (1 - part) - 3 / math.sqrt(step)

    def normalized_score(self, config: Config, step: int) -> float:
        """Return the configuration's score at a step, in standard deviations of the scores of all configurations."""
        value = self.value(config, step)
        return (self._paces.scale.place(value) if self._paces.knows_curves else value) / (
            self._paces.place_spread or 1.0
        )

    def _of(self, config: Config) -> DrawnTrial:
        key = str(sorted(config.items()))
        if key not in self._drawn:
            self._drawn[key] = self._draw(config, Random(f"{self._seed}/{key}"))
        return self._drawn[key]

    def _draw(self, config: Config, rng: Random) -> DrawnTrial:
        paces, evidence = self._paces, self._paces.evidence
        seen = paces.seen_for(config, rng)
        talent, luck, own = rng.gauss(0, 1), rng.gauss(0, 1), rng.gauss(0, 1)
        if seen is None:
            moved, sd = 0.0, evidence.spread
            ns = evidence.step_ns * math.exp(own * sd - sd * sd / 2)
        elif paces.model is not None:
            # The parameters predict the time of the first steps.
            pace = paces.model.drawn_ns(config, rng) / (seen.early_ns or seen.step_ns)
            moved, ns = paces.moved(seen, talent), seen.step_ns * pace
        else:
            together = paces.pace_score_correlation
            aside = together * talent + math.sqrt(1 - together * together) * own
            ns = math.exp(
                smoothed(math.log(seen.step_ns), paces.log_pace, evidence.spread, aside, paces.width)
            )
            moved = paces.moved(seen, talent)
        return DrawnTrial(max(1, round(ns * self._stretch * self._coarse)), seen, moved, talent, luck)


def smoothed(value: float, mean: float, deviation: float, noise: float, width: float) -> float:
    """Return `value` with noise added, shrunk towards the mean so that many such values keep their mean and standard deviation."""
    return mean + (value - mean + width * deviation * noise) / math.sqrt(1 + width * width)


def _between(curve: Curve, step: int) -> float:
    return float(np.interp(math.log(step), [math.log(s) for s, _ in curve], [v for _, v in curve]))


def _thinned(steps: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the steps, evenly spaced by their logarithms. The first and the last are included."""
    if len(steps) <= most:
        return list(steps)
    low, high = math.log(steps[0]), math.log(steps[-1])
    wanted = [math.exp(low + (high - low) * i / (most - 1)) for i in range(most)]
    return sorted({min(steps, key=lambda step: abs(step - want)) for want in wanted})


def _correlation(first: Floats, second: Floats) -> float:
    if first.std() == 0 or second.std() == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
