"""Replay a job's recorded events through `decide` and its sampler, as recovery does, and compare with the record.

`check` verifies that the code decides what was recorded: the sampler gives the recorded answers, each event is one that an
earlier decision permits, and the trials and the job end as recorded. `compare` finds the first event at which another scheduler
or sampler would have decided differently.

Both are pure functions: they read no clock and no database. They also work on the journal of a simulated job. `decide`
changes the state in place, so a replay always starts from the first event. Like the loop, a replay computes each answer of the
sampler from the state just before the answer.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.ids import TRIAL_ID, trial_number
from tuner.domain.job import JobSpec, JobState, StopReason
from tuner.domain.money import Rate
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.driver.decision_words import Decision, commands_in_words, in_words, trial_in_words
from tuner.driver.learning import Learner
from tuner.driver.warm_starts import WarmStarts
from tuner.tuning.decide import decide
from tuner.tuning.samplers import Sampler
from tuner.tuning.state import PUBLIC, State

Answer = ev.Suggested | ev.Predicted
Question = do.Suggest | do.Predict
AttemptEvent = ev.Reported | ev.Refused | ev.AttemptEnded
Samplers = Callable[[int], Sampler]
"""Return a new sampler of the job that follows the given version of the decision rules (`tuner.domain.events.RULES`)."""
Source = Callable[[ev.Inherited], tuple[Config, ev.Inherited] | None]
"""Return the configuration and the progress of an earlier job's trial, according to that job's record. None without such a record."""

DifferenceCode = Literal[
    "answer",  # The sampler's answer differs from the recorded one, or from that of the other policy.
    "commands",  # Two policies return different commands for the same event. Only from `compare`.
    "not_permitted",  # No earlier decision permits the event.
    "answer_missing",  # A command that is always answered in the same transaction has no answer.
    "event_missing",  # The numbers of the events have a gap.
    "not_possible",  # The event does not fit the job's state, so that `decide` fails.
    "warm_start",  # The earlier job's record shows another trial than the one that was continued.
    "trial_state",
    "trial_config",
    "trial_missing",  # A trial is in the events or in the trials' rows, but not in both.
    "job_end",
]

# The errors that `decide` and samplers raise if an event does not fit the job's state. A driver with this code never records such an event.
NOT_POSSIBLE = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
# Changes of state that the service makes to jobs without a driver, by new state: the stop reason, and an explanation. No event records them.
BY_SERVICE: Mapping[JobState, tuple[StopReason | None, str]] = {
    "running": (None, "the job was resumed, and its next driver has not started"),
    "paused": (None, "the service paused the job, which had no driver"),
    "cancelled": ("cancelled", "the service cancelled the job, which had no driver"),
    "failed": ("error", "the service ended the job, because its drivers or its self-test failed"),
}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The events of one job, and the recorded states of its trials and of the job after the last event."""

    #: The events with their numbers, which begin at 1 and have no gaps.
    events: Sequence[tuple[int, ev.Event]]
    #: State and configuration of each trial after the last event. None if they are not compared.
    trials: Mapping[str, tuple[TrialState, Config | None]] | None = None
    #: State and stop reason of the job after the last event. None if they are not compared.
    job: tuple[JobState, StopReason | None] | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event at which a replay differs from the record, or at which two policies decide differently."""

    code: DifferenceCode
    number: int  #: Number of the event at which they differ.
    at: Instant  #: Time of that event.
    trial: str | None  #: The trial that the event is about. None if it is about the job.
    decided: Decision  #: What the job's own policy decides.
    other: Decision  #: What the record shows, or what the other policy decides.


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something that a replay could not check, and why not."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    events: int  #: Events that were replayed.
    decisions: int  #: Commands that `decide` returned for these events.
    answers: int  #: Answers of the sampler that were computed again and compared.
    concurrency: int  #: How many trials may run at once after the last event.
    difference: Difference | None  #: The first difference. None if the decisions are the same.
    unchecked: tuple[Unchecked, ...] = ()


@dataclass(frozen=True)
class _RecordedWarmStarts(WarmStarts):
    """Propose the warm starts that were recorded, instead of choosing them again.

    The choice depended on the checkpoints that the earlier jobs had at that time, so it cannot be repeated.
    """

    recorded: Mapping[str, ev.Suggested] = field(default_factory=dict)

    def proposal(self, trial: str, at: Instant) -> ev.Suggested | None:
        return self.recorded.get(trial)


class Fold:
    """Apply recorded events to a job one by one, and hold the state that results under one policy (scheduler and sampler).

    Args:
        spec: The job's spec, with the policy's scheduler and sampler.
        samplers: Returns the policy's sampler. None if its answers cannot be computed; the recorded answers are then used.
        events: All recorded events.
        rate: The rate with which the job's decisions estimate costs.
        concurrency: How many trials may run at once until an event sets another number. `Launched` events of older releases set none.
    """

    def __init__(
        self,
        spec: JobSpec,
        samplers: Samplers | None,
        events: Sequence[tuple[int, ev.Event]],
        *,
        rate: Rate,
        concurrency: int,
    ) -> None:
        self.state = State.fresh(spec, concurrency=concurrency, rate=rate)
        inherited = {
            event.trial: event
            for _, event in events
            if isinstance(event, ev.Suggested) and event.inherited is not None
        }
        warm_starts = _RecordedWarmStarts(recorded=inherited)
        versions = {event.rules for _, event in events if isinstance(event, ev.Launched)}
        # One for each version of the rules in the record. All of them learn from all events, as a new driver does from those of earlier ones.
        self._learners = {
            rules: Learner(spec, samplers(rules), warm_starts) for rules in versions if samplers is not None
        }
        # The commands whose answer has not been replayed yet. `Suggest` is kept separately, because a slow sampler answers it in a later turn.
        self.predictions: deque[do.Predict] = deque()
        self.suggestion: do.Suggest | None = None
        self.attempts_open: set[str] = set()  #: Trials with an attempt that has begun and has not ended.
        #: How the job ended. None if it has not ended since its last launch.
        self.end: do.EndJob | None = None

    def question(self, event: Answer) -> Question | None:
        """Return the pending command (`Suggest` or `Predict`) that this event answers, or None if it answers none."""
        if isinstance(event, ev.Suggested):
            return self.suggestion if self.suggestion and self.suggestion.trial == event.trial else None
        if self.predictions and self.predictions[0].trial == event.trial:
            return self.predictions[0]
        is_running = event.trial is not None and self.state.trial(event.trial).status == "running"
        return None if is_running else self.suggestion

    def answer(self, question: Question, at: Instant) -> Answer | None:
        """Return the sampler's answer to the command, or None without a sampler.

        Call this once for each command, because a sampler can suggest each trial only once.
        """
        learner = self._learners.get(self.state.rules)
        if learner is None:
            return None
        if isinstance(question, do.Predict):
            return learner.predict(self.state, question.trial, at)
        return learner.suggest(self.state, question.trial, at)

    def apply(self, event: ev.Event) -> list[do.Command]:
        """Apply the next event with `decide`, and return the resulting commands."""
        self._close(event)
        self.state, commands = decide(self.state, event)
        for learner in self._learners.values():
            learner.learn(self.state, event)
        for command in commands:
            match command:
                case do.Begin(trial):
                    self.attempts_open.add(trial)
                case do.EndJob():
                    self.end = command
                case do.Predict():
                    self.predictions.append(command)
                case do.Suggest():
                    self.suggestion = command
                case _:
                    pass
        return commands

    def _close(self, event: ev.Event) -> None:
        """Remove the pending commands that the event answers and the open attempts that it ends."""
        match event:
            case ev.Suggested() | ev.Predicted():
                question = self.question(event)
                if isinstance(question, do.Predict):
                    self.predictions.popleft()
                elif question is not None:
                    self.suggestion = None
            case ev.Launched():
                self.predictions.clear()
                self.suggestion, self.end = None, None
                self.attempts_open.clear()
            case ev.Refused(_, trial, _, running) if not running:
                self.attempts_open.discard(trial)
            case ev.Paused() | ev.Completed() | ev.Stopped() | ev.Failed() | ev.Lost() | ev.Preempted():
                self.attempts_open.discard(event.trial)
            case _:
                pass


# Compare with the record


def check(
    record: JobRecord,
    spec: JobSpec,
    samplers: Samplers | None,
    *,
    rate: Rate,
    concurrency: int,
    source: Source = lambda _: None,
    may_continue: Callable[[], bool] = lambda: True,
) -> Replayed:
    """Replay a job's events, and return the first difference between what is decided and what is recorded.

    Args:
        record: The record of the job.
        spec: The job's spec.
        samplers: Returns the job's sampler. None if the trials of earlier jobs from which it learned are gone. Its answers are then
            not checked.
        rate: The rate with which the job's decisions estimate costs.
        concurrency: How many trials may run at once until an event sets another number. `Launched` events of older releases set none.
        source: Looks up a trial of an earlier job that this job continued (warm start).
        may_continue: Called before each event. The replay ends early if it returns False.
    """
    fold = Fold(spec, samplers, record.events, rate=rate, concurrency=concurrency)
    return _Check(record, fold, source, may_continue).run()


class _Check:
    """Replay one record, compare it with what is decided, and count what has been compared so far."""

    def __init__(
        self, record: JobRecord, fold: Fold, source: Source, may_continue: Callable[[], bool]
    ) -> None:
        self._record, self._fold, self._source, self._may_continue = record, fold, source, may_continue
        self._events = self._decisions = self._answers = 0
        self._unchecked: dict[Unchecked, None] = {}
        # The recorded state of each trial, and the number of the event that caused it.
        self._states: dict[int, tuple[TrialState, int]] = {}

    def run(self) -> Replayed:
        difference = self._events_differ()
        if difference is None and self._events == len(self._record.events) > 0:
            difference = min(self._trials_differ(), key=lambda each: each.number, default=None)
            difference = difference or self._job_differs()
        counts = self._events, self._decisions, self._answers
        return Replayed(*counts, self._fold.state.concurrency, difference, tuple(self._unchecked))

    def _events_differ(self) -> Difference | None:
        events = self._record.events
        for expected, (number, event) in enumerate(events, 1):
            if not self._may_continue():
                self._skip("later events, and the states of trials and job", _time_is_up(number - 1))
                return None
            if number != expected:
                decided, recorded = (
                    Decision(f"event {which} follows event {expected - 1}") for which in (expected, number)
                )
                return Difference("event_missing", expected, event.at, None, decided, recorded)
            difference = self._event_differs(number, event)
            self._events += 1
            if difference is not None:
                return difference
        if events and self._fold.predictions:
            return _unanswered(*events[-1], self._fold.predictions[0], Decision("the record ends"))
        return None

    def _event_differs(self, number: int, event: ev.Event) -> Difference | None:
        """Check that an earlier decision permits the event, then apply the event. Return the difference, or None."""
        here = number, event.at, getattr(event, "trial", None)
        # The loop answers `Predict` in the same turn. Before the answer, it records only what the turn had already queued: the answers to
        # other commands, and the refused holds of attempts that were about to begin.
        queued = isinstance(event, Answer) or (isinstance(event, ev.Refused) and not event.running)
        try:
            if self._fold.predictions and not queued:
                return _unanswered(number, event, self._fold.predictions[0], in_words(event))
            instead = _objection(self._fold, event)
            if instead is not None:
                return Difference("not_permitted", *here, instead, in_words(event))
            if isinstance(event, Answer):
                difference = self._answer_differs(number, event) or self._warm_start_differs(number, event)
                if difference is not None:
                    return difference
            self._decisions += len(self._fold.apply(event))
        except NOT_POSSIBLE as error:
            why = f"the event is not possible here: {type(error).__name__}: {error}".rstrip(": ")
            return Difference("not_possible", *here, Decision(why), in_words(event))
        state = self._fold.state
        for changed in state.changed:
            public = PUBLIC[state.trials[changed].status]
            if changed not in self._states or self._states[changed][0] != public:
                self._states[changed] = public, number
        state.changed.clear()
        return None

    def _answer_differs(self, number: int, event: Answer) -> Difference | None:
        question = self._fold.question(event)
        assert question is not None, "an answer without a command was refused before"
        answer = self._fold.answer(question, event.at)
        if answer is None:
            return None
        if not _same(answer, event):
            return Difference("answer", number, event.at, question.trial, in_words(answer), in_words(event))
        self._answers += 1
        return None

    def _warm_start_differs(self, number: int, event: Answer) -> Difference | None:
        if not isinstance(event, ev.Suggested) or event.inherited is None:
            return None
        inherited = event.inherited
        recorded = self._source(inherited)
        if recorded is None:
            why = f"the record of {inherited.trial} of {inherited.job} is not available"
            self._skip(f"the warm start of {event.trial}", why)
        elif recorded != (event.config, inherited):
            decided = Decision(
                f"the record of {inherited.job} gives {inherited.trial} another configuration or other reports"
            )
            return Difference("warm_start", number, event.at, event.trial, decided, in_words(event))
        return None

    def _trials_differ(self) -> Iterator[Difference]:
        """Compare the recorded rows of the trials with the replayed trials. A difference names the event that caused the trial's state."""
        rows, times = self._record.trials, dict(self._record.events)
        if rows is None:
            self._skip("the states of the trials and of the job", "the job changed while its record was read")
            return
        trials = {trial.id: trial for trial in self._fold.state.trials}
        for name in sorted({*rows, *trials}):
            trial, row = trials.get(name), rows.get(name)
            number = self._states[trial.number][1] if trial else self._record.events[-1][0]
            state = (self._states[trial.number][0], trial.config) if trial else None
            decided = trial_in_words(name, state)
            difference = number, times[number].at, name, decided, trial_in_words(name, row)
            if trial is None or row is None:
                yield Difference("trial_missing", *difference)
            elif row[0] != self._states[trial.number][0]:
                yield Difference("trial_state", *difference)
            elif row[1] != trial.config:
                yield Difference("trial_config", *difference)

    def _job_differs(self) -> Difference | None:
        """Compare the recorded state of the job with the replayed one. Return the difference, or None.

        The service also changes the state of jobs that have no driver. No event records those changes, so they are listed as
        unchecked instead.
        """
        if self._record.job is None:
            return None
        state, reason = self._record.job
        end = self._fold.end
        if (state, reason) == (("running", None) if end is None else (end.state, end.reason)):
            return None
        may_be_resumed = end is None or end.state in ("paused", "succeeded")
        if may_be_resumed and state in BY_SERVICE and BY_SERVICE[state][0] == reason:
            self._skip(f"why the job is {state}", BY_SERVICE[state][1])
            return None
        number, event = self._record.events[-1]
        decided = Decision("the job is running") if end is None else in_words(end)
        why = f" ({reason})" if reason else ""
        recorded = Decision(f"the job is {state}{why}", {"type": "job", "state": state, "reason": reason})
        return Difference("job_end", number, event.at, None, decided, recorded)

    def _skip(self, what: str, why: str) -> None:
        self._unchecked[Unchecked(what, why)] = None


