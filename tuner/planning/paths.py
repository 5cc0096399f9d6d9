"""Learning curves that are extended to the last step, for comparisons with other search methods.

Trials that were cut short are extended in favour of the other method. Each further step costs as much as the mean of the steps before it.
The gain in score is the largest gain of any trial of the job over the same steps. The estimated spend of the other method is therefore
more likely too low than too high.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

End = Literal["completed", "failed", "cut"]


@dataclass(frozen=True, slots=True)
class Point:
    """A trial's score and cost at a step."""

    step: int
    score: float  #: Higher is better.
    cost: int  #: Micro-dollars since the start of the trial.


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of a trial that was trained."""

    curve: tuple[Point, ...]  #: At least one report, ascending by step.
    start: int = 0  #: Micro-dollars spent before the first step.
    end: End = "cut"  #: `cut` if the trial could have continued.

    @property
    def last(self) -> Point:
        return self.curve[-1]


@dataclass(frozen=True, slots=True)
class Path:
    """A trial, extended to the last step."""

    rungs: tuple[Point, ...]  #: The score and cost at each rung that the trial reaches.
    cost: int  #: Micro-dollars of the whole training.
    goal: Point | None  #: The first point that reaches the goal.


def last_step_of(trials: Sequence[Seen], max_step: int | None) -> int | None:
    """Return the last step of a full training.

    It is `max_step` if a trial reached it, otherwise the last step of the longest trial that ended by itself. Return None if no trial did
    either.
    """
    if max_step is not None and any(trial.last.step >= max_step for trial in trials):
        return max_step
    return max((trial.last.step for trial in trials if trial.end == "completed"), default=None)


class Paths:
    """The paths of a job's trials to `last_step`, which must be above all rungs."""

    def __init__(self, trials: Sequence[Seen], *, rungs: Sequence[int], last_step: int, goal: float) -> None:
        self._rungs, self._last, self._goal = rungs, last_step, goal
        self._bests = [_Best(trial) for trial in trials]
        self._gains: dict[tuple[int, int], float] = {}
        self.cut = sum(1 for trial in trials if not self._is_whole(trial))
        self.all = [self._path(trial, best) for trial, best in zip(trials, self._bests, strict=True)]

    def _is_whole(self, trial: Seen) -> bool:
        return trial.end != "cut" or trial.last.step >= self._last

    def _path(self, trial: Seen, best: "_Best") -> Path:
        seen = [_crossing(trial, best, rung) for rung in self._rungs if rung <= trial.last.step]
        goal = next((point for point in trial.curve if point.score >= self._goal), None)
        if self._is_whole(trial):
            return Path(tuple(seen), trial.last.cost, goal)
        ahead = [*(rung for rung in self._rungs if rung > trial.last.step), self._last]
        beyond = [self._beyond(trial, best, step) for step in ahead]
        goal = goal or next((point for point in beyond if point.score >= self._goal), None)
        return Path((*seen, *beyond[:-1]), beyond[-1].cost, goal)

    def _beyond(self, trial: Seen, best: "_Best", step: int) -> Point:
        last = trial.last
        cost = trial.start + (last.cost - trial.start) * step // last.step
        return Point(step, best.scores[-1] + self._gain(last.step, step), cost)

    def _gain(self, start: int, end: int) -> float:
        """Return the largest gain in the best score between two steps, over the trials whose reports cover both steps."""
        if (start, end) not in self._gains:
            seen = (best for best in self._bests if best.steps[0] <= start and best.steps[-1] >= end)
            self._gains[start, end] = max((best.at(end) - best.at(start) for best in seen), default=0.0)
        return self._gains[start, end]


class _Best:
    """The best score that a trial had reached at each of its reports."""

    def __init__(self, trial: Seen) -> None:
        self.steps = [point.step for point in trial.curve]
        self.scores = list(accumulate((point.score for point in trial.curve), max))

    def at(self, step: int) -> float:
        return self.scores[bisect_right(self.steps, step) - 1]


def _crossing(trial: Seen, best: _Best, rung: int) -> Point:
    """Return the trial's first report at or after the rung."""
    return trial.curve[bisect_left(best.steps, rung)]
