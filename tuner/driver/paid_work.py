"""The common parts of the work that a job pays for besides its attempts: the restore self-test and exports.

Both run in an actor of `tuner.driver.paid_actors`. They wait for a machine, which costs nothing, place a hold at the price of that machine,
run the work within the time that the hold pays for, kill the actor, and settle the hold.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from tuner.database.database import Connection
from tuner.domain.cost import CostKind
from tuner.domain.job import Resources
from tuner.domain.money import Cost, Rate
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import NS, Instant
from tuner.driver.machine_check import Find, described, forbidden
from tuner.ledger import ledger, shared_budgets
from tuner.store.jobs import JobRow

ENDS_WITHIN_NS = 10 * NS  # the work ends by itself this long before its limit
LOOK_S = 0.2  # how long one look at an actor waits


class PaidActorLost(Exception):
    """The machine or the process of an actor is gone."""


class WrongMachine(Exception):
    """The job does not allow the machine that an actor was given, or the machine's price is not known."""


def assigned_offer(machine: WorkerMachine | None, requested: Offer, wanted: Resources, find: Find) -> Offer:
    """Return the priced offer of the machine that an actor was given.

    It may differ from the requested offer: on a cluster whose nodes have no labels, an offer has the highest price of all nodes, and prices
    may have changed since the job was admitted.

    Args:
        machine: The machine. None if Ray does not describe it; the requested offer then counts.
        requested: The offer that was requested.
        wanted: The resources that the job requested.
        find: Returns the priced offer of a machine.

    Raises:
        WrongMachine: The job does not allow the machine, or its price is not known.
    """
    if machine is None:
        return requested
    offer = find(machine)
    if offer is None:
        raise WrongMachine(f"the price of the machine that Ray assigned is not known: {described(machine)}")
    if (why := forbidden(offer, wanted)) is not None:
        raise WrongMachine(why)
    return offer


class Metered(Protocol):
    """The actor of paid work."""

    def used_ns(self) -> int:
        """Return how long the actor has worked, in nanoseconds."""

    def kill(self) -> None: ...


@contextmanager
def billed(
    actor: Metered,
    rate: Rate,
    limit_ns: int,
    kind: CostKind,
    settle: Callable[[Mapping[CostKind, Cost]], None],
) -> Iterator[None]:
    """Run the block while the actor works. At its end, kill the actor, and settle its hold with what it has cost.

    Args:
        actor: The actor that works.
        rate: What its machine costs.
        limit_ns: How long the hold pays for, in nanoseconds. No more is billed.
        kind: The kind of the cost.
        settle: Settles the hold with the cost by kind.
    """
    try:
        yield
    finally:
        cost = rate.cost(min(actor.used_ns(), limit_ns))
        actor.kill()  # before its hold is settled: afterwards nothing would pay for the actor
        settle({} if cost.nothing else {kind: cost})


def wait(within_s: float, *, may_continue: Callable[[], bool]) -> None:
    """Wait for `within_s` seconds, or until `may_continue`, which is called again and again, returns False."""

    def sleep(look_s: float) -> bool:
        time.sleep(look_s)
        return False

    wait_until(sleep, within_s, may_continue=may_continue)


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
