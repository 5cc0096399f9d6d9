"""Rules for preemptions: whether to finish a step before the machine is lost, and how long to wait before the next attempt.

All functions are pure. Real workers (`tuner.worker`) and simulated workers use them.
"""

from tuner.domain.time import NS

# The time that must remain between the durable checkpoint and the loss of the machine. The worker may check the clock
# late, and it must still notify the driver.
MARGIN_NS = NS
PAUSE_NS = NS
PAUSE_MAX_NS = 60 * NS


def in_time(left_ns: int, *, step_ns: int | None, save_ns: int | None) -> bool:
    """Return whether a worker with a preemption notice can finish its current step and then save.

    The rest of the step (`step_ns`) and a save must both fit into the time that the machine has left. Unknown
    durations (None) count as zero.
    """
    return max(0, step_ns or 0) + (save_ns or 0) + MARGIN_NS <= left_ns


def pause_ns(preemptions_without_progress: int) -> int:
    """Return how long a preempted trial waits before its next attempt, in nanoseconds.

    `preemptions_without_progress` is the number of preemptions in a row without a newer checkpoint. After the first one there is
    no wait, because a single preemption can hit a setup or a long step by chance.
    """
    return (
        0
        if preemptions_without_progress < 2
        else min(PAUSE_MAX_NS, PAUSE_NS << min(preemptions_without_progress - 2, 10))
    )
