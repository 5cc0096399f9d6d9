"""The finish reserve: money that is kept back so that the best trial (the leader) can reach its last step within the budget.

All amounts are in nanoseconds of one worker. Money is converted at the mean price of the training so far, because machines may
differ in price. Only jobs with the scheduler `auto` and with `on_exhausted: finish` keep a reserve. A job that pauses when its
budget is exhausted can be topped up, so it needs no reserve.

A job whose trials have no known last step keeps no reserve either. `affords_whole_trial` prevents it from starting a trial that would be cut.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from tuner.domain.money import Rate
from tuner.domain.time import NS
from tuner.tuning import confirm
from tuner.tuning.state import State, TrialRecord

MARGIN = 1.1  # safety factor, because steps differ in length
NEW = 0.4  # expected training of a new trial, as a share of all steps: many trials are stopped early
PREDICTED_SHARE_MAX = 0.5  # a new trial may be predicted to need at most this share of the unreserved time, because predicted step times are inexact
SPARE = 0.5  # this part of a step is added to the work of a trial, because a lease must be a little longer than its work
PRIOR_STEPS = 1  # steps of mean length that are added to the steps of each trial to estimate its step time


@dataclass(frozen=True, slots=True)
class Reserve:
    """The finish reserve of a job, computed from its state after the last report."""

    state: State
    left_ns: int  #: Worker time that the rest of the budget pays for.
    #: The best trial that has not ended early, if it can continue and the budget can train it to its last step.
    leader: TrialRecord | None

    @classmethod
    def of(cls, state: State) -> Self | None:
        """Return the finish reserve of the job, or None if the job does not keep a reserve now."""
        if state.confirming:  # the search is over, so its trials need no reserve
            return None
        automatic = state.spec.algorithm.scheduler == "auto" and state.budget.on_exhausted == "finish"
        keeps = bool(state.rungs) or state.spec.confirm is not None
        if not automatic or not keeps or not state.begun or state.finisher is None:
            return None
        leader = state.trials[state.finisher]
        left = _left_ns(state) - _confirming_ns(state, leader)
        waits = leader.status in ("running", "pausing", "paused") and leader.resumable
        # a leader that violates a constraint gets no reserve
        waits = waits and not state.finisher_rank[1]
        affordable = waits and leader.number not in state.skipped and _finishing_ns(state, leader) <= left
        return cls(state, left, leader if affordable else None)

    @property
    def is_due(self) -> bool:
        """Return whether only existing trials should be trained, because the rest of the budget cannot pay for a typical new trial."""
        steps = max(NEW * (self.state.max_step or 0), self._first_target)
        step_ns = _step_ns(self.state, until=math.ceil(steps))
        return not self._affords(_overhead_ns(self.state) + round(steps * step_ns), None)

    def blocking_trials(self) -> list[TrialRecord]:
        """Return the running trials to pause, because reaching their target steps would use money that the leader needs.

        The trials that need the least time keep running, as many as the money allows. Trials that a user promoted are never in the list.
        The list is empty if no money is reserved for a leader.
        """
        if self.leader is None:
            return []
        free = self.left_ns - self._reserved_ns
        blocking_trials = []
        for needed, trial in sorted(self._needs(None), key=lambda need: (need[0], need[1].number)):
            free -= needed
            if free < 0 and trial.status == "running" and not trial.by_user:
                blocking_trials.append(trial)
        return blocking_trials

    def can_finish(self, trial: TrialRecord) -> bool:
        """Return whether the budget can pay for the trial up to its last step, in addition to the active trials and the leader."""
        if trial is self.leader:
            return True
        return self._affords(_finishing_ns(self.state, trial), trial, to_end=self.is_due)

    def may_continue(self, trial: TrialRecord) -> bool:
        """Return whether a waiting trial may resume: the budget pays for it up to its target step, or no other trial needs the money.

        If the budget cannot pay for a typical new trial (`is_due`) and money is kept back for a leader, the budget must pay for the trial
        up to its last step instead.
        """
        if self.leader is not None and self.is_due:
            return self.can_finish(trial)
        return self._is_last or self._affords(_reaching_ns(self.state, trial, trial.target_step), trial)

    def may_begin(self) -> bool:
        """Return whether a new trial may start: the budget pays for it up to the first rung, or no other trial needs the money.

        It may not start if the budget cannot pay for a typical new trial (`is_due`) and money is kept back for a leader.
        """
        if self.leader is not None and self.is_due:
            return False
        first = self._first_target * _step_ns(self.state, until=self._first_target)
        return self._is_last or self._affords(_overhead_ns(self.state) + first, None)

    @property
    def new_step_s(self) -> float:
        """Return the longest step time, in seconds, with which the rest of the budget could train a new trial to its last step.

        The needs of active trials are subtracted from the budget first, but not those of the leader: if the new trial becomes the best, the old
        leader need not finish.
        """
        free = self.left_ns - self._committed_ns(None, to_end=False) - _overhead_ns(self.state)
        steps = MARGIN * (self.state.max_step or 1) * _length(self.state, 0, self.state.max_step or 1) + SPARE
        return max(0, free) * PREDICTED_SHARE_MAX / steps / NS

    @property
    def _first_target(self) -> int:
        """Return the target step of a new trial: the first rung, or the last step if the job has no rungs."""
        return self.state.rungs[0].step if self.state.rungs else self.state.max_step or 1

    @property
    def _is_last(self) -> bool:
        """Return whether a trial that starts or resumes now is the only one that needs money. If so, only the ledger limits what it spends."""
        return self.leader is None and not self.state.active and self.state.spec.confirm is None

    def _affords(self, ns: int, trial: TrialRecord | None, *, to_end: bool = False) -> bool:
        reserved = 0 if trial is self.leader else self._reserved_ns
        return ns + reserved <= self.left_ns - self._committed_ns(trial, to_end=to_end)

    @property
    def _reserved_ns(self) -> int:
        return 0 if self.leader is None else _finishing_ns(self.state, self.leader)

    def _committed_ns(self, but: TrialRecord | None, *, to_end: bool) -> int:
        return sum(needed for needed, _ in self._needs(but, to_end=to_end))

    def _needs(self, but: TrialRecord | None, *, to_end: bool = False) -> Iterator[tuple[int, TrialRecord]]:
        """Yield (nanoseconds needed, trial) for each active trial except `but` and the leader.

        The needed time is the time until the trial reaches its `target_step`, or its last step if `to_end` is set.
        """
        state = self.state
        for trial in (state.trials[number] for number in state.active):
            if trial is not but and trial is not self.leader:
                until = state.max_step if to_end else trial.target_step
                yield _reaching_ns(state, trial, until if trial.status == "running" else trial.steps), trial


def affords_whole_trial(state: State) -> bool:
    """Return whether the rest of the budget is expected to pay for a new trial up to its end, in a job without a known last step.

    A trial is expected to train for as long as the completed trials did on average. The remaining needs of the active trials are
    subtracted from the budget first.

    Return True if nothing is known about the length of a trial because none is completed. Also return True for a job with a known last
    step, where `Reserve` decides, and for a job that pauses when its budget is exhausted, because a top-up can continue the trial.
    """
    if state.rules < 7 or state.max_step is not None or state.budget.on_exhausted == "pause":
        return True
    completed = [trial.trained_ns for trial in state.trials if trial.status == "completed"]
    if not completed:
        return True
    training_ns, overhead_ns = sum(completed) // len(completed), _overhead_ns(state)
    left_ns = _left_ns(state)
    for trial in (state.trials[number] for number in state.active):
        # Before the first report of a trial, its start is not part of the recorded spend.
        left_ns -= max(0, training_ns - trial.trained_ns) + (0 if trial.steps else overhead_ns)
    return overhead_ns + training_ns <= left_ns


def _left_ns(state: State) -> int:
    """Return the worker time that the rest of the budget pays for, in dollars and in GPU-hours, in nanoseconds."""
    affords_ns = Rate(state.mean_price, state.rate.milli_gpus).affords_ns(state.budget.limit)
    return affords_ns - _spent_ns(state)


def _spent_ns(state: State) -> int:
    """Return the worker time that the job has paid for so far, in nanoseconds.

    It is computed from the spend, but is at least the measured training time, because machines may be free of charge.
    """
    price = state.mean_price
    paid = price.affords_ns(state.spent) if price.micro_usd_per_hour else 0
    return max(paid, state.trained_ns)


def _confirming_ns(state: State, leader: TrialRecord) -> int:
    """Return the time, in nanoseconds, that is reserved for the confirmation. It is 0 if the job does not confirm."""
    rule = state.spec.confirm
    if rule is None:
        return 0
    step_ns = max(_step_ns(state, trial, until=state.max_step) for trial in (None, leader))
    training_ns = round((MARGIN * (state.max_step or 1) + SPARE) * step_ns) + _overhead_ns(state)
    repeats = sum(confirm.kept(rule.candidates, seed) for seed in range(1, rule.seeds))
    return round(MARGIN * repeats * training_ns)


def _finishing_ns(state: State, trial: TrialRecord) -> int:
    """Return the time that the trial needs to reach its last step, in nanoseconds, including a restart if it is not running."""
    return _reaching_ns(state, trial, state.max_step)


def _reaching_ns(state: State, trial: TrialRecord, step: int | None) -> int:
    steps = max(0, (step or trial.steps) - trial.steps)
    overhead = 0 if trial.number in state.active and trial.steps else _overhead_ns(state)
    return round((MARGIN * steps + SPARE) * _step_ns(state, trial, since=trial.steps, until=step)) + overhead


def _step_ns(
    state: State, trial: TrialRecord | None = None, *, since: int = 0, until: int | None = None
) -> int:
    """Return the mean step time of all trials, or an estimate for `trial` if one is given, in nanoseconds.

    The estimate is the trial's own mean, drawn towards the mean of all trials, or its recent pace if that is slower. If the job has
    proxies (settings that make early steps cheaper), step times depend on the step, and the result applies to the steps after `since` up to `until`.
    """
    mean = state.trained_ns // max(1, state.steps)
    length = _length(state, since, until)
    if trial is None:
        return round(mean * length) if state.stages else mean
    if not state.stages:
        own = (trial.trained_ns + PRIOR_STEPS * mean) // (trial.steps + PRIOR_STEPS)
        return max(own, trial.pace_ns)
    steps = trial.steps * _length(state, 0, trial.steps)
    own_ns = (trial.trained_ns + PRIOR_STEPS * mean) / (steps + PRIOR_STEPS)
    pace_ns = trial.pace_ns / (_length(state, trial.steps - 1, trial.steps) or 1)
    return round(max(own_ns, pace_ns) * length)


def _length(state: State, since: int, until: int | None) -> float:
    """Return the mean duration of the steps after `since` up to `until`, divided by that of all steps so far. Return 1 without proxies.

    Proxies are settings that make early steps cheaper. A stage is a range of steps with the same values of the proxies. In a stage that no
    trial has reached, steps are assumed to take as long as in the stage before it.
    """
    if not state.stages or until is None or until <= since or not state.trained_ns:
        return 1.0
    total = 0.0
    bounds = [*state.spec.fidelity.stage_ends, until]
    for stage, (low, high) in enumerate(pairwise([0, *bounds])):
        known = max((each for each in state.stages if each <= stage), default=min(state.stages))
        steps, train_ns = state.stages[known]
        total += max(0, min(high, until) - max(low, since)) * train_ns / steps
    return total / (until - since) * state.steps / state.trained_ns


def _overhead_ns(state: State) -> int:
    """Return the mean time that an attempt takes in addition to its training, in nanoseconds.

    The start of the job's first workers is not counted, because later attempts run on the same workers. Otherwise the first trials of a
    small job would seem so expensive that its search ends.
    """
    return max(0, _spent_ns(state) - state.trained_ns - state.warming_ns) // max(1, state.begun)
