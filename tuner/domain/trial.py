"""A trial: one configuration, trained step by step in one or more attempts."""

from typing import Literal, get_args

TrialState = Literal["pending", "running", "paused", "completed", "stopped", "failed"]
TRIAL_STATES: tuple[TrialState, ...] = get_args(TrialState)
TRIAL_FINAL: frozenset[TrialState] = frozenset({"completed", "stopped", "failed"})
Outcome = Literal["paused", "completed", "stopped", "failed", "lost", "preempted"]
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
"""Why an attempt was preempted, lost or failed.

`notice` and `no_notice` are preemptions with and without a notice. The other causes name the part that ended the attempt: its driver, its
worker, a machine that the job does not allow, checkpoint storage or the local disk, memory, the end of its lease, or user code.
"""
CAUSES: tuple[AttemptCause, ...] = get_args(AttemptCause)
