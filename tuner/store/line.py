"""Who waits for a driver, and what owners have of the cluster already."""

from collections.abc import Sequence

from sqlalchemy import Connection, and_, func, select

from tuner.domain.line import Share, Waiting
from tuner.domain.money import Money
from tuner.domain.time import NS, Instant
from tuner.domain.window import Window
from tuner.store.codec import decode
from tuner.store.tables import accounts, job_tags, jobs, launches

OWNER = "owner"
OF_LATE_NS = 24 * 3600 * NS
AT_ONCE = 500
_WITH_WINDOW = '"$":"Window"'  # as the codec writes it; in a text its quotes would be escaped
BEGUN = and_(jobs.c.state == "running", jobs.c.running_since.is_not(None))
_TAGGED = and_(job_tags.c.job == jobs.c.id, job_tags.c.key == OWNER)
_OWNER = (jobs.c.project, job_tags.c.value)


def waiting(db: Connection, now: Instant) -> list[Waiting]:
    """Jobs that could be launched now and have no driver yet, or none any more; not those whose driver died in mid-run."""
    due = (launches.c.state == "wanted") & (launches.c.not_before <= now) & ~BEGUN
    query = (
        select(jobs.c.id, jobs.c.priority, launches.c.wanted_at, *_OWNER)
        .join(launches, launches.c.job == jobs.c.id)
        .outerjoin(job_tags, _TAGGED)
        .where(due)
    )
    return [
        Waiting(job, _owner(project, owner), priority, since, project)
        for job, priority, since, project, owner in db.execute(query)
    ]


def begun(db: Connection) -> set[str]:
    """Jobs that have, or lost, a driver in mid-run: their room is their own."""
    return set(db.execute(select(jobs.c.id).where(BEGUN)).scalars())


def windows(db: Connection, names: Sequence[str]) -> dict[str, Window]:
    """Of those of these jobs that have one. Thousands may be asked for at a start, of which few do: the others stay unread."""
    found: dict[str, Window] = {}
    for first in range(0, len(names), AT_ONCE):
        those = jobs.c.id.in_(names[first : first + AT_ONCE])
        query = select(jobs.c.id, jobs.c.spec).where(those, jobs.c.spec.contains(_WITH_WINDOW))
        found |= {row.id: decode(row.spec).window for row in db.execute(query)}
    return found


def shares(db: Connection, now: Instant) -> dict[str, Share]:
    """Of each owner the jobs that have drivers, and what was spent on those, and on what ended within a day."""
    found: dict[str, Share] = {}
    # One after the other: with an OR over two tables PostgreSQL may look through all jobs for each of them.
    for counts, which in (
        (1, launches.c.state.in_(("submitted", "running")) & jobs.c.ended_at.is_(None)),
        (1, (launches.c.state == "wanted") & BEGUN & jobs.c.ended_at.is_(None)),
        (0, jobs.c.ended_at > now - OF_LATE_NS),
    ):
        query = (
            select(func.count(), func.sum(accounts.c.posted_usd), *_OWNER)
            .join(launches, launches.c.job == jobs.c.id)
            .join(accounts, accounts.c.job == jobs.c.id)
            .outerjoin(job_tags, _TAGGED)
            .where(which)
            .group_by(*_OWNER)
        )
        for count, spent, project, owner in db.execute(query):
            before = found.get(_owner(project, owner), Share())
            more = Share(before.at_work + count * counts, before.spent + Money(int(spent)))
            found[_owner(project, owner)] = more
    return found


def _owner(project: str, owner: str | None) -> str:
    return f"{project}/{owner or ''}"
