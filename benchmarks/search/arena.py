"""Simulate workers that train by a recorded table while a policy decides. Every second of every worker is paid.

A run lasts until budget x mean full training / workers seconds. Starting a trial and resuming a paused one each take
`startup` mean steps. A proposal is replaced by the nearest row that was not used yet.
"""

import heapq
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

import numpy as np

from benchmarks.search.tables import Array, Curve, Table


class Decision(Enum):
    """What a trial does after a report."""

    CONTINUE = auto()
    PAUSE = auto()
    STOP = auto()


class Start(NamedTuple):
    """Start a trial near this point of the unit cube."""

    point: Array


class Resume(NamedTuple):
    """Resume a paused trial at its last step."""

    trial: int


class Policy(Protocol):
    """A search method. Trials are numbered from 0 in the order in which they start."""

    def next(self, may_start: bool) -> Start | Resume | None:
        """Return what a free worker does, or None to wait for the next report.

        If `may_start` is false, no row is left for a new trial.
        """

    def started(self, trial: int, point: Array) -> None:
        """Learn that the new trial trains the configuration at `point`, which is a row of the table."""

    def report(self, trial: int, step: int, value: float) -> Decision:
        """Decide about the trial after a step, counted from 1. The decision about the table's last step is ignored."""


@dataclass(frozen=True)
class Problem:
    """What a policy knows before a run."""

    dims: int
    steps: int
    workers: int
    seed: int
    money: float = float("inf")  #: The budget in mean steps.


@dataclass
class Run:
    """The result of a run."""

    #: Seconds and value at each improvement of the best value.
    curve: list[tuple[float, float]] = field(default_factory=list)
    trials: int = 0
    steps: int = 0
    resumes: int = 0
    busy_s: float = 0.0
    idle_s: float = 0.0


@dataclass
class _Trial:
    row: int
    steps: int = 0
    paused: bool = False


class Arena:
    """One run of one policy on one table."""

    def __init__(
        self, table: Table, policy: Policy, *, budget: float, workers: int, startup: float = 1.0
    ) -> None:
        self.table, self.policy = table, policy
        self.startup_s = startup * table.mean_step_s
        self.end_s = budget * table.full_s / workers
        self.result = Run()
        # |row - point|² without |point|², which is the same for all rows. Infinite if the row is used.
        self._squares = np.einsum("ij,ij->i", table.unit, table.unit)
        self._trials: list[_Trial] = []
        self._free_since = [0.0] * workers  # since when each free worker is free
        self._events: list[tuple[float, int, int]] = []  # (seconds, tie, trial)
        self._ties = 0

    def run(self) -> Run:
        """Run until the money is spent or no trial trains. The workers are then idle to the end."""
        self._dispatch(0.0)
        while self._events:
            now, _, number = heapq.heappop(self._events)
            if now > self.end_s:
                break
            self._stepped(number, now)
            self._dispatch(now)
        self.result.idle_s += sum(self.end_s - since for since in self._free_since)
        return self.result

    def _stepped(self, number: int, now: float) -> None:
        trial = self._trials[number]
        value = float(self.table.metric[trial.row, trial.steps])
        trial.steps += 1
        self.result.steps += 1
        if not self.result.curve or value > self.result.curve[-1][1]:
            self.result.curve.append((now, value))
        decision = self.policy.report(number, trial.steps, value)
        if decision is Decision.CONTINUE and trial.steps < self.table.steps:
            self._train(number, now, setup_s=0.0)
        else:
            trial.paused = decision is Decision.PAUSE and trial.steps < self.table.steps
            self._free_since.append(now)

    def _dispatch(self, now: float) -> None:
        while self._free_since:
            match self.policy.next(may_start=len(self._trials) < self.table.configs):
                case Start(point):
                    number = self._start(point)
                case Resume(number):
                    assert self._trials[number].paused, f"trial {number} is not paused"
                    self._trials[number].paused = False
                    self.result.resumes += 1
                case None:
                    return
            self.result.idle_s += now - self._free_since.pop()
            self._train(number, now, setup_s=self.startup_s)

    def _start(self, point: Array) -> int:
        row = int(np.argmin(self._squares - 2 * (self.table.unit @ point)))
        self._squares[row] = np.inf
        self._trials.append(_Trial(row))
        self.result.trials += 1
        self.policy.started(len(self._trials) - 1, self.table.unit[row])
        return len(self._trials) - 1

    def _train(self, number: int, now: float, *, setup_s: float) -> None:
        trial = self._trials[number]
        done = now + setup_s + float(self.table.step_s[trial.row, trial.steps])
        self.result.busy_s += min(done, self.end_s) - now
        self._ties += 1
        heapq.heappush(self._events, (done, self._ties, number))


def spent(table: Table, run: Run, workers: int) -> Curve:
    """Return the run's curve with money in mean trainings instead of seconds."""
    return [(workers * at / table.full_s, value) for at, value in run.curve]
