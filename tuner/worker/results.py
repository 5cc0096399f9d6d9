"""Make the results that are sent to the driver from the state of an attempt.

Call all functions under the supervisor's lock.
"""

import time

from tuner.worker.attempt import RunningAttempt
from tuner.worker.orders import AttemptMessage, WorkerState
from tuner.worker.replies import at_stop, need_ns, waits_for_driver


def has_news(attempt: RunningAttempt) -> bool:
    """Return whether the driver should be sent a result before the next heartbeat."""
    return (
        attempt.state is not None
        or bool(attempt.reports)
        or attempt.states.has_news
        or (waits_for_driver(attempt) and not attempt.announced_waiting)
        or attempt.announced_leaving != (attempt.notice is not None)
        or (attempt.node > 0 and bool(attempt.rank_ends))
    )


def result_of(attempt: RunningAttempt, state: WorkerState) -> AttemptMessage:
    """Return the result to send to the driver. Each report and checkpoint is sent once."""
    attempt.announced_leaving = attempt.notice is not None
    reports, attempt.reports = attempt.reports, []
    checkpoints, part = attempt.states.take_news()
    environment, attempt.environment = attempt.environment, None
    rank_ends = [end.message(time.monotonic_ns()) for end in attempt.rank_ends] if attempt.node else []
    attempt.rank_ends = [] if attempt.node else attempt.rank_ends
    return {
        "trial": attempt.trial,
        "attempt": attempt.number,
        "state": state,
        "reports": reports,
        "checkpoints": checkpoints,
        "meter": attempt.watch.reading(attempt.lease_ns),
        "need_ns": need_ns(attempt) if state == "waiting" and not at_stop(attempt) else 0,
        "saved_step": attempt.states.durable or None,
        "part": part,
        "carried_ns": attempt.times.carried_ns,
        "warming_ns": attempt.times.warming_ns,
        "leaving": attempt.notice is not None,
        "from_step": attempt.from_step,
        "outage_ns": attempt.times.outage_ns,
        "rank_ends": rank_ends,
        "usage": attempt.use.reading(),
        "environment": None if environment is None else environment.message(),
        "error": attempt.error if state == attempt.state else None,
    }
