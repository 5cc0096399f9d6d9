"""Let a job's sampler learn from the job's events and answer commands, both while the job runs and when it is rebuilt from its record."""

import math

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.ids import trial_number
from tuner.domain.job import JobSpec
from tuner.domain.time import Instant
from tuner.domain.trial import TRIAL_FINAL
from tuner.driver.ports import Clock
from tuner.driver.warm_starts import NO_WARM_STARTS, WarmStarts
from tuner.tuning.reserve import Reserve, affords_whole_trial
from tuner.tuning.samplers import Sampler
from tuner.tuning.schedulers import earned
from tuner.tuning.state import State, TrialRecord


class Learner:
    """Pass the reports and the ends of trials to the sampler, and choose work with the sampler's help.

    Reports are passed on when they arrive. So the sampler also learns from a trial that pauses at a rung and never continues.
    """

    def __init__(self, spec: JobSpec, sampler: Sampler, warm_starts: WarmStarts = NO_WARM_STARTS) -> None:
        self._spec = spec
        self.warm_starts = warm_starts
        self._sampler = sampler
        # The sampler knows the configurations of all trials with a lower number than this.
        self._known = 0
        # The highest rung that was reported to the sampler, by trial.
        self._reported_rung: dict[int, int] = {}
        # The last step that was reported to the sampler, by trial.
        self._reported_step: dict[int, int] = {}
        # Trials whose end was reported to the sampler.
        self._finished: set[int] = set()
        # How long the newest suggestion took. None if this driver has computed none yet.
        self.suggestion_ns: int | None = None

    def answer(
        self, state: State, order: do.Suggest | do.Predict, clock: Clock
    ) -> ev.Suggested | ev.Predicted:
        """Carry out a command of `decide` that needs the sampler, and return the resulting event.

        If the command is `Suggest`, store in the attribute `suggestion_ns` how long the answer took.
        """
        if isinstance(order, do.Predict):
            return self.predict(state, order.trial, clock.now())
        began = clock.elapsed_ns()
        answer = self.suggest(state, order.trial, clock.now())
        self.suggestion_ns = clock.elapsed_ns() - began
        return answer

    def suggest(self, state: State, trial: str, at: Instant) -> ev.Suggested | ev.Predicted:
        """Choose the work for a free worker: a new trial with the name `trial`, or a paused trial to promote.

        The first of these choices that is possible is taken:

        1. A new trial with a configuration that a user enqueued. It is skipped if `trial` continues a trial of an earlier job (warm start).
        2. A paused trial that has earned more steps.
        3. The new trial that continues a trial of an earlier job, with the configuration of the earlier trial.
        4. No work, if the remaining money is reserved for trials that have already begun (see `Reserve.may_begin`), or does not pay for
           a whole trial (see `affords_whole_trial`).
        5. A new trial with a configuration that the sampler suggests.
        """
        continued = self.warm_starts.proposal(trial, at)
        if continued is None and state.queue:
            return ev.Suggested(at, trial, dict(state.queue[0]))
        promoted = self._to_promote(state)
        if promoted is not None:
            return ev.Predicted(at, promoted.id, go=True)
        if continued is not None:
            return continued
        reserve = Reserve.of(state)
        may_begin = reserve.may_begin() if reserve is not None else affords_whole_trial(state)
        if not may_begin:
            return ev.Predicted(at, None, go=False)
        number = trial_number(trial)
        step_s = math.inf if reserve is None else reserve.new_step_s
        config = self._sampler.suggest(number, step_s)
        if config is not None:  # otherwise a configuration that a user enqueues later gets this number
            self._known = number + 1
        return ev.Suggested(at, trial, config)

    def predict(self, state: State, trial: str, at: Instant) -> ev.Predicted:
        """Return the event that says whether a trial that waits at a rung continues."""
        waits = state.trial(trial)
        return ev.Predicted(at, trial, go=self._to_promote(state, waits) is waits)

    def _to_promote(self, state: State, also: TrialRecord | None = None) -> TrialRecord | None:
        if self._spec.algorithm.scheduler != "auto" or not state.rungs:
            return None
        return earned(state, self._sampler.forecast(), also)

    def learn(self, state: State, event: ev.Event) -> None:
        """Pass what an event shows about a trial to the sampler. Call this after `decide` has handled the event.

        `state` is the job's state after the event. The sampler also adopts each configuration that it did not suggest itself, such as a
        configuration that a user enqueued. When the job is rebuilt from its record, the sampler adopts all recorded configurations.
        """
        match event:
            case ev.Suggested(_, trial, config):
                if config is not None and trial_number(trial) >= self._known:
                    self._known = trial_number(trial) + 1
                    self._sampler.adopt(trial_number(trial), config)
                if event.inherited is not None:
                    self._on_report(state, trial_number(trial))
                    self._on_end(state, trial_number(trial))
            case ev.Reported(_, trial):
                self._on_report(state, trial_number(trial))
            case (
                ev.Completed(_, trial)
                | ev.Failed(_, trial)
                | ev.Stopped(_, trial)
                | ev.Paused(_, trial)
                | ev.Lost(_, trial)
                | ev.Preempted(_, trial)
            ):
                self._on_end(state, trial_number(trial))
            case ev.Launched():  # `decide` has now ended the trials that were about to end when the previous driver died
                for number in range(len(state.trials)):
                    self._on_end(state, number)
            case _:
                pass

    def _on_report(self, state: State, number: int) -> None:
        record = state.trials[number]
        if (
            record.value is None
            or record.repeats is not None
            or record.steps <= self._reported_step.get(number, 0)
        ):
            return
        self._reported_step[number] = record.steps
        crossed = max((rung.step for rung in state.rungs if rung.step <= record.steps), default=0)
        if state.max_step is not None and record.steps >= state.max_step:
            crossed = state.max_step
        at_rung = crossed > self._reported_rung.get(number, 0)
        if at_rung:
            self._reported_rung[number] = crossed
        self._report_score(record, crossed if at_rung else record.steps, at_rung=at_rung)

    def _on_end(self, state: State, number: int) -> None:
        record = state.trials[number]
        ended = record.status in TRIAL_FINAL
        if not ended or record.repeats is not None or number in self._finished:
            return
        self._finished.add(number)
        if record.value is not None and not self._reported_rung.get(number):
            self._report_score(record, record.steps, at_rung=True)
        # The reports of a stopped trial are still valid, like those of a paused trial. So the sampler is not notified of its end.
        if record.status == "stopped":
            return
        self._sampler.finish(number, failed=record.status == "failed")

    def _report_score(self, record: TrialRecord, step: int, *, at_rung: bool) -> None:
        """Pass the trial's newest score to the sampler, as the score of `step`.

        `step` is lower than the trial's reported step if the report skipped a rung. The training time is then scaled down to `step`.
        """
        assert record.value is not None
        score = self._spec.objective.score(record.value)
        trained_ns = record.trained_ns * step // record.steps
        violation = record.violation
        self._sampler.tell(record.number, step, score, trained_ns, at_rung=at_rung, violation=violation)
