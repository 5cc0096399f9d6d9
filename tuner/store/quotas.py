"""Quotas of projects, and what each project uses of them."""

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select

from tuner.domain.quota import UNLIMITED, Quota
from tuner.domain.time import Instant
from tuner.store.queue import BEGUN
from tuner.store.quota_tables import quotas
from tuner.store.tables import jobs, launches


def get(db: Connection, project: str) -> Quota:
    return of_projects(db, [project]).get(project, UNLIMITED)


def of_projects(db: Connection, names: Collection[str] | None = None) -> dict[str, Quota]:
    """Return the quotas of these projects, or of all if None. Projects without a quota are left out."""
    query = select(quotas.c.project, quotas.c.concurrent_jobs, quotas.c.concurrent_trials)
    if names is not None:
        query = query.where(quotas.c.project.in_(names))
    return {project: Quota(at_once, trials) for project, at_once, trials in db.execute(query)}


def put(db: Connection, project: str, new: Quota, at: Instant) -> None:
    """Replace the project's quota."""
    db.execute(delete(quotas).where(quotas.c.project == project))
    values = {"concurrent_jobs": new.concurrent_jobs, "concurrent_trials": new.concurrent_trials}
    if new != UNLIMITED:
        db.execute(insert(quotas).values(project=project, updated_at=at, **values))


def at_work(db: Connection, project: str) -> list[int]:
    """Return the concurrency (trials at once) of each of the project's jobs that has a driver or whose driver died while it ran."""
    query = select(jobs.c.concurrency).join(launches, launches.c.job == jobs.c.id)
    mine = (jobs.c.project == project) & jobs.c.ended_at.is_(None)
    has_driver = launches.c.state.in_(("submitted", "running"))
    is_lost = (launches.c.state == "wanted") & BEGUN
    return list(db.execute(query.where(mine & (has_driver | is_lost))).scalars())
