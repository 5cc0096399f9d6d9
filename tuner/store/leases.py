"""Named leases for work that only one of several services may do at a time.

A service does the work until it gives the lease back, or does not renew it in time.
"""

from sqlalchemy import Connection, delete, insert, update
from sqlalchemy.exc import IntegrityError

from tuner.domain.time import Instant
from tuner.store.tables import leases


def take(db: Connection, name: str, holder: str, *, now: Instant, until: Instant) -> bool:
    """Take or renew the lease until `until`. Return False if another holder has it."""
    # A lease that seems to last longer than this was taken before the clock was set back, and counts as expired.
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
