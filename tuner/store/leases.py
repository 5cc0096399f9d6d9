"""Leases: what only one of several services does at a time, until it gives it back or is not heard of any more."""

from sqlalchemy import Connection, delete, insert, update
from sqlalchemy.exc import IntegrityError

from tuner.domain.time import Instant
from tuner.store.tables import leases


def take(db: Connection, name: str, holder: str, *, now: Instant, until: Instant) -> bool:
    """Whether the holder has it now, for the first time or again."""
    lease, longest = (
        leases.c,
        2 * (until - now),
    )  # one that seems to last longer was taken before the clock was set back
    over = (lease.until <= now) | (lease.until > now + longest)
    free = (lease.name == name) & ((lease.holder == holder) | over)
    if db.execute(update(leases).where(free).values(holder=holder, until=until)).rowcount == 1:
        return True
    try:
        with db.begin_nested():
            db.execute(insert(leases).values(name=name, holder=holder, until=until))
    except IntegrityError:  # somebody has it
        return False
    return True


def give_back(db: Connection, name: str, holder: str) -> None:
    db.execute(delete(leases).where((leases.c.name == name) & (leases.c.holder == holder)))
