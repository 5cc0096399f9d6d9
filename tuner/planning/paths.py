"""Learning curves read to their end: those that were cut short go on in favour of whoever is to be compared with us.

A cut trial is taken to cost as much a step as before, and to gain as much as any trial of its job gained from there on. So
what a peer is estimated to need for a result is rather too little than too much.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

End = Literal["completed", "failed", "cut"]


@dataclass(frozen=True, slots=True)
class Point:
    """`cost` in micro-dollars from the trial's beginning; a higher score is better."""

    step: int
    score: float
    cost: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A trial as far as it was trained, reports ascending by step, at least one. `start`: what it cost before its first step.
    `cut`: it could have gone on."""

    curve: tuple[Point, ...]
    start: int = 0
    end: End = "cut"

    @property
    def last(self) -> Point:
        return self.curve[-1]


@dataclass(frozen=True, slots=True)
class Path:
    """A trial on its whole way: its score where it crosses each rung, what all of it costs, and where it reaches the goal."""

    rungs: tuple[Point, ...]
    cost: int
    goal: Point | None


def last_step_of(trials: Sequence[Seen], max_step: int | None) -> int | None:
    """How far a trial is trained in full: the maximum where one came to it, else what the longest that ended by itself did; None
    where that is not known."""
    if max_step is not None and any(trial.last.step >= max_step for trial in trials):
        return max_step
    return max((trial.last.step for trial in trials if trial.end == "completed"), default=None)


class Paths:
    """The ways of a job's trials to `last_step`, which lies above all rungs."""

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
        """The most that a trial's best rose between these steps, of those that were seen at both."""
        if (start, end) not in self._gains:
            seen = (best for best in self._bests if best.steps[0] <= start and best.steps[-1] >= end)
            self._gains[start, end] = max((best.at(end) - best.at(start) for best in seen), default=0.0)
        return self._gains[start, end]


class _Best:
    """The best score of a trial up to each of its reports."""

    def __init__(self, trial: Seen) -> None:
        self.steps = [point.step for point in trial.curve]
        self.scores = list(accumulate((point.score for point in trial.curve), max))

    def at(self, step: int) -> float:
        return self.scores[bisect_right(self.steps, step) - 1]


def _crossing(trial: Seen, best: _Best, rung: int) -> Point:
    """The first report at or after the rung."""
    return trial.curve[bisect_left(best.steps, rung)]
