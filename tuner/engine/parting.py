"""What a trial does with the time that its machine has left, and when it is tried again after it was preempted in vain.

The same for a worker (`tuner.engine.worker`) and a simulated one. Pure.
"""

from tuner.domain.time import NS

# Between a durable checkpoint and the machine's end: for a look at the clock that came late, and until the driver knows.
MARGIN_NS = NS
PAUSE_NS = NS
PAUSE_MAX_NS = 60 * NS


def in_time(left_ns: int, *, step_ns: int | None, save_ns: int | None) -> bool:
    """Whether the step in progress is finished first: so much of it is left, a save takes so long, and both fit into the time that
    the machine has left. Of what is not known (None) nothing better can be said than that it should be tried."""
    return max(0, step_ns or 0) + (save_ns or 0) + MARGIN_NS <= left_ns


def pause_ns(in_vain: int) -> int:
    """How long to wait before the next attempt, after so many preemptions in a row without a newer checkpoint. The first is
    followed at once: it came in the middle of a setup or a long step, and means nothing."""
    return 0 if in_vain < 2 else min(PAUSE_MAX_NS, PAUSE_NS << min(in_vain - 2, 10))
