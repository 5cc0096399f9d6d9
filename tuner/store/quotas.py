"""What projects may have at once, and what they have."""

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select

from tuner.domain.quota import UNLIMITED, Quota
from tuner.domain.time import Instant
from tuner.store.line import BEGUN
from tuner.store.quota_tables import quotas
from tuner.store.tables import jobs, launches


def get(db: Connection, project: str) -> Quota:
    return of_projects(db, [project]).get(project, UNLIMITED)


def of_projects(db: Connection, names: Collection[str] | None = None) -> dict[str, Quota]:
    """Of those that have one; None: of all."""
    query = select(quotas.c.project, quotas.c.concurrent_jobs, quotas.c.concurrent_trials)
    if names is not None:
        query = query.where(quotas.c.project.in_(names))
    return {project: Quota(at_once, trials) for project, at_once, trials in db.execute(query)}


def put(db: Connection, project: str, new: Quota, at: Instant) -> None:
    """In the place of the one before."""
    db.execute(delete(quotas).where(quotas.c.project == project))
    values = {"concurrent_jobs": new.concurrent_jobs, "concurrent_trials": new.concurrent_trials}
    if new != UNLIMITED:
        db.execute(insert(quotas).values(project=project, updated_at=at, **values))


def at_work(db: Connection, project: str) -> list[int]:
    """Of each of its jobs that has a driver, or lost one in mid-run, how many trials it runs at once."""
    query = select(jobs.c.concurrency).join(launches, launches.c.job == jobs.c.id)
    mine = (jobs.c.project == project) & jobs.c.ended_at.is_(None)
    has_driver = launches.c.state.in_(("submitted", "running"))
    is_lost = (launches.c.state == "wanted") & BEGUN
    return list(db.execute(query.where(mine & (has_driver | is_lost))).scalars())
