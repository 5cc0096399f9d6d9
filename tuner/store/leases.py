"""Named leases of services: work that only one of several services does at a time, until it gives the lease back or lets it expire."""

from sqlalchemy import Connection, delete, insert, update
from sqlalchemy.exc import IntegrityError

from tuner.domain.time import Instant
from tuner.store.tables import leases


def take(db: Connection, name: str, holder: str, *, now: Instant, until: Instant) -> bool:
    """Take or renew the lease until `until`. Return True if the holder now has it."""
    # A lease that seems to last longer than this was taken before the clock was set back.
    lease, longest = leases.c, 2 * (until - now)
    over = (lease.until <= now) | (lease.until > now + longest)
    free = (lease.name == name) & ((lease.holder == holder) | over)
    if db.execute(update(leases).where(free).values(holder=holder, until=until)).rowcount == 1:
        return True
    try:
        with db.begin_nested():
            db.execute(insert(leases).values(name=name, holder=holder, until=until))
    except IntegrityError:  # another holder has it
        return False
    return True


def give_back(db: Connection, name: str, holder: str) -> None:
    db.execute(delete(leases).where((leases.c.name == name) & (leases.c.holder == holder)))
