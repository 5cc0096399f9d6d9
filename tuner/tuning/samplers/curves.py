"""Learning curves, prepared for a model: configurations, and scores at a few steps of each."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from tuner.domain.records import PastTrial
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.tuning.samplers.encoding import UnitCube

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FLOOR = -1.0  # lowest score on a scale where the median is 0 and the best 1: how bad a bad trial is does not help the model
Lifts = list[tuple[float, float]]  # slope and offset by level
SLOPE_WEIGHT = 3  # weight of the prior slope 1, in pairs of scores
SLOPES = (0.3, 3.0)
SHRINKS = 0.6  # an unknown gain of the mean curve, relative to the previous gain


@dataclass(frozen=True, slots=True)
class Data:
    """Scores for a model: `x` (n, d) features, `t` (n,) logarithms of steps, `y` (n,) scaled scores, `trial` (n,) numbers."""

    x: Floats
    t: Floats
    y: Floats
    trial: Ints


@dataclass(slots=True)
class _Trial:
    """A trial with its `scores` by level (index of a rung or of the last step). A failed trial has the score `FLOOR`."""

    number: int
    point: Floats
    features: Floats
    scores: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    trained_ns: int = 0
    failed: bool = False
    violation: float = 0.0  #: The violation of the job's constraints at the newest score.


class LevelScores:
    """Scores of trials by level. The levels are the rungs and the last step.

    The score of a level is the trial's first score at or after the level's step. At the last level it is the newest one. `reports_seen`
    counts the scores and failures that were added, so that the caller knows when to fit a model again.
    """

    def __init__(self, cube: UnitCube, steps: Sequence[int], history: Sequence[PastTrial] = ()) -> None:
        """Create the curves and add the trials of earlier jobs.

        Args:
            steps: The rungs and the last step, ascending. Empty if trials have no maximum step; then only the last score counts.
        """
        self._cube = cube
        self._levels = list(steps) or [1]
        self._t = np.log(np.array(self._levels, dtype=np.float64))
        self.last_t = float(self._t[-1])
        self._trials: dict[int, _Trial] = {}
        #: Numbers of the results that the user gave.
        self.given = [-1 - index for index, past in enumerate(history) if past.is_given]
        self._lifted_at, self._lifts = -1, [(1.0, 0.0)] * len(self._levels)
        self.reports_seen = self.trials_seen = 0
        for index, past in enumerate(history):  # trials of earlier jobs have numbers below 0
            self.add(-1 - index, past.config)
            for step, score, trained_ns in past.curve:
                if step >= self._levels[0]:
                    self._note(self._trials[-1 - index], step, score, trained_ns, past.violation)
            self.reports_seen += 1
            if past.failed:
                self.fail(-1 - index)

    def add(self, number: int, config: Config) -> None:
        point = self._cube.point(config)
        self._trials[number] = _Trial(number, point, self._cube.features(point[None])[0])

    def tell(self, number: int, step: int, score: float, trained_ns: int, violation: float = 0.0) -> None:
        """Add the score of a rung or of the trial's end."""
        self._note(self._trials[number], step, score, trained_ns, violation)
        self.reports_seen += 1

    def _note(self, trial: _Trial, step: int, score: float, trained_ns: int, violation: float) -> None:
        level = max(0, bisect_right(self._levels, step) - 1)
        self.trials_seen += not trial.scores and not trial.failed
        if level not in trial.scores or level == len(self._levels) - 1:
            trial.scores[level] = score
        trial.steps, trial.trained_ns, trial.violation = step, trained_ns, violation

    def fail(self, number: int) -> None:
        trial = self._trials[number]
        self.trials_seen += not trial.scores and not trial.failed
        trial.failed = True
        self.reports_seen += 1

    def points(self, numbers: Sequence[int]) -> Floats:
        points = [self._trials[number].point for number in numbers]
        return np.array(points).reshape(len(points), self._cube.parameters)

    def features(self, numbers: Sequence[int]) -> Floats:
        features = [self._trials[number].features for number in numbers]
        return np.array(features).reshape(len(features), self._cube.dimensions)

    def step_seconds(self) -> tuple[Floats, Floats]:
        """Return the features and the mean step time in seconds of the trials with measured steps."""
        timed = [t for t in self._trials.values() if t.trained_ns and t.steps]
        seconds = np.array([t.trained_ns / t.steps / NS for t in timed])
        return np.array([t.features for t in timed]).reshape(len(timed), self._cube.dimensions), seconds

    def best_numbers(self, count: int) -> list[int]:
        """Return the `count` best trials of this job by their newest score, lifted (projected) to the last step."""
        return self._best(trial for trial in self._usable() if trial.number >= 0)[:count]

    def best_past(self, count: int) -> list[int]:
        """Return the `count` best trials of earlier jobs by their newest score, lifted (projected) to the last step.

        Trials whose configuration this job has too are left out, and results that the user gave.
        """
        past = [trial for trial in self._usable() if trial.number < 0 and trial.number not in self.given]
        own = {t.point.tobytes() for t in self._trials.values() if t.number >= 0} if past else set()
        return self._best(trial for trial in past if trial.point.tobytes() not in own)[:count]

    def _best(self, trials: Iterable[_Trial]) -> list[int]:
        lifts = self._present_lifts()
        newest = {trial.number: (trial.violation, -_newest(trial, lifts)) for trial in trials}
        return sorted(newest, key=lambda number: (*newest[number], number))

    def _usable(self) -> list[_Trial]:
        return [trial for trial in self._trials.values() if trial.scores and not trial.failed]

    def known(self, count: int) -> Data:
        """Return at most `count` scores, lifted (projected) to the last step and scaled to median 0 and best 1.

        If there are more, scores of better trials and each trial's newest score are preferred.
        """
        lifts = self._present_lifts()
        penalty = _Penalty.of(self._usable(), lifts)
        newest = [penalty.lowered(_newest(t, lifts), t) for t in self._usable()] or [0.0]
        middle = float(np.median(newest))
        scale = max(max(newest) - middle, 1e-9)
        rows: list[tuple[float, int, int, float]] = []
        for trial in self._trials.values():
            rows += _rows(trial, lifts, penalty, middle, scale)
        if len(rows) > count:
            rows = sorted(rows, key=lambda row: (-row[0], row[1], row[2]))[:count]
        numbers = [number for _, number, _, _ in rows]
        levels = np.array([level for _, _, level, _ in rows])
        z = np.array([z for _, _, _, z in rows])
        return Data(self.features(numbers), self._t[levels], z, np.array(numbers, dtype=np.int64))

    def _present_lifts(self) -> Lifts:
        if self._lifted_at != self.reports_seen:
            self._lifts, self._lifted_at = self._fitted_lifts(), self.reports_seen
        return self._lifts

    def _fitted_lifts(self) -> Lifts:
        """Return the line that lifts a score at each level to the last level.

        From each level to the next, a line is fitted to the trials with scores at both, with its slope drawn towards 1. The
        lines are then composed.
        """
        maps: list[tuple[float, float]] = []
        gain = 0.0
        for level in range(len(self._levels) - 1):
            pairs = [
                (t.scores[level], t.scores[level + 1])
                for t in self._trials.values()
                if level in t.scores and level + 1 in t.scores
            ]
            if len(pairs) < 2:
                gain *= SHRINKS
                maps.append((1.0, gain))
                continue
            before, after = np.array(pairs).T
            x, y = float(np.median(before)), float(np.median(after))
            spread = float(((before - before.mean()) ** 2).sum())
            own = float(((before - before.mean()) * (after - after.mean())).sum()) / spread if spread else 1.0
            slope = (len(pairs) * own + SLOPE_WEIGHT) / (len(pairs) + SLOPE_WEIGHT)
            slope = min(SLOPES[1], max(SLOPES[0], slope))
            gain = float(np.median(after - before))
            maps.append((slope, y - slope * x))
        lifts = [(1.0, 0.0)]
        for slope, offset in reversed(maps):
            a, b = lifts[-1]
            lifts.append((a * slope, a * offset + b))
        return lifts[::-1]


