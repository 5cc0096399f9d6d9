"""The common parts of the work that a job pays for besides its attempts: the restore self-test and exports.

Both run in an actor of `tuner.driver.paid_actors`. They wait for a machine, which costs nothing, place a hold, run the work within the time
that the hold pays for, kill the actor, and settle the hold.
"""

import time
from collections.abc import Callable

from tuner.database.database import Connection
from tuner.domain.money import Cost
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger, shared_budgets
from tuner.store.jobs import JobRow

ENDS_WITHIN_NS = 10 * NS  # the work ends by itself this long before its limit
LOOK_S = 0.2  # how long one look at an actor waits


class PaidActorLost(Exception):
    """The machine or the process of an actor is gone."""


def work_limit_s(limit_ns: int) -> float:
    """Return the seconds after which the work must end by itself, if its hold pays for `limit_ns` nanoseconds."""
    return (limit_ns - min(ENDS_WITHIN_NS, limit_ns // 4)) / NS


def allowed(db: Connection, row: JobRow, at: Instant) -> Cost:
    """Lock the job's account, and return how much more the job and its shared budgets allow it to hold."""
    own = ledger.lock_account(db, row.project, row.id).left
    return shared_budgets.allowance(db, row.project, row.id, at, own).left


def wait_until(done: Callable[[float], bool], within_s: float, *, may_continue: Callable[[], bool]) -> bool:
    """Wait up to `within_s` seconds until `done` returns True, and return whether it did.

    Args:
        done: Called again and again. The argument is how long the call may wait, in seconds.
        within_s: How long to wait, in seconds. Even if it is 0, `done` is called once.
        may_continue: Called before each call of `done`. Once it returns False, return False at once.
    """
    deadline = time.monotonic() + within_s
    while may_continue():
        if done(LOOK_S):
            return True
        if time.monotonic() > deadline:
            return False
    return False