def _time_is_up(number: int) -> str:
    return f"the time for this replay was used up after event {number}"


def _unanswered(number: int, event: ev.Event, question: Question, recorded: Decision) -> Difference:
    asked = in_words(question)
    decided = Decision(
        f"{asked.summary}, and record the sampler's answer before any other event", asked.fields
    )
    return Difference("answer_missing", number, event.at, question.trial, decided, recorded)


def _objection(fold: Fold, event: ev.Event) -> Decision | None:
    """Return None if an earlier decision permits the event. Otherwise return the decision that the event contradicts."""
    if fold.end is not None and not isinstance(event, ev.Launched | ev.BudgetChanged):
        return Decision(
            f"{in_words(fold.end).summary}; after that, only a driver start or a budget change is possible"
        )
    match event:
        case ev.Suggested() | ev.Predicted():
            return _objection_to_answer(fold, event)
        case ev.StopRequested() | ev.PromoteRequested() if not _exists(fold.state, event.trial):
            return Decision(f"{event.trial} does not exist")
        case ev.WallClockEnded() if fold.state.budget.wall_clock_ns is None:
            return Decision("the job has no wall-clock limit")
        case ev.WindowClosed() if fold.state.spec.window is None:
            return Decision("the job has no time window")
        case (
            ev.Launched()
            | ev.ControlRequested()
            | ev.BudgetChanged()
            | ev.ConcurrencyChanged()
            | ev.EnqueueRequested()
            | ev.StopRequested()
            | ev.PromoteRequested()
            | ev.WallClockEnded()
            | ev.WindowClosed()
        ):
            return None
        case _:
            return _objection_to_attempt(fold, event)