def _newest(trial: _Trial, lifts: Lifts) -> float:
    level = max(trial.scores)
    return lifts[level][0] * trial.scores[level] + lifts[level][1]


def _rows(
    trial: _Trial, lifts: Lifts, penalty: "_Penalty", middle: float, scale: float
) -> list[tuple[float, int, int, float]]:
    """Return (priority, number, level, scaled score) for each score of a trial."""
    if trial.failed:
        return [(FLOOR + 0.5, trial.number, max(trial.scores, default=0), FLOOR)]
    if not trial.scores:
        return []
    last = max(trial.scores)
    end = (penalty.lowered(_newest(trial, lifts), trial) - middle) / scale
    # Among equally good trials, a golden-ratio sequence decides evenly, and always in the same way, whose scores are kept.
    spread = 0.3 * ((trial.number * 0.6180339887498949) % 1.0)
    lifted = {
        level: penalty.lowered(lifts[level][0] * score + lifts[level][1], trial)
        for level, score in trial.scores.items()
    }
    return [
        (end + spread + 0.5 * (level == last), trial.number, level, max(FLOOR, (score - middle) / scale))
        for level, score in lifted.items()
    ]


@dataclass(frozen=True, slots=True)
class _Penalty:
    """How the scores of trials that violate constraints are lowered.

    Such a score is at most the median of the feasible trials. From there it falls with the violation, by at most the range between the
    best score and the median of all. So the model sees the way to the feasible configurations, even before the first of them is known.
    """

    ceiling: float
    span: float
    typical: float  #: The median of the violations. A trial with this one is lowered by the whole span.

    @classmethod
    def of(cls, trials: Sequence[_Trial], lifts: Lifts) -> Self:
        violations = [trial.violation for trial in trials if trial.violation]
        if not violations:
            return cls(np.inf, 0.0, 1.0)
        newest = [_newest(trial, lifts) for trial in trials]
        feasible = [_newest(trial, lifts) for trial in trials if not trial.violation]
        span = max(newest) - float(np.median(newest))
        return cls(float(np.median(feasible or newest)), span, float(np.median(violations)))

    def lowered(self, score: float, trial: _Trial) -> float:
        """Return the score that the model learns for a score of the trial."""
        if not trial.violation:
            return score
        return min(score, self.ceiling) - self.span * min(1.0, trial.violation / self.typical)
