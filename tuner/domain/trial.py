"""A trial: one configuration, trained step by step in one or more attempts."""

from collections.abc import Mapping
from typing import Literal, get_args

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
AttemptCause = Literal[
    "notice",
    "no_notice",
    "driver",
    "worker",
    "machine",
    "storage",
    "saving",
    "memory",
    "lease",
    "killed",
    "exited",
    "import",
    "metrics",
    "raised",
    "other",
]
"""Why an attempt was preempted (`notice`, `no_notice`), lost or failed: with its driver, its worker, on a machine that the job does
not allow, by the storage of checkpoints or its own disk, for memory, at the end of what was paid for, or by user code."""
CAUSES: tuple[AttemptCause, ...] = get_args(AttemptCause)
