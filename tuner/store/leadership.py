"""Who acts, of several services over one database: a term that is renewed for as long as its holder lives, and whose token only goes up.

Safety needs no clock: whoever writes as the leader checks its token in the same transaction, and a term begins with a write to the
row that is checked. Clocks only decide how soon another one may begin. (Gray and Cheriton, *Leases*, 1989; the token is that of
Kleppmann, *How to do distributed locking*, 2016.)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError, InternalError

from tuner.domain.errors import Fenced, Unavailable
from tuner.domain.time import NS, Instant
from tuner.store.database import Database
from tuner.store.tables import leadership

# PostgreSQL ends the session of a leader that is stopped in the middle of a write: until then its locks keep everybody else out.
STOPPED_MS = 3000
# No term is so long: one that seems to end later than that was begun before the clock was set back, and its holder is not heard of.
LONGEST_NS = 60 * NS


@dataclass(frozen=True, slots=True)
class Term:
    """`holder` leads since `since`, until `expires_at` unless it renews; `version` is its version of tuner."""

    role: str
    token: int
    holder: str
    version: str
    since: Instant
    expires_at: Instant

    def lasts(self, now: Instant) -> bool:
        return 0 < self.expires_at - now <= LONGEST_NS


def clock(db: Connection, own: Instant) -> Instant:
    """The database server's; with SQLite, which has none, the process's own: all who share the file are on one machine."""
    if db.dialect.name != "postgresql":
        return own
    microseconds = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    return Instant(int(db.execute(microseconds).scalar_one()) * 1000)


def get(db: Connection, role: str) -> Term | None:
    """The newest term, whether it lasts or not; None before the first."""
    row = db.execute(select(leadership).where(leadership.c.role == role)).first()
    return None if row is None else Term(**row._mapping)


def renew(db: Connection, term: Term, *, until: Instant) -> bool:
    """False where another term has begun. One that has run out goes on where none has."""
    mine = (leadership.c.role == term.role) & (leadership.c.token == term.token)
    return db.execute(update(leadership).where(mine).values(expires_at=until)).rowcount == 1


def begin(
    db: Connection, role: str, holder: str, version: str, *, now: Instant, until: Instant
) -> Term | None:
    """The next term; None where the present one lasts, or somebody else was first."""
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
    """The next term may begin at once."""
    renew(db, term, until=Instant(0))


@contextmanager
def write(database: Database, term: Term, name: str = "") -> Iterator[Connection]:
    """A write transaction of the term's holder. Raises Fenced where another term has begun, Unavailable where the database does not
    answer, or has ended the transaction of one that stood still."""
    try:
        with database.write(name) as db:
            check(db, term)
            yield db
    except InternalError as error:
        if "idle-in-transaction" not in str(error.orig):
            raise
        raise Unavailable(f"this service stood still in the middle of a write: {error.orig}") from error


def check(db: Connection, term: Term) -> None:
    """Raises Fenced where another term has begun; until the transaction ends, none does."""
    if db.dialect.name == "postgresql":
        db.execute(select(func.set_config("idle_in_transaction_session_timeout", str(STOPPED_MS), True)))
    query = select(leadership.c.token, leadership.c.holder).where(leadership.c.role == term.role)
    row = db.execute(query.with_for_update(read=True)).first()
    if row is None or row.token != term.token:
        now = "nobody leads" if row is None else f"{row.holder} leads, by term {row.token}"
        raise Fenced(f"term {term.token} of {term.holder} is over: {now}")
