"""Replay a job's recorded events through `decide` and its sampler, as recovery does, and compare with the record.

`check` answers whether the record is what the code decides: the sampler gives the recorded answers, a command permits each
event, and the trials and the job ended as recorded. `compare` answers where another scheduler or sampler would have
decided differently on the same events.

Both are pure: they read no clock and no database, and they work on the journal of a simulated job, too. `decide`
changes the state in place, so a replay always starts from the first event.

When the loop computes an answer decides which state the sampler sees. The loop answers `Predict` at once, and `Suggest`
too, unless the sampler is slow: then `Suggest` is answered after the turn, on the state at its end. The record does not say
which it was, so `check` accepts either answer if events lie between the command and its answer.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.ids import TRIAL_ID, trial_number
from tuner.domain.job import JobSpec, JobState, StopReason
from tuner.domain.money import Rate
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.driver.learning import Learner
from tuner.driver.warm_starts import WarmStarts
from tuner.tuning.decide import decide
from tuner.tuning.samplers import Sampler
from tuner.tuning.state import PUBLIC, State, Status

Answer = ev.Suggested | ev.Predicted
AttemptEnd = ev.Paused | ev.Completed | ev.Stopped | ev.Failed | ev.Lost | ev.Preempted
AttemptEvent = ev.Reported | ev.Refused | AttemptEnd
Source = Callable[[ev.Inherited], tuple[Config, ev.Inherited] | None]
"""Return an earlier job's trial as its own record shows it up to the inherited step. None if there is no such record."""

DifferenceCode = Literal[
    "answer",  # The sampler gives another answer than the recorded one.
    "commands",  # Two policies return different commands for the same event. Only from `compare`.
    "not_permitted",  # No command permits the event.
    "answer_missing",  # A command that is always answered in the same transaction has no answer.
    "event_missing",  # The numbers of the events have a gap.
    "not_possible",  # The event does not fit the job's state, so that `decide` fails.
    "warm_start",  # The earlier job's record shows another trial than the one that was continued.
    "trial_state",
    "trial_config",
    "trial_missing",  # A trial is in the events or in the trials' rows, but not in both.
    "job_end",
]

