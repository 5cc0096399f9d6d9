"""Describe recorded events and the commands of `decide` as sentences."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.domain import commands as do
from tuner.domain import events as ev
from tuner.domain.space import Config
from tuner.domain.trial import TrialState

IN_WORDS: Mapping[type[ev.Event | do.Command], str] = {
    ev.Launched: "a driver starts",
    ev.BudgetChanged: "the budget changes",
    ev.WallClockEnded: "the wall clock ends",
    ev.WindowClosed: "the window closes",
    ev.ControlRequested: "a user requests: {what}",
    ev.ConcurrencyChanged: "a user allows {concurrency} trials at once",
    ev.EnqueueRequested: "a user enqueues a configuration",
    ev.StopRequested: "a user stops {trial}",
    ev.PromoteRequested: "a user promotes {trial}",
    ev.Reported: "{trial} reports step {step}",
    ev.Refused: "a hold of {trial} is refused ({limit})",
    ev.Paused: "the attempt of {trial} pauses",
    ev.Completed: "the attempt of {trial} completes",
    ev.Stopped: "the attempt of {trial} is stopped",
    ev.Failed: "the attempt of {trial} fails",
    ev.Lost: "the attempt of {trial} is lost",
    ev.Preempted: "the attempt of {trial} is preempted",
    do.Suggest: "ask for the configuration of {trial}",
    do.Predict: "ask whether {trial} continues",
    do.Begin: "start {trial}, to run to {target}",
    do.Continue: "let {trial} continue to {target}",
    do.Pause: "pause {trial}",
    do.Finish: "finish {trial}",
    do.Stop: "stop {trial}: {reason}",
    do.EndJob: "the job ends as {state}",
}
# The parts of events and commands that a decision shows as fields, if the event or command has them.
SHOWN = ("trial", "step", "limit", "go", "config", "target_step", "reason", "state")


@dataclass(frozen=True, slots=True)
class Decision:
    """The description of a decision or of a recorded event, as a sentence and as fields."""

    summary: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def in_words(value: ev.Event | do.Command) -> Decision:
    """Describe an event or a command, for example as "start trial_00003, to run to step 9"."""
    parts = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(value).__name__).removeprefix("_")
    shown = {"type": name} | {part: parts[part] for part in SHOWN if part in parts}
    match value:
        case ev.Suggested() | ev.Predicted():
            summary = _answer_in_words(value)
        case do.EndJob(state, reason) if reason:
            summary = f"the job ends as {state} ({reason})"
        case _:
            target = "its end" if parts.get("target_step") is None else f"step {parts['target_step']}"
            summary = IN_WORDS[type(value)].format(target=target, **parts)
    if isinstance(value, ev.ControlRequested):
        shown["request"] = value.what
    if isinstance(value, ev.Suggested) and value.inherited is not None:
        earlier = value.inherited
        shown["inherited"] = {"job": earlier.job, "trial": earlier.trial, "step": earlier.step}
    return Decision(summary, shown)


def _answer_in_words(answer: ev.Suggested | ev.Predicted) -> str:
    if isinstance(answer, ev.Predicted):
        if answer.trial is None:
            return "the rest of the budget cannot finish another trial"
        return f"{answer.trial} {'continues' if answer.go else 'waits at its rung'}"
    if answer.config is None:
        return "the sampler has no configuration left"
    if answer.inherited is None:
        return f"{answer.trial} gets the configuration {_config(answer.config)}"
    return f"{answer.trial} continues {answer.inherited.trial} of {answer.inherited.job}"


def commands_in_words(commands: Sequence[do.Command]) -> Decision:
    """Describe the commands that `decide` returned for one event."""
    each = [in_words(command) for command in commands]
    summary = "; ".join(command.summary for command in each) or "nothing"
    return Decision(summary, {"type": "commands", "commands": [dict(command.fields) for command in each]})


def trial_in_words(trial: str, row: tuple[TrialState, Config | None] | None) -> Decision:
    """Describe the state and configuration of a trial. `row` is None if the trial does not exist."""
    if row is None:
        return Decision(f"{trial} does not exist")
    state, config = row
    known = f", with {_config(config)}" if config is not None else ""
    fields = {"type": "trial", "trial": trial, "state": state, "config": config}
    return Decision(f"{trial} is {state}{known}", fields)


def _config(config: Config) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in config.items())