def _objection_to_attempt(fold: Fold, event: AttemptEvent) -> Decision | None:
    if not _exists(fold.state, event.trial):
        return Decision(f"{event.trial} does not exist")
    if event.trial not in fold.attempts_open:
        return Decision(f"no attempt of {event.trial} is running")
    if isinstance(event, ev.Stopped) and fold.state.trial(event.trial).status != "stopping":
        return Decision(f"{event.trial} was not ordered to stop")
    return None


def _objection_to_answer(fold: Fold, event: Answer) -> Decision | None:
    if isinstance(event, ev.Predicted) and event.trial is not None and not _exists(fold.state, event.trial):
        return Decision(f"{event.trial} does not exist")
    if fold.question(event) is not None:
        return None
    pending = fold.predictions[0] if fold.predictions else fold.suggestion
    if pending is None:
        return Decision("the sampler was not asked for anything")
    asked = in_words(pending)
    return Decision(f"{asked.summary}, but the recorded answer belongs to another command", asked.fields)


def _exists(state: State, trial: str) -> bool:
    return TRIAL_ID.fullmatch(trial) is not None and trial_number(trial) < len(state.trials)


def _same(decided: Answer, recorded: Answer) -> bool:
    """Return whether two answers are equal, except for their time and the recorded progress of a warm start."""
    if isinstance(decided, ev.Suggested) and isinstance(recorded, ev.Suggested):
        same_kind = (decided.inherited is None) == (recorded.inherited is None)
        return same_kind and (decided.trial, decided.config) == (recorded.trial, recorded.config)
    return decided == dataclasses.replace(recorded, at=decided.at)


