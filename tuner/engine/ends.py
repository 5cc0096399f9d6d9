"""How attempts end: what a worker says, as the record and the decisions have it."""

from tuner.domain import events as ev
from tuner.domain.time import Instant
from tuner.domain.trial import CAUSES, AttemptCause, AttemptEnd
from tuner.engine.messages import Progress, Trouble

AttemptEvent = ev.Parked | ev.Completed | ev.Stopped | ev.Failed | ev.Lost | ev.Preempted
_ENDS: dict[str, AttemptEnd] = {
    "paused": "paused",
    "finished": "completed",
    "ended": "completed",
    "stopped": "stopped",
    "failed": "failed",
    "preempted": "preempted",
}
# What the trial does again from its newest checkpoint, it has lost.
DONE_AGAIN: frozenset[AttemptEnd] = frozenset({"paused", "lost", "preempted"})
# What else befalls a trial where its machine is shut down: a signal to all processes, a disk without room for the last save. If it
# was the trial's own doing, it happens again elsewhere.
_BY_ITS_MACHINE = {"killed", "saving"}


def end_of(progress: Progress) -> AttemptEnd:
    """Of a worker's last word. Trouble with the worker or the storage is not the trial's failure."""
    if progress.state == "failed" and progress.trouble is not None:
        if progress.leaving and (progress.trouble.no_fault or progress.trouble.kind in _BY_ITS_MACHINE):
            return "preempted"
        if progress.trouble.no_fault:
            return "lost"
    return _ENDS[progress.state]


def cause_of(trouble: Trouble | None) -> AttemptCause:
    """Of an attempt that was lost or failed; a worker that vanished says nothing."""
    if trouble is None:
        return "worker"
    return next((cause for cause in CAUSES if cause == trouble.kind), "other")


def event_of(end: AttemptEnd, at: Instant, trial: str, *, saved: int, reason: str) -> AttemptEvent:
    """`saved` is the step of the trial's newest checkpoint (0: none)."""
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
            return ev.Parked(at, trial, saved)
