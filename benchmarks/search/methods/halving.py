"""Our own references: promotion ASHA, synchronous Hyperband, and both with BOHB's sampler."""

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from benchmarks.search.arena import Decision, Problem, Resume, Start
from benchmarks.search.methods.kde import Sampler
from benchmarks.search.tables import Array

ETA = 3


def rungs(steps: int, first: int = 1, eta: int = ETA) -> list[int]:
    """Return the rungs 1, 3, 9, ... and the last step."""
    below = []
    while first < steps:
        below.append(first)
        first *= eta
    return [*below, steps]


class PromotionAsha:
    """Promotion ASHA (Li et al., MLSys 2020): a free worker promotes from the highest rung that has a candidate, or starts a trial."""

    def __init__(self, problem: Problem, sampler: Callable[[Problem], Sampler]) -> None:
        self.rungs = rungs(problem.steps)
        self.sampler = sampler(problem)
        self.ranked: list[list[tuple[float, int]]] = [[] for _ in self.rungs]  # (-value, trial), best first
        self.promoted: list[set[int]] = [set() for _ in self.rungs]

    def next(self, may_start: bool) -> Start | Resume | None:
        candidate = self._candidate()
        if candidate is None:
            return Start(self.sampler.propose()) if may_start else None
        rung, trial = candidate
        self.promoted[rung].add(trial)
        return Resume(trial)

    def started(self, trial: int, point: Array) -> None:
        self.sampler.started(point)

    def report(self, trial: int, step: int, value: float) -> Decision:
        if step not in self.rungs:
            return Decision.CONTINUE
        rung = self.rungs.index(step)
        insort(self.ranked[rung], (-value, trial))
        self.sampler.tell(trial, step, value)
        if step == self.rungs[-1]:
            return Decision.STOP
        if self._candidate() != (rung, trial):
            return Decision.PAUSE
        self.promoted[rung].add(trial)
        return Decision.CONTINUE

    def _candidate(self) -> tuple[int, int] | None:
        """Return the rung and trial to promote next, if there is one."""
        for rung in range(len(self.rungs) - 2, -1, -1):
            top = islice(self.ranked[rung], len(self.ranked[rung]) // ETA)
            waiting = (trial for _, trial in top if trial not in self.promoted[rung])
            if (trial := next(waiting, None)) is not None:
                return rung, trial
        return None


@dataclass
class _Bracket:
    rungs: list[int]
    sizes: list[int]
    level: int = 0
    results: dict[int, float] = field(default_factory=dict)
    to_start: int = 0
    to_resume: deque[int] = field(default_factory=deque)

    def reported(self, trial: int, value: float) -> None:
        """Promote the best trials of a rung when all of its trials have reported."""
        self.results[trial] = value
        if len(self.results) < self.sizes[self.level]:
            return
        ranked = sorted(self.results, key=lambda t: -self.results[t])
        self.level += 1
        self.results.clear()
        if self.level < len(self.rungs):
            self.to_resume.extend(ranked[: self.sizes[self.level]])


class Hyperband:
    """Hyperband (Li et al., JMLR 2018), with the most aggressive bracket first. While one bracket waits, the next begins, as in HpBandSter."""

    def __init__(self, problem: Problem, sampler: Callable[[Problem], Sampler]) -> None:
        self.rungs = rungs(problem.steps)
        self.sampler = sampler(problem)
        self.brackets: list[_Bracket] = []
        self.opened = 0
        self.bracket_of: list[_Bracket] = []  # of each trial

    def next(self, may_start: bool) -> Start | Resume | None:
        for bracket in self.brackets:
            if bracket.to_resume:
                return Resume(bracket.to_resume.popleft())
            if bracket.to_start and may_start:
                return self._start(bracket)
        return self._start(self._open()) if may_start else None

    def started(self, trial: int, point: Array) -> None:
        self.sampler.started(point)

    def report(self, trial: int, step: int, value: float) -> Decision:
        bracket = self.bracket_of[trial]
        if step < bracket.rungs[bracket.level]:
            return Decision.CONTINUE
        self.sampler.tell(trial, step, value)
        bracket.reported(trial, value)
        if trial in bracket.to_resume:
            bracket.to_resume.remove(trial)
            return Decision.CONTINUE
        return Decision.PAUSE

    def _start(self, bracket: _Bracket) -> Start:
        bracket.to_start -= 1
        self.bracket_of.append(bracket)
        return Start(self.sampler.propose())

    def _open(self) -> _Bracket:
        self.brackets = [b for b in self.brackets if b.level < len(b.rungs)]
        most = len(self.rungs) - 1
        halvings = most - self.opened % (most + 1)
        self.opened += 1
        first = math.ceil((most + 1) / (halvings + 1) * ETA**halvings)
        sizes = [max(1, first // ETA**level) for level in range(halvings + 1)]
        self.brackets.append(_Bracket(self.rungs[-halvings - 1 :], sizes, to_start=first))
        return self.brackets[-1]
