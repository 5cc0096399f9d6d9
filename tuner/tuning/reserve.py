"""The finish reserve: money is kept back so that the best trial reaches its last step within the budget.

Everything is counted in nanoseconds of one worker, which is what money is worth to a job: at the mean price of the time that was
trained so far, where machines have several. Only `auto` keeps a reserve, and only where an exhausted budget ends the job: one
that is to be topped up goes on as if the money did not end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from tuner.domain.money import Rate
from tuner.domain.time import NS
from tuner.tuning.state import State, TrialRecord

MARGIN = 1.1  # steps differ in length
NEW = 0.4  # of a mean training: what a new trial is thought to take, many being cheaper and stopped early
FORETOLD = (
    0.5  # of what is free: what a new trial may be foretold to take to its end, as steps are foretold badly
)
SPARE = 0.5  # steps: a lease has to be a little longer than what is done on it
PRIOR_STEPS = 1  # of the mean length, that each trial is thought to have done beside its own


@dataclass(frozen=True, slots=True)
class Reserve:
    """As of the last report. `leader`: the best trial so far, if it should go on and the money suffices for that."""

    state: State
    left_ns: int
    leader: TrialRecord | None

    @classmethod
    def of(cls, state: State) -> Self | None:
        """None where none is kept."""
        automatic = state.spec.algorithm.scheduler == "auto" and state.budget.on_exhausted == "finish"
        if not automatic or not state.rungs or not state.begun or state.leader is None:
            return None
        left = Rate(state.mean_price, state.rate.milli_gpus).affords_ns(state.budget.limit) - _spent_ns(state)
        leader = state.trials[state.leader]
        waits = leader.status in ("running", "parking", "parked") and leader.resumable
        affordable = waits and leader.number not in state.passed and _finishing_ns(state, leader) <= left
        return cls(state, left, leader if affordable else None)

    @property
    def is_due(self) -> bool:
        """Whether what is left should finish what was begun: a new trial could not be trained to its end any more."""
        steps = max(NEW * (self.state.max_step or 0), self.state.rungs[0].step)
        return not self._affords(_overhead_ns(self.state) + round(steps * _step_ns(self.state)), None)

    def in_the_way(self) -> list[TrialRecord]:
        """Those that run and cannot get where they were sent beside the leader, which is to finish."""
        if self.leader is None:
            return []
        free = self.left_ns - self._reserved_ns
        found = []
        for needed, trial in sorted(self._needs(None), key=lambda need: (need[0], need[1].number)):
            free -= needed
            if free < 0 and trial.status == "running":
                found.append(trial)
        return found

    def can_finish(self, trial: TrialRecord) -> bool:
        """Whether the trial can be trained to its end, beside what runs and what the leader takes."""
        if trial is self.leader:
            return True
        return self._affords(_finishing_ns(self.state, trial), trial, to_end=self.is_due)

    def may_go_on(self, trial: TrialRecord) -> bool:
        """Whether a trial that waits may go on to where it was sent."""
        if self.leader is not None and self.is_due:
            return self.can_finish(trial)
        return self._is_last or self._affords(_reaching_ns(self.state, trial, trial.until), trial)

    def may_begin(self) -> bool:
        """Whether a new trial may begin: not while the leader has to finish."""
        if self.leader is not None and self.is_due:
            return False
        first = self.state.rungs[0].step * _step_ns(self.state)
        return self._is_last or self._affords(_overhead_ns(self.state) + first, None)

    @property
    def new_step_s(self) -> float:
        """Seconds that a step of a new trial may take for its last to be affordable beside what runs. It need not be affordable
        beside the leader: should it become the best, the other one need not be finished."""
        free = self.left_ns - self._committed_ns(None, to_end=False) - _overhead_ns(self.state)
        return max(0, free) * FORETOLD / (MARGIN * (self.state.max_step or 1) + SPARE) / NS

    @property
    def _is_last(self) -> bool:
        """Nothing else needs the money: how far it goes is for the ledger to say."""
        return self.leader is None and not self.state.active

    def _affords(self, ns: int, trial: TrialRecord | None, *, to_end: bool = False) -> bool:
        reserved = 0 if trial is self.leader else self._reserved_ns
        return ns + reserved <= self.left_ns - self._committed_ns(trial, to_end=to_end)

    @property
    def _reserved_ns(self) -> int:
        return 0 if self.leader is None else _finishing_ns(self.state, self.leader)

    def _committed_ns(self, but: TrialRecord | None, *, to_end: bool) -> int:
        return sum(needed for needed, _ in self._needs(but, to_end=to_end))

    def _needs(self, but: TrialRecord | None, *, to_end: bool = False) -> Iterator[tuple[int, TrialRecord]]:
        """What the others at work take to where they were sent, or `to_end`."""
        state = self.state
        for trial in (state.trials[number] for number in state.active):
            if trial is not but and trial is not self.leader:
                until = state.max_step if to_end else trial.until
                yield _reaching_ns(state, trial, until if trial.status == "running" else trial.steps), trial


def _spent_ns(state: State) -> int:
    """What is free to use takes its time, too."""
    price = state.mean_price
    paid = price.affords_ns(state.spent) if price.micro_usd_per_hour else 0
    return max(paid, state.trained_ns)


def _finishing_ns(state: State, trial: TrialRecord) -> int:
    """What the trial takes to its last step, and to begin again where it does not run."""
    return _reaching_ns(state, trial, state.max_step)


def _reaching_ns(state: State, trial: TrialRecord, step: int | None) -> int:
    steps = max(0, (step or trial.steps) - trial.steps)
    overhead = 0 if trial.number in state.active and trial.steps else _overhead_ns(state)
    return round((MARGIN * steps + SPARE) * _step_ns(state, trial)) + overhead


def _step_ns(state: State, trial: TrialRecord | None = None) -> int:
    """Of all, or of this trial as far as it is known; its latest ones where they are slower than those before."""
    mean = state.trained_ns // max(1, state.steps)
    if trial is None:
        return mean
    own = (trial.trained_ns + PRIOR_STEPS * mean) // (trial.steps + PRIOR_STEPS)
    return max(own, trial.pace_ns)


def _overhead_ns(state: State) -> int:
    """What an attempt takes beside its training, on average."""
    return max(0, _spent_ns(state) - state.trained_ns) // max(1, state.begun)