# Compare with another policy


def compare(
    record: JobRecord,
    ours: Fold,
    theirs: Fold,
    *,
    may_continue: Callable[[], bool] = lambda: True,
) -> Replayed:
    """Replay the same events under two policies, and return the first event at which they decide differently.

    Up to that event, both policies see the same events. The events after it would have been different under the other policy, so
    the replay ends there. This does not check the record itself; see `check`.
    """
    events = decisions = answers = 0
    difference, unchecked = None, list[Unchecked]()
    for number, event in record.events:
        if not may_continue():
            unchecked.append(Unchecked("later events", _time_is_up(number - 1)))
            break
        try:
            if isinstance(event, Answer):
                difference = _answers_differ(ours, theirs, number, event)
            if difference is None:
                mine, yours = ours.apply(event), theirs.apply(event)
                decisions += len(mine)
                if mine != yours:
                    both = commands_in_words(mine), commands_in_words(yours)
                    trial = getattr(event, "trial", None)
                    difference = Difference("commands", number, event.at, trial, *both)
        except NOT_POSSIBLE as error:
            why = f"event {number} does not fit the state of the job: {error!r}"
            unchecked.append(Unchecked("later events", why))
            break
        ours.state.changed.clear()
        theirs.state.changed.clear()
        events, answers = events + 1, answers + isinstance(event, Answer)
        if difference is not None:
            break
    return Replayed(events, decisions, answers, ours.state.concurrency, difference, tuple(unchecked))


def _answers_differ(ours: Fold, theirs: Fold, number: int, event: Answer) -> Difference | None:
    """Compare how the samplers of the two policies answer the command that this event answers.

    Return None if the answers agree, or if one of the policies did not give this command or has no sampler to answer it.
    """
    mine, yours = ours.question(event), theirs.question(event)
    if mine is None or yours is None:
        return None
    decided, other = ours.answer(mine, event.at), theirs.answer(yours, event.at)
    if decided is None or other is None or _same(decided, other):
        return None
    return Difference("answer", number, event.at, mine.trial, in_words(decided), in_words(other))
