"""Translate a worker's last message into the outcome of its attempt, for the record and for the loop's decisions."""

from tuner.domain import events as ev
from tuner.domain.time import Instant
from tuner.domain.trial import CAUSES, AttemptCause, AttemptEnd
from tuner.engine.messages import Progress, Trouble

AttemptEvent = ev.Paused | ev.Completed | ev.Stopped | ev.Failed | ev.Lost | ev.Preempted
_ENDS: dict[str, AttemptEnd] = {
    "paused": "paused",
    "finished": "completed",
    "ended": "completed",
    "stopped": "stopped",
    "failed": "failed",
    "preempted": "preempted",
}
# Training after the newest checkpoint counts as lost for these outcomes, because the trial has to repeat it.
DONE_AGAIN: frozenset[AttemptEnd] = frozenset({"paused", "lost", "preempted"})
# Failures that a machine's shutdown also causes: a signal to all processes, or a disk too full for the last save. If
# the trial itself was the cause, it fails again on another machine.
_BY_ITS_MACHINE = {"killed", "saving"}


def end_of(progress: Progress) -> AttemptEnd:
    """Return the outcome of an attempt from its worker's last message.

    A failure of the storage does not count as the trial's failure. On a machine that is about to be taken away, a
    failure that its shutdown also causes counts as a preemption.
    """
    if progress.state == "failed" and progress.trouble is not None:
        if progress.leaving and (progress.trouble.no_fault or progress.trouble.kind in _BY_ITS_MACHINE):
            return "preempted"
        if progress.trouble.no_fault:
            return "lost"
    return _ENDS[progress.state]


def cause_of(trouble: Trouble | None) -> AttemptCause:
    """Return why an attempt was lost or failed. `trouble` is None if the worker vanished."""
    if trouble is None:
        return "worker"
    return next((cause for cause in CAUSES if cause == trouble.kind), "other")


def event_of(end: AttemptEnd, at: Instant, trial: str, *, saved: int, reason: str) -> AttemptEvent:
    """Return the event of an attempt's end. `saved` is the step of the trial's newest checkpoint (0: none)."""
    match end:
        case "completed":
            return ev.Completed(at, trial)
        case "stopped":
            return ev.Stopped(at, trial)
        case "failed":
            return ev.Failed(at, trial, reason)
        case "lost":
            return ev.Lost(at, trial, saved, reason)
        case "preempted":
            return ev.Preempted(at, trial, saved, reason)
        case "paused":
            return ev.Paused(at, trial, saved)