# Events that begin a turn of the loop. None of them can be recorded before a suggestion of an earlier turn is answered.
TURN_BEGINS = ev.ControlRequested | ev.BudgetChanged | ev.WallClockEnded | ev.WindowClosed
# `decide` and samplers check their own invariants with these errors. A record that breaks one was not made by them.
NOT_POSSIBLE = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
# What the service does with a job without a driver, by the job's new state. The events do not show it.
BY_SERVICE: Mapping[JobState, tuple[StopReason | None, str]] = {
    "running": (None, "the job was resumed, and its next driver has not begun"),
    "paused": (None, "the service paused the job, which had no driver"),
    "cancelled": ("cancelled", "the service cancelled the job, which had no driver"),
    "failed": ("error", "the service ended the job, because its drivers failed or its self-test did"),
}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is recorded of one job, up to its last event."""

    #: The events with their numbers, which begin at 1 and have no gaps.
    events: Sequence[tuple[int, ev.Event]]
    #: State and configuration of each trial after the last event. None: not to be compared.
    trials: Mapping[str, tuple[TrialState, Config | None]] | None = None
    #: State and stop reason of the job after the last event. None: not to be compared.
    job: tuple[JobState, StopReason | None] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that was decided or recorded, in plain words and as fields."""

    summary: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two histories of a job differ."""

    code: DifferenceCode
    number: int  #: Number of the event at which they differ.
    at: Instant  #: Time of that event.
    trial: str | None  #: The trial that it is about, if any.
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
    decisions: int  #: Commands that were decided on them.
    answers: int  #: Answers of the sampler that were computed again and compared.
    concurrency: int  #: How many trials could run at once, as the replay assumed.
    difference: Difference | None  #: None if there is none.
    unchecked: tuple[Unchecked, ...] = ()


@dataclass(frozen=True)
class _RecordedWarmStarts(WarmStarts):
    """Proposes the warm starts that were recorded.

    Which trials an earlier job had to offer depended on its checkpoints at that time, so it cannot be decided again.
    """

    recorded: Mapping[str, ev.Suggested] = field(default_factory=dict)

    def proposal(self, trial: str, at: Instant) -> ev.Suggested | None:
        return self.recorded.get(trial)


@dataclass(slots=True)
class _Pending:
    """A command that needs the sampler, and waits for its answer to be recorded."""

    order: do.Suggest | do.Predict
    after: int  #: Number of the event after which it was decided.
    early: Answer | None  #: The answer on the state right after that event, if it was computed.
    late: bool  #: The answer may also have been computed just before it was recorded.


class Fold:
    """One policy's state of a job while the recorded events are replayed.

    Args:
        spec: The job, with the policy's scheduler and sampler.
        sampler: A new sampler, or None to take the recorded answers because the sampler's cannot be computed.
        events: All recorded events.
    """

    def __init__(
        self,
        spec: JobSpec,
        sampler: Sampler | None,
        events: Iterable[tuple[int, ev.Event]],
        *,
        concurrency: int,
        rate: Rate,
    ) -> None:
        self.state = State.fresh(spec, concurrency=concurrency, rate=rate)
        inherited = {
            event.trial: event
            for _, event in events
            if isinstance(event, ev.Suggested) and event.inherited is not None
        }
        warm_starts = _RecordedWarmStarts(recorded=inherited)
        self._learner = None if sampler is None else Learner(spec, sampler, warm_starts)
        self.predictions: deque[_Pending] = deque()
        self.suggestion: _Pending | None = None
        self.attempts_open: set[str] = set()  #: Trials with an attempt that has begun and has not ended.
        #: How the job ended. None if it has not ended since its last launch.
        self.end: do.EndJob | None = None

    def pending_for(self, event: Answer) -> _Pending | None:
        """Return the command that this event answers, or None if there is none."""
        if isinstance(event, ev.Predicted) and self.predictions:
            first = self.predictions[0]
            if first.order.trial == event.trial:
                return first
        if self.suggestion is None:
            return None
        if isinstance(event, ev.Suggested):
            return self.suggestion if self.suggestion.order.trial == event.trial else None
        waits = event.trial is not None and self.state.trial(event.trial).status == "running"
        return None if waits else self.suggestion

    def answers(self, pending: _Pending, at: Instant) -> Iterator[Answer]:
        """Yield the answers that the loop may have computed: at most two, and none without a sampler.

        Ask for the second only if the first is not the recorded one, because a sampler suggests each trial once.
        """
        if pending.early is not None:
            yield pending.early
        if pending.late and self._learner is not None:
            yield _answer(self._learner, self.state, pending.order, at)

    def apply(self, number: int, event: ev.Event, following: ev.Event | None) -> list[do.Command]:
        """Decide on an event, and return the commands. `following` is the next recorded event."""
        self._close(event)
        self.state, commands = decide(self.state, event)
        if self._learner is not None:
            self._learner.learn(self.state, event)
        for command in commands:
            match command:
                case do.Begin(trial):
                    self.attempts_open.add(trial)
                case do.EndJob():
                    self.end = command
                case do.Predict():
                    early = self._early(command, event.at)
                    self.predictions.append(_Pending(command, number, early, late=False))
                case do.Suggest():
                    self.suggestion = self._suggestion(command, number, event.at, following)
                case _:
                    pass
        return commands

    def _close(self, event: ev.Event) -> None:
        """Note which commands and attempts the event ends."""
        match event:
            case ev.Suggested() | ev.Predicted():
                pending = self.pending_for(event)
                if pending is not None and pending is self.suggestion:
                    self.suggestion = None
                elif pending is not None:
                    self.predictions.popleft()
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

    def _early(self, order: do.Suggest | do.Predict, at: Instant) -> Answer | None:
        return None if self._learner is None else _answer(self._learner, self.state, order, at)

    def _suggestion(
        self, order: do.Suggest, number: int, at: Instant, following: ev.Event | None
    ) -> _Pending:
        """Compute the answer now if the next event is the answer.

        Otherwise it is computed when it is recorded, as for a slow sampler. A quick sampler answers now, too, if the next event was
        in the loop's queue before the answer: a refused hold, or another answer. Both are possible then, so a copy of the sampler
        answers now.
        """
        if not self.predictions and isinstance(following, ev.Suggested | ev.Predicted):
            return _Pending(order, number, self._early(order, at), late=False)
        queued = isinstance(following, ev.Suggested | ev.Predicted) or (
            isinstance(following, ev.Refused) and not following.running
        )
        if not queued or self._learner is None:
            return _Pending(order, number, None, late=True)
        early = _answer(copy.deepcopy(self._learner), self.state, order, at)
        return _Pending(order, number, early, late=True)


def _answer(learner: Learner, state: State, order: do.Suggest | do.Predict, at: Instant) -> Answer:
    if isinstance(order, do.Predict):
        return learner.advise(state, order.trial, at)
    return learner.next(state, order.trial, at)


def check(
    record: JobRecord,
    spec: JobSpec,
    sampler: Callable[[], Sampler] | None,
    *,
    rate: Rate,
    concurrencies: Iterable[int],
    source: Source = lambda _: None,
    may_continue: Callable[[], bool] = lambda: True,
) -> Replayed:
    """Replay a job's events, and return the first difference between what is decided and what is recorded.

    Args:
        record: The record of the job.
        spec: The job.
        sampler: Return a new sampler of the job. None: its history is gone, so its answers are not checked.
        rate: The rate with which the job's decisions estimate costs.
        concurrencies: How many trials may have run at once, most likely first. A project's quota may lower this number at each launch
            of a driver, and the record does not say which number it was. The first with which nothing differs is taken.
        source: Looks up the trials of earlier jobs that this job continued.
        may_continue: Called before each event. The replay ends early if it returns False.
    """
    furthest: Replayed | None = None
    tried = set[int]()
    for concurrency in concurrencies:
        if concurrency in tried:
            continue
        tried.add(concurrency)
        fold = Fold(spec, sampler and sampler(), record.events, concurrency=concurrency, rate=rate)
        result = _Check(record, fold, source, may_continue).run(concurrency)
        # A replay whose time was used up has no difference either, but may have ended before the difference of another.
        got_further = furthest is None or result.events >= furthest.events
        if result.difference is None and got_further:
            return result
        if furthest is None or result.events > furthest.events:
            furthest = result
    assert furthest is not None, "there is at least one number of trials at once"
    return furthest


class _Check:
    """One replay of a record. It keeps what has been compared so far."""

    def __init__(
        self, record: JobRecord, fold: Fold, source: Source, may_continue: Callable[[], bool]
    ) -> None:
        self._record, self._fold, self._source, self._may_continue = record, fold, source, may_continue
        self._events = self._decisions = self._answers = 0
        self._unchecked: list[Unchecked] = []
        # The recorded state of each trial, and the number of the event that caused it.
        self._states: dict[int, tuple[TrialState, int]] = {}

    def run(self, concurrency: int) -> Replayed:
        difference = self._events_differ()
        if difference is None and self._events == len(self._record.events) > 0:
            difference = self._rows_differ()
        counts = self._events, self._decisions, self._answers
        return Replayed(*counts, concurrency, difference, tuple(dict.fromkeys(self._unchecked)))

    def _events_differ(self) -> Difference | None:
        events = self._record.events
        for index, (number, event) in enumerate(events):
            expected = index + 1
            if not self._may_continue():
                what = "later events, and the states of trials and job"
                self._unchecked.append(Unchecked(what, _time_is_up(number - 1)))
                return None
            if number != expected:
                return Difference(
                    "event_missing",
                    expected,
                    event.at,
                    None,
                    Decision(f"event {expected} follows event {expected - 1}"),
                    Decision(f"event {number} follows event {expected - 1}"),
                )
            following = events[index + 1][1] if index + 1 < len(events) else None
            difference = self._differs(number, event, following)
            self._events += 1
            if difference is not None:
                return difference
        if events and self._fold.predictions:
            return _unanswered(*events[-1], self._fold.predictions[0], Decision("the record ends"))
        return None

    def _differs(self, number: int, event: ev.Event, following: ev.Event | None) -> Difference | None:
        trial = getattr(event, "trial", None)
        try:
            found = self._before(number, event)
            if found is not None:
                return found
            commands = self._fold.apply(number, event, following)
        except NOT_POSSIBLE as error:
            decided = Decision(
                f"the event is not possible here: {type(error).__name__}: {error}".rstrip(": ")
            )
            return Difference("not_possible", number, event.at, trial, decided, event_in_words(event))
        self._decisions += len(commands)
        self._note_states(number)
        return None

    def _before(self, number: int, event: ev.Event) -> Difference | None:
        """Compare an event with what was decided before it."""
        if self._fold.predictions and not _may_precede_prediction(event):
            return _unanswered(number, event, self._fold.predictions[0], event_in_words(event))
        why = _objection(self._fold, event)
        if why is not None:
            shown = event_in_words(event)
            return Difference("not_permitted", number, event.at, getattr(event, "trial", None), why, shown)
        if isinstance(event, ev.Suggested | ev.Predicted):
            return self._answer_differs(number, event) or self._warm_start_differs(number, event)
        return None

    def _answer_differs(self, number: int, event: Answer) -> Difference | None:
        pending = self._fold.pending_for(event)
        assert pending is not None, "an answer without a command was refused before"
        first: Answer | None = None
        for answer in self._fold.answers(pending, event.at):
            if _same(answer, event):
                self._answers += 1
                return None
            first = first or answer
        if first is None:  # there is no sampler
            return None
        shown = event_in_words(event)
        return Difference("answer", number, event.at, pending.order.trial, event_in_words(first), shown)

    def _warm_start_differs(self, number: int, event: Answer) -> Difference | None:
        if not isinstance(event, ev.Suggested) or event.inherited is None:
            return None
        inherited = event.inherited
        recorded = self._source(inherited)
        if recorded is None:
            what = f"the warm start of {event.trial}"
            why = f"the record of {inherited.trial} of {inherited.job} is not available"
            self._unchecked.append(Unchecked(what, why))
            return None
        config, theirs = recorded
        if config == event.config and theirs == inherited:
            return None
        decided = Decision(f"{inherited.trial} of {inherited.job} has another configuration or curve")
        shown = event_in_words(event)
        return Difference("warm_start", number, event.at, event.trial, decided, shown)

    def _note_states(self, number: int) -> None:
        state = self._fold.state
        for changed in state.changed:
            public = PUBLIC[state.trials[changed].status]
            known = self._states.get(changed)
            if known is None or known[0] != public:
                self._states[changed] = public, number
        state.changed.clear()

    # Rows

    def _rows_differ(self) -> Difference | None:
        found = list(self._trials_differ())
        if found:
            return min(found, key=lambda one: one.number)
        return self._job_differs()

    def _trials_differ(self) -> Iterator[Difference]:
        rows, at = self._record.trials, dict(self._record.events)
        if rows is None:
            why = "the job changed while its record was read"
            self._unchecked.append(Unchecked("the states of the trials and of the job", why))
            return
        last = self._record.events[-1][0]
        for trial in self._fold.state.trials:
            state, number = self._states[trial.number]
            row = rows.get(trial.id)
            here = number, at[number].at, trial.id
            decided = _trial_in_words(trial.id, state, trial.config, trial.status)
            if row is None:
                yield Difference("trial_missing", *here, decided, Decision(f"there is no {trial.id}"))
            elif row[0] != state:
                recorded = _trial_in_words(trial.id, row[0], row[1])
                yield Difference("trial_state", *here, decided, recorded)
            elif row[1] != trial.config:
                recorded = _trial_in_words(trial.id, row[0], row[1])
                yield Difference("trial_config", *here, decided, recorded)
        for name in sorted(set(rows) - {trial.id for trial in self._fold.state.trials}):
            decided, recorded = Decision(f"there is no {name}"), _trial_in_words(name, *rows[name])
            yield Difference("trial_missing", last, at[last].at, name, decided, recorded)

    def _job_differs(self) -> Difference | None:
        """Compare how the job ended.

        The service also changes the state of jobs that have no driver. Those changes are not decided from events, so that
        they are named in `unchecked` instead.
        """
        if self._record.job is None:
            return None
        state, reason = self._record.job
        end = self._fold.end
        if (state, reason) == (("running", None) if end is None else (end.state, end.reason)):
            return None
        if self._by_service(state, reason):
            self._unchecked.append(Unchecked(f"why the job is {state}", BY_SERVICE[state][1]))
            return None
        number, event = self._record.events[-1]
        decided = Decision("the job runs") if end is None else command_in_words(end)
        why = f" ({reason})" if reason else ""
        recorded = Decision(f"the job is {state}{why}", {"type": "job", "state": state, "reason": reason})
        return Difference("job_end", number, event.at, None, decided, recorded)

    def _by_service(self, state: JobState, reason: StopReason | None) -> bool:
        """Return whether the service may have put the job into this state after its last event."""
        end = self._fold.end
        may_be_resumed = end is None or end.state in ("paused", "succeeded")
        return may_be_resumed and state in BY_SERVICE and BY_SERVICE[state][0] == reason


def _time_is_up(number: int) -> str:
    return f"the time for this replay was used up after event {number}"


def _may_precede_prediction(event: ev.Event) -> bool:
    """Return whether an event may be recorded between `Predict` and its answer, which the loop queues at once."""
    return isinstance(event, ev.Suggested | ev.Predicted) or (
        isinstance(event, ev.Refused) and not event.running
    )


def _unanswered(number: int, event: ev.Event, pending: _Pending, recorded: Decision) -> Difference:
    asked = command_in_words(pending.order)
    decided = Decision(f"{asked.summary}; the answer comes before any other event", asked.fields)
    return Difference("answer_missing", number, event.at, pending.order.trial, decided, recorded)


def _objection(fold: Fold, event: ev.Event) -> Decision | None:
    """Return what was decided instead, if no command permits the event. Return None if the event is permitted."""
    if fold.end is not None and not isinstance(event, ev.Launched | ev.BudgetChanged):
        return Decision(f"{command_in_words(fold.end).summary}, so that only a new launch may follow")
    if fold.suggestion is not None and isinstance(event, TURN_BEGINS):
        asked = command_in_words(fold.suggestion.order)
        return Decision(f"{asked.summary}; the answer comes before the next request or limit", asked.fields)
    match event:
        case ev.Suggested() | ev.Predicted():
            return _objection_to_answer(fold, event)
        case ev.WallClockEnded() if fold.state.budget.wall_clock_ns is None:
            return Decision("the job has no wall-clock limit")
        case ev.WindowClosed() if fold.state.spec.window is None:
            return Decision("the job has no time window")
        case ev.Launched() | ev.ControlRequested() | ev.BudgetChanged():
            return None
        case ev.WallClockEnded() | ev.WindowClosed():
            return None
        case _:
            return _objection_to_attempt(fold, event)


def _objection_to_answer(fold: Fold, event: Answer) -> Decision | None:
    if isinstance(event, ev.Predicted) and event.trial is not None and not _exists(fold.state, event.trial):
        return Decision(f"there is no {event.trial}")
    if fold.pending_for(event) is not None:
        return None
    pending = [*fold.predictions, *([] if fold.suggestion is None else [fold.suggestion])]
    if not pending:
        return Decision("the sampler was not asked for anything")
    asked = command_in_words(pending[0].order)
    return Decision(f"{asked.summary}, which this does not answer", asked.fields)


def _objection_to_attempt(fold: Fold, event: AttemptEvent) -> Decision | None:
    trial = event.trial
    if not _exists(fold.state, trial):
        return Decision(f"there is no {trial}")
    if trial not in fold.attempts_open:
        return Decision(f"no attempt of {trial} runs")
    if isinstance(event, ev.Stopped) and fold.state.trial(trial).status != "stopping":
        return Decision(f"{trial} had no order to stop")
    return None


def _exists(state: State, trial: str) -> bool:
    return TRIAL_ID.fullmatch(trial) is not None and trial_number(trial) < len(state.trials)


def _same(decided: Answer, recorded: Answer) -> bool:
    """Return whether two answers are equal in everything but their time."""
    if isinstance(decided, ev.Suggested) and isinstance(recorded, ev.Suggested):
        same_kind = (decided.inherited is None) == (recorded.inherited is None)
        return same_kind and (decided.trial, decided.config) == (recorded.trial, recorded.config)
    if isinstance(decided, ev.Predicted) and isinstance(recorded, ev.Predicted):
        return (decided.trial, decided.go) == (recorded.trial, recorded.go)
    return False


# Other policies


def compare(
    record: JobRecord,
    ours: Fold,
    theirs: Fold,
    *,
    concurrency: int,
    may_continue: Callable[[], bool] = lambda: True,
) -> Replayed:
    """Replay the same events under two policies, and return the first event at which they decide differently.

    Up to that event, both are in the same situation. After it, the recorded events are not those that the other policy would
    have led to, so the replay ends there. The record is not compared with either.
    """
    events = decisions = answers = 0
    difference, unchecked = None, list[Unchecked]()
    for index, (number, event) in enumerate(record.events):
        if not may_continue():
            unchecked.append(Unchecked("later events", _time_is_up(number - 1)))
            break
        following = record.events[index + 1][1] if index + 1 < len(record.events) else None
        try:
            difference, decided = _policies_differ(ours, theirs, number, event, following)
        except NOT_POSSIBLE as error:
            why = f"event {number} does not fit the state of the job: {error!r}"
            unchecked.append(Unchecked("later events", why))
            break
        events, decisions = events + 1, decisions + decided
        answers += isinstance(event, ev.Suggested | ev.Predicted)
        if difference is not None:
            break
    return Replayed(events, decisions, answers, concurrency, difference, tuple(unchecked))


def _policies_differ(
    ours: Fold, theirs: Fold, number: int, event: ev.Event, following: ev.Event | None
) -> tuple[Difference | None, int]:
    """Apply an event to both policies. Return how they differ, and the number of commands that ours returned."""
    if isinstance(event, ev.Suggested | ev.Predicted):
        difference = _answers_differ(ours, theirs, number, event)
        if difference is not None:
            return difference, 0
    mine, yours = ours.apply(number, event, following), theirs.apply(number, event, following)
    ours.state.changed.clear()
    theirs.state.changed.clear()
    if mine == yours:
        return None, len(mine)
    both = commands_in_words(mine), commands_in_words(yours)
    return Difference("commands", number, event.at, getattr(event, "trial", None), *both), len(mine)


def _answers_differ(ours: Fold, theirs: Fold, number: int, event: Answer) -> Difference | None:
    """Compare the answers of two samplers to the same command. Return None if the event answers no command."""
    mine, yours = ours.pending_for(event), theirs.pending_for(event)
    if mine is None or yours is None:
        return None
    decided, other = next(ours.answers(mine, event.at), None), next(theirs.answers(yours, event.at), None)
    if decided is None or other is None or _same(decided, other):
        return None
    trial = mine.order.trial
    return Difference("answer", number, event.at, trial, event_in_words(decided), event_in_words(other))


# In words


def event_in_words(event: ev.Event) -> Decision:
    match event:
        case ev.Suggested() | ev.Predicted():
            return _answer_in_words(event)
        case ev.Reported(_, trial, step):
            return Decision(
                f"{trial} reports step {step}", {"type": _name(event), "trial": trial, "step": step}
            )
        case ev.Refused(_, trial, limit):
            fields = {"type": _name(event), "trial": trial, "limit": limit}
            return Decision(f"a hold of {trial} is refused ({limit})", fields)
        case ev.ControlRequested(_, what):
            return Decision(f"a user requests: {what}", {"type": _name(event), "request": what})
        case ev.Launched() | ev.BudgetChanged() | ev.WallClockEnded() | ev.WindowClosed():
            return Decision(IN_WORDS[type(event)], {"type": _name(event)})
        case _:
            fields = {"type": _name(event), "trial": event.trial}
            return Decision(f"the attempt of {event.trial} {IN_WORDS[type(event)]}", fields)


IN_WORDS: Mapping[type[ev.Event], str] = {
    ev.Launched: "a driver starts",
    ev.BudgetChanged: "the budget changes",
    ev.WallClockEnded: "the wall clock ends",
    ev.WindowClosed: "the window closes",
    ev.Paused: "pauses",
    ev.Completed: "completes",
    ev.Stopped: "is stopped",
    ev.Failed: "fails",
    ev.Lost: "is lost",
    ev.Preempted: "is preempted",
}


def _answer_in_words(answer: Answer) -> Decision:
    fields: dict[str, Any] = {"trial": answer.trial}
    if isinstance(answer, ev.Predicted):
        fields |= {"type": "predicted", "go": answer.go}
        if answer.trial is None:
            return Decision("the rest of the budget cannot finish another trial", fields)
        return Decision(f"{answer.trial} {'continues' if answer.go else 'waits at its rung'}", fields)
    fields |= {"type": "suggested", "config": answer.config}
    if answer.config is None:
        return Decision("the sampler has no configuration left", fields)
    if answer.inherited is None:
        return Decision(f"{answer.trial} gets the configuration {_config(answer.config)}", fields)
    earlier = answer.inherited
    fields["inherited"] = {"job": earlier.job, "trial": earlier.trial, "step": earlier.step}
    return Decision(f"{answer.trial} continues {earlier.trial} of {earlier.job}", fields)


def commands_in_words(commands: Sequence[do.Command]) -> Decision:
    found = [command_in_words(command) for command in commands]
    summary = "; ".join(one.summary for one in found) or "nothing"
    return Decision(summary, {"type": "commands", "commands": [dict(one.fields) for one in found]})


def command_in_words(command: do.Command) -> Decision:
    match command:
        case do.Suggest(trial):
            return Decision(f"ask for the configuration of {trial}", {"type": "suggest", "trial": trial})
        case do.Predict(trial):
            return Decision(f"ask whether {trial} continues", {"type": "predict", "trial": trial})
        case do.Begin(trial, _, until):
            fields = {"type": "begin", "trial": trial, "until": until}
            return Decision(f"start {trial}, to run to {_step(until)}", fields)
        case do.Continue(trial, until):
            fields = {"type": "continue", "trial": trial, "until": until}
            return Decision(f"let {trial} continue to {_step(until)}", fields)
        case do.Pause(trial):
            return Decision(f"pause {trial}", {"type": "pause", "trial": trial})
        case do.Finish(trial):
            return Decision(f"finish {trial}", {"type": "finish", "trial": trial})
        case do.Stop(trial, reason):
            fields = {"type": "stop", "trial": trial, "reason": reason}
            return Decision(f"stop {trial}: {reason}", fields)
        case do.EndJob(state, reason):
            why = f" ({reason})" if reason else ""
            fields = {"type": "end_job", "state": state, "reason": reason}
            return Decision(f"the job ends as {state}{why}", fields)


def _trial_in_words(
    trial: str, state: TrialState, config: Config | None, status: Status | None = None
) -> Decision:
    fields: dict[str, Any] = {"type": "trial", "trial": trial, "state": state, "config": config}
    known = f", with {_config(config)}" if config is not None else ""
    exact = f" ({status})" if status is not None and status != state else ""
    return Decision(f"{trial} is {state}{exact}{known}", fields)


def _config(config: Config) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in config.items())


def _step(until: int | None) -> str:
    return "its end" if until is None else f"step {until}"


def _name(event: ev.Event) -> str:
    name = type(event).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")
