"""What a trial does with the time that its machine has left, and when it is retried after preemptions.

Used by workers (`tuner.engine.worker`) and simulated ones. Pure functions.
"""

from tuner.domain.time import NS

# Time to keep between the durable checkpoint and the machine's end: the clock may be checked late, and the driver
# must be notified.
MARGIN_NS = NS
PAUSE_NS = NS
PAUSE_MAX_NS = 60 * NS


def in_time(left_ns: int, *, step_ns: int | None, save_ns: int | None) -> bool:
    """Return whether the step in progress can be finished before saving.

    Its remaining time and a save must both fit into the time that the machine has left. Unknown durations (None)
    count as zero.
    """
    return max(0, step_ns or 0) + (save_ns or 0) + MARGIN_NS <= left_ns


def pause_ns(in_vain: int) -> int:
    """Return how long to wait before the next attempt, in nanoseconds.

    `in_vain` is the number of preemptions in a row without a newer checkpoint. After the first one there is no wait:
    it can happen during a setup or a long step by chance.
    """
    return 0 if in_vain < 2 else min(PAUSE_MAX_NS, PAUSE_NS << min(in_vain - 2, 10))
