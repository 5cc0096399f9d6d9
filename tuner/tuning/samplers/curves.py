"""Prepare learning curves for a model: the configurations of trials, and the scores of each trial at a few steps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tuner.domain.records import PastTrial
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.tuning.rungs import SLOPE_WEIGHT, SLOPES
from tuner.tuning.samplers.encoding import UnitCube

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Table = npt.NDArray[Any]  # one row for each trial, with named columns
FIRST_ROWS = 64
FLOOR = -1.0  # lower scores are raised to this (the median is 0, the best is 1): how bad a bad trial is does not matter to the model
# The least difference of the best score from the median, as a share of the largest score.
LEAST_SPREAD = 1e-12
# A gain between levels that too few trials show is assumed to be this share of the previous gain.
SHRINKS = 0.6


@dataclass(frozen=True, slots=True)
class Data:
    """Scores for a model: `x` (n, d) features, `t` (n,) logarithms of steps, `y` (n,) scaled scores, `trial` (n,) numbers."""

    x: Floats
    t: Floats
    y: Floats
    trial: Ints


class LevelScores:
    """Scores of trials by level. The levels are the rungs and the last step.

    A trial's score at a level is its first score at or after the level's step. At the last level, it is the newest score. `reports_seen`
    counts the scores and failures that were added, so that the caller knows when to fit a model again.

    The trials are rows of one array, because every decision reads all of them. Reading 10,000 Python objects instead took 130 ms.
    """

    def __init__(self, cube: UnitCube, steps: Sequence[int], history: Sequence[PastTrial] = ()) -> None:
        """Store the levels, and add the trials of earlier jobs.

        Args:
            steps: The rungs and the last step, ascending. Empty if trials have no maximum step. Then only the last score counts.
        """
        self._cube = cube
        self._levels = list(steps) or [1]
        self._t = np.log(np.array(self._levels, dtype=np.float64))
        self.last_t = float(self._t[-1])
        self._rows: dict[int, int] = {}  # the row of each trial in `_table`, by trial number
        columns = [
            ("number", np.int64),
            ("point", np.float64, cube.parameters),
            ("features", np.float64, cube.dimensions),
            ("scores", np.float64, len(self._levels)),  # NaN at levels without a score
            ("level", np.int64),  # the highest level with a score, or -1
            ("steps", np.int64),
            ("trained_ns", np.int64),
            ("failed", np.bool_),
            ("violation", np.float64),  # the total violation of the job's constraints at the newest score
        ]
        self._table = np.zeros(
            FIRST_ROWS, [(name, kind, *((size,) for size in sizes)) for name, kind, *sizes in columns]
        )
        #: Numbers of the results that the user gave.
        self.given = [-1 - index for index, past in enumerate(history) if past.is_given]
        self._has_past = len(history) > 0
        self._lifted_at, self._lifts = -1, _Lifts.none(len(self._levels))
        self.reports_seen = self.trials_seen = 0
        for index, past in enumerate(history):  # trials of earlier jobs have numbers below 0
            self.add(-1 - index, past.config)
            for step, score, trained_ns in past.curve:
                if step >= self._levels[0]:
                    self._note(-1 - index, step, score, trained_ns, past.violation)
            self.reports_seen += 1
            if past.failed:
                self.fail(-1 - index)

    @property
    def _trials(self) -> Table:
        return self._table[: len(self._rows)]

    def add(self, number: int, config: Config) -> None:
        row = self._rows.setdefault(number, len(self._rows))
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        point = self._cube.point(config)
        features = self._cube.features(point[None])[0]
        self._table[row] = (number, point, features, np.nan, -1, 0, 0, False, 0.0)

    def tell(self, number: int, step: int, score: float, trained_ns: int, violation: float = 0.0) -> None:
        """Add the score that a trial has at a rung, or at its end."""
        self._note(number, step, score, trained_ns, violation)
        self.reports_seen += 1

    def _note(self, number: int, step: int, score: float, trained_ns: int, violation: float) -> None:
        trial = self._table[self._rows[number]]
        level = max(0, bisect_right(self._levels, step) - 1)
        self.trials_seen += bool(trial["level"] < 0 and not trial["failed"])
        if np.isnan(trial["scores"][level]) or level == len(self._levels) - 1:
            trial["scores"][level] = score
        trial["level"] = max(trial["level"], level)
        trial["steps"], trial["trained_ns"], trial["violation"] = step, trained_ns, violation

    def fail(self, number: int) -> None:
        trial = self._table[self._rows[number]]
        self.trials_seen += bool(trial["level"] < 0 and not trial["failed"])
        trial["failed"] = True
        self.reports_seen += 1

    def points(self, numbers: Sequence[int]) -> Floats:
        return self._of(numbers, "point")

    def features(self, numbers: Sequence[int]) -> Floats:
        return self._of(numbers, "features")

    def _of(self, numbers: Sequence[int], column: str) -> Floats:
        rows = [self._rows[number] for number in numbers]
        return np.asarray(self._table[column][rows], dtype=np.float64)

    def step_seconds(self) -> tuple[Floats, Floats]:
        """Return, for the trials with measured steps, the features of their configurations and their mean step times in seconds."""
        trials = self._trials
        timed = trials[(trials["trained_ns"] > 0) & (trials["steps"] > 0)]
        return timed["features"], timed["trained_ns"] / timed["steps"] / NS

    def best_numbers(self, count: int) -> list[int]:
        """Return the `count` best trials of this job by their newest score, lifted (projected) to the last step."""
        return self._best(self._trials["number"] >= 0)[:count]

    def best_past(self, count: int) -> list[int]:
        """Return the `count` best trials of earlier jobs by their newest score, lifted (projected) to the last step.

        Results that the user gave are omitted. Trials whose configuration this job has tried too are also omitted.
        """
        if not self._has_past:
            return []
        numbers, points = self._trials["number"], self._trials["point"]
        own = {point.tobytes() for point in points[numbers >= 0]}
        past = self._best((numbers < 0) & ~np.isin(numbers, self.given))
        return [number for number in past if points[self._rows[number]].tobytes() not in own][:count]

    def _best(self, wanted: Flags) -> list[int]:
        """Return the numbers of the wanted trials, best first. Ties go to the lowest number."""
        trials = self._trials[wanted & self._usable]
        newest = self._present_lifts().newest(trials)
        order = np.lexsort((trials["number"], -newest, trials["violation"]))
        return list(map(int, trials["number"][order]))

    @property
    def _usable(self) -> Flags:
        trials = self._trials
        return np.asarray((trials["level"] >= 0) & ~trials["failed"], dtype=np.bool_)

    def known(self, count: int, everywhere: int = 0) -> Data:
        """Return at most `count` scores, lifted (projected) to the last step and scaled to median 0 and best 1.

        A failed trial has one score, `FLOOR`.

        Args:
            count: The most scores to return. If there are more, the scores of better trials and the newest score of each trial are preferred.
            everywhere: How many of the `count` scores are not chosen by this preference, but evenly from all remaining scores. Used only if
                there are more scores than `count`.
        """
        lifts, trials, usable = self._present_lifts(), self._trials, self._usable
        number, failed, violation = trials["number"], trials["failed"], trials["violation"]
        last = np.maximum(trials["level"], 0)
        newest = lifts.newest(trials)
        penalty = _Penalty.of(newest[usable], violation[usable])
        newest = penalty.lowered(newest, violation)
        middle = float(np.median(newest[usable])) if usable.any() else 0.0
        # Relative to the scores, so that the model learns the same in any unit of the metric. All scores are equal at the least spread.
        least = LEAST_SPREAD * float(np.abs(newest[usable]).max(initial=0.0)) or 1.0
        scale = max(float(newest[usable].max(initial=-np.inf)) - middle, least)
        has_score = np.where(
            failed[:, None], last[:, None] == np.arange(len(self._t)), ~np.isnan(trials["scores"])
        )
        row, level = np.nonzero(has_score)
        lifted = penalty.lowered(lifts.lifted(trials["scores"][row, level], level), violation[row])
        scaled = np.where(failed[row], FLOOR, np.fmax(FLOOR, (lifted - middle) / scale))
        if len(row) > count:
            # A golden-ratio sequence gives each trial number a fixed value, and the values are spread evenly between 0 and 1. They decide among
            # equally good trials, and choose the scores of `everywhere`.
            even = (number * 0.6180339887498949) % 1.0
            end = np.where(failed, FLOOR + 0.5, (newest - middle) / scale + 0.3 * even)
            priority = end[row] + 0.5 * ((level == last[row]) & ~failed[row])
            order = np.lexsort((level, number[row], -priority))
            kept, rest = order[: count - everywhere], order[count - everywhere :]
            kept = np.append(
                kept, rest[np.lexsort((level[rest], number[row[rest]], even[row[rest]]))[:everywhere]]
            )
            row, level, scaled = row[kept], level[kept], scaled[kept]
        return Data(trials["features"][row], self._t[level], scaled, number[row])

    def _present_lifts(self) -> "_Lifts":
        if self._lifted_at != self.reports_seen:
            self._lifts, self._lifted_at = _Lifts.fitted(self._trials["scores"]), self.reports_seen
        return self._lifts


@dataclass(frozen=True, slots=True)
class _Lifts:
    """For each level, the line that lifts (projects) a score at this level to the last level."""

    slopes: Floats
    offsets: Floats

    @classmethod
    def none(cls, levels: int) -> Self:
        return cls(np.ones(levels), np.zeros(levels))

    @classmethod
    def fitted(cls, scores: Floats) -> Self:
        """Fit the lines to `scores`, an array of shape (trials, levels), which is NaN where a trial has no score.

        From each level to the next, a line is fitted to the trials with scores at both levels. Its slope is drawn towards 1. The lines
        from one level to the next are then composed to lines to the last level.
        """
        gain, maps = 0.0, list[tuple[float, float]]()
        for lower, higher in pairwise(scores.T):
            both = ~np.isnan(lower) & ~np.isnan(higher)
            before, after = lower[both], higher[both]
            if len(before) < 2:
                gain *= SHRINKS
                maps.append((1.0, gain))
                continue
            x, y = float(np.median(before)), float(np.median(after))
            spread = float(((before - before.mean()) ** 2).sum())
            own = float(((before - before.mean()) * (after - after.mean())).sum()) / spread if spread else 1.0
            slope = (len(before) * own + SLOPE_WEIGHT) / (len(before) + SLOPE_WEIGHT)
            slope = min(SLOPES[1], max(SLOPES[0], slope))
            gain = float(np.median(after - before))
            maps.append((slope, y - slope * x))
        lifts = [(1.0, 0.0)]
        for slope, offset in reversed(maps):
            a, b = lifts[-1]
            lifts.append((a * slope, a * offset + b))
        slopes, offsets = np.array(lifts[::-1]).T
        return cls(slopes, offsets)

    def newest(self, trials: Table) -> Floats:
        """Return the newest score of each trial, lifted to the last step. It is NaN if the trial has no score."""
        level = trials["level"]
        return self.lifted(trials["scores"][np.arange(len(trials)), level], level)

    def lifted(self, scores: Floats, level: Ints) -> Floats:
        return np.asarray(self.slopes[level] * scores + self.offsets[level], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Penalty:
    """Lowers the scores of trials that violate constraints.

    The score of an infeasible trial is first limited to the median of the feasible trials (`ceiling`). Then it is lowered in proportion to the
    violation, by at most the difference between the best score and the median of all trials (`span`). Therefore the model learns in which
    direction the violation becomes smaller, even before the first feasible configuration is known.
    """

    ceiling: float
    span: float
    typical: float  #: The median of the violations. The score of a trial with this violation is lowered by the whole span.

    @classmethod
    def of(cls, newest: Floats, violation: Floats) -> Self:
        """Compute the penalty from the newest scores of the trials, lifted to the last step, and from their violations."""
        if not violation.any():
            return cls(np.inf, 0.0, 1.0)
        feasible = newest[violation == 0]
        span = float(newest.max() - np.median(newest))
        ceiling = float(np.median(feasible if len(feasible) else newest))
        return cls(ceiling, span, float(np.median(violation[violation > 0])))

    def lowered(self, scores: Floats, violation: Floats) -> Floats:
        """Return the scores from which the model should learn: those of trials that violate a constraint are lowered."""
        lower = np.minimum(scores, self.ceiling) - self.span * np.minimum(1.0, violation / self.typical)
        return np.where(violation > 0, lower, scores)
