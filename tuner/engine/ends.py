"""What the end of an attempt means for its trial."""

from tuner.domain import events as ev
from tuner.domain.time import Instant
from tuner.domain.trial import AttemptEnd

ENDS: dict[str, AttemptEnd] = {
    "paused": "paused",
    "finished": "completed",
    "ended": "completed",
    "stopped": "stopped",
    "failed": "failed",
    "lost": "lost",
}


def end_event(at: Instant, trial: str, end: str, *, saved: int, reason: str) -> ev.Event:
    """`saved` is the step of the trial's newest checkpoint."""
    match end:
        case "finished" | "ended":
            return ev.Completed(at, trial)
        case "stopped":
            return ev.Stopped(at, trial)
        case "failed":
            return ev.Failed(at, trial, reason)
        case "lost":
            return ev.Lost(at, trial, saved, reason)
        case _:
            return ev.Parked(at, trial, saved)
