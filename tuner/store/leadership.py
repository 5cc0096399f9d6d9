"""Named leases, and leadership with a fencing token, for work that only one of several services on one database may do.

A service may do the work of a lease until it gives the lease back or fails to renew it in time.

The safety of leadership does not depend on clocks: the token only increases, the leader checks its token in the
transaction of every write, and a new term begins with a write to the row that this check reads. Clocks only decide how soon
another term may begin. (Leases are described by Gray and Cheriton, *Leases*, 1989, and the fencing token by Kleppmann, *How to do
distributed locking*, 2016.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from tuner.database.database import Database
from tuner.database.tables import leadership, leases
from tuner.domain.errors import Fenced
from tuner.domain.time import NS, Instant


def take(db: Connection, name: str, holder: str, *, now: Instant, until: Instant) -> bool:
    """Take the lease `name`, or renew it, until `until`. Return False if another holder has it."""
    # A lease that seems to last longer than `longest` was taken before the clock was set back. It counts as expired.
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


# If a leader is suspended in the middle of a write transaction, its locks block all other services. PostgreSQL therefore ends the session
# of the leader after this time.
STOPPED_MS = 3000
# How long a statement of a leader's write waits for a lock, such as that of a driver's turn. Meanwhile the write blocks the renewal of the
# term, so this time is shorter than a term. The controller tries again in its next pass.
LOCKED_MS = 2000
# The longest time from a renewal to the end of a term. If a term seems to last longer, the clock has been set back since the renewal,
# and the term counts as over.
LONGEST_NS = 60 * NS


@dataclass(frozen=True, slots=True)
class Term:
    role: str
    token: int
    holder: str
    version: str  #: The holder's version of tuner.
    since: Instant
    expires_at: Instant  #: When the term ends unless it is renewed.

    def lasts(self, now: Instant) -> bool:
        return 0 < self.expires_at - now <= LONGEST_NS


def clock(db: Connection, own: Instant) -> Instant:
    """Return the time by which terms are measured: the time of the database server's clock.

    SQLite has no server. There, return `own`, the time of this process's clock: all processes that share the file run on one machine.
    """
    if db.dialect.name != "postgresql":
        return own
    microseconds = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    return Instant(int(db.execute(microseconds).scalar_one()) * 1000)


def get(db: Connection, role: str) -> Term | None:
    """Return the newest term of the role, even if it has expired. Return None if there was no term yet."""
    row = db.execute(select(leadership).where(leadership.c.role == role)).first()
    return None if row is None else Term(**row._mapping)


def renew(db: Connection, term: Term, *, until: Instant) -> bool:
    """Renew the term until `until`. Return False if another term has begun.

    Even an expired term can be renewed, as long as no other term has begun.
    """
    mine = (leadership.c.role == term.role) & (leadership.c.token == term.token)
    return db.execute(update(leadership).where(mine).values(expires_at=until)).rowcount == 1


def begin(
    db: Connection, role: str, holder: str, version: str, *, now: Instant, until: Instant
) -> Term | None:
    """Begin the next term of the role. Return None if the current term has not expired, or if another service began the next term first."""
    row = leadership.c
    before = get(db, role)
    values = {"holder": holder, "version": version, "since": now, "expires_at": until}
    if before is None:
        try:
            with db.begin_nested():
                db.execute(insert(leadership).values(role=role, token=1, **values))
        except IntegrityError:
            return None
        return Term(role, 1, **values)  # type: ignore[arg-type]
    ended = (row.expires_at <= now) | (row.expires_at > now + LONGEST_NS)
    over = (row.role == role) & (row.token == before.token) & ended
    token = before.token + 1
    if db.execute(update(leadership).where(over).values(token=token, **values)).rowcount != 1:
        return None
    return Term(role, token, **values)  # type: ignore[arg-type]


def give_up(db: Connection, term: Term) -> None:
    """End the term, so that the next one may begin at once."""
    renew(db, term, until=Instant(0))


@contextmanager
def write(database: Database, term: Term, name: str = "") -> Iterator[Connection]:
    """Open a write transaction for the service that holds the term.

    Args:
        name: The name of this transaction in `tuner.database.failpoints`.

    Raises:
        Fenced: Another term has begun.
        Unavailable: The database does not answer, another process has kept a lock for `LOCKED_MS`, or the database has ended the
            transaction because this process was suspended in the middle of a write.
    """
    with database.write(name) as db:
        check(db, term)
        yield db


def check(db: Connection, term: Term) -> None:
    """Check that the term is the current one, and lock its row, so that no other term can begin until the transaction ends.

    Raises:
        Fenced: Another term has begun.
    """
    if db.dialect.name == "postgresql":
        limits = {"idle_in_transaction_session_timeout": STOPPED_MS, "lock_timeout": LOCKED_MS}
        db.execute(select(*(func.set_config(name, str(ms), True) for name, ms in limits.items())))
    query = select(leadership.c.token, leadership.c.holder).where(leadership.c.role == term.role)
    row = db.execute(query.with_for_update(read=True)).first()
    if row is None or row.token != term.token:
        now = "no service leads" if row is None else f"{row.holder} leads, by term {row.token}"
        raise Fenced(f"term {term.token} of {term.holder} has ended: {now}")
