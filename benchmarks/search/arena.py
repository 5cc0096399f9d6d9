"""Workers that train by table on a simulated clock, while a policy decides; every second of every worker is paid.

A run lasts until budget x mean full training / workers seconds. Starting a trial and resuming a paused one each take
`startup` mean steps. A proposal is answered by the nearest row that was not used yet.
"""

import heapq
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

import numpy as np

from benchmarks.search.tables import Array, Curve, Table


class Decision(Enum):
    """What becomes of a trial that has just reported."""

    GO_ON = auto()
    PAUSE = auto()
    STOP = auto()


class Start(NamedTuple):
    """A new trial near this point of the unit cube."""

    point: Array


class Resume(NamedTuple):
    """A paused trial goes on where it was."""

    trial: int


class Policy(Protocol):
    """A search method. Trials are numbered from 0 in the order in which they start."""

    def next(self, may_start: bool) -> Start | Resume | None:
        """What a free worker does; None: wait until something is reported. Without `may_start` no row is left."""

    def started(self, trial: int, point: Array) -> None:
        """The trial that was just asked for trains the configuration at `point`, a row of the table."""

    def report(self, trial: int, step: int, value: float) -> Decision:
        """After each step, counted from 1. What is said of a table's last step does not matter."""


@dataclass(frozen=True)
class Problem:
    """What a policy knows of its task before it starts."""

    dims: int
    steps: int
    workers: int
    seed: int


@dataclass
class Run:
    """What came of it. `curve`: (seconds, value) at each improvement of the best value."""

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
        # |row - point|² without |point|², which is the same for all: infinite once a row is used.
        self._squares = np.einsum("ij,ij->i", table.unit, table.unit)
        self._trials: list[_Trial] = []
        self._free_since = [0.0] * workers  # of each free worker
        self._events: list[tuple[float, int, int]] = []  # (seconds, tie, trial)
        self._ties = 0

    def run(self) -> Run:
        """Until the money is spent, or nothing goes on any more; then the workers idle to the end."""
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
        if decision is Decision.GO_ON and trial.steps < self.table.steps:
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
    """The run's curve with money, in mean trainings, for time."""
    return [(workers * at / table.full_s, value) for at, value in run.curve]
