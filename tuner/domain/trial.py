"""A trial: one configuration, trained step by step in one or more attempts."""

from collections.abc import Mapping
from typing import Literal

TrialState = Literal["pending", "running", "paused", "completed", "stopped", "failed"]
TRIAL_FINAL: frozenset[TrialState] = frozenset({"completed", "stopped", "failed"})
TRIAL_MOVES: Mapping[TrialState, frozenset[TrialState]] = {
    "pending": frozenset({"running", "stopped", "failed"}),
    "running": frozenset({"pending", "paused", "completed", "stopped", "failed"}),
    "paused": frozenset({"running", "pending", "stopped"}),
    "completed": frozenset(),
    "stopped": frozenset({"paused"}),  # a finished job that goes on after a top-up
    "failed": frozenset(),
}
AttemptEnd = Literal["paused", "completed", "stopped", "failed", "lost", "preempted"]
