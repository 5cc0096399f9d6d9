"""The queue and the quotas: which jobs wait for a driver, what each owner uses of the cluster, and the limits of projects.

The owner of a job is its project together with the value of its tag `owner`.
"""

import threading
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, and_, delete, func, insert, select

from tuner.database.codec import contains_type, decode
from tuner.database.tables import exports, job_tags, jobs, launches, quotas
from tuner.domain.budget import UNLIMITED, Quota
from tuner.domain.calendar import Window
from tuner.domain.fair_share import Share, Waiting, line_up
from tuner.domain.money import Money
from tuner.domain.time import NS, Instant
from tuner.ledger.readable import accounts
from tuner.store.exports import LIVE
from tuner.store.launches import BEGUN, HAS_DRIVER, IS_LIVE, due


def get(db: Connection, project: str) -> Quota:
    return of_projects(db, [project]).get(project, UNLIMITED)


def of_projects(db: Connection, names: Collection[str] | None = None) -> dict[str, Quota]:
    """Return the quotas of these projects, or of all projects if `names` is None. Projects without a quota are left out."""
    query = select(quotas.c.project, quotas.c.concurrent_jobs, quotas.c.concurrent_trials)
    if names is not None:
        query = query.where(quotas.c.project.in_(names))
    return {project: Quota(at_once, trials) for project, at_once, trials in db.execute(query)}


def put(db: Connection, project: str, new: Quota, at: Instant) -> None:
    """Replace the project's quota. `UNLIMITED` removes it."""
    db.execute(delete(quotas).where(quotas.c.project == project))
    values = {"concurrent_jobs": new.concurrent_jobs, "concurrent_trials": new.concurrent_trials}
    if new != UNLIMITED:
        db.execute(insert(quotas).values(project=project, updated_at=at, **values))


def at_work(db: Connection, project: str) -> list[int]:
    """Return how many trials may run at once, for each job that counts against the project's quota.

    These are the jobs that have a driver, and the jobs whose driver died while they ran. A job with a submitted export counts as a job
    with one trial.
    """
    return list(concurrency_at_work(db, project).values())


def concurrency_at_work(db: Connection, project: str) -> dict[str, int]:
    """Return the same numbers as `at_work`, by the job's id."""
    query = select(jobs.c.id, jobs.c.concurrency).join(launches, launches.c.job == jobs.c.id)
    mine = (jobs.c.project == project) & jobs.c.ended_at.is_(None)
    is_lost = (launches.c.state == "wanted") & BEGUN
    # A job with an unfinished export has no driver.
    exporting = select(exports.c.job).where(
        exports.c.project == project, exports.c.state.in_(LIVE), exports.c.submitted_at.is_not(None)
    )
    return {
        **dict.fromkeys(db.execute(exporting).scalars(), 1),
        **{job: concurrency for job, concurrency in db.execute(query.where(mine & (HAS_DRIVER | is_lost)))},
    }


def concurrency_of_unfinished(db: Connection) -> dict[str, int]:
    """Return how many trials may run at once, for each job whose launch has not ended, by the job's id."""
    query = select(jobs.c.id, jobs.c.concurrency).join(launches, launches.c.job == jobs.c.id)
    return {job: concurrency for job, concurrency in db.execute(query.where(IS_LIVE))}


OWNER = "owner"
RECENT_NS = 24 * 3600 * NS
AT_ONCE = 500
_TAGGED = and_(job_tags.c.job == jobs.c.id, job_tags.c.key == OWNER)
_OWNER = (jobs.c.project, job_tags.c.value)


def waiting(db: Connection, now: Instant) -> list[Waiting]:
    """Return the jobs that wait for a driver and whose launch is due.

    A job whose driver died while the job was running is left out, because it gets its next driver without waiting in the queue.
    """
    query = (
        select(jobs.c.id, jobs.c.priority, launches.c.wanted_at, *_OWNER)
        .join(launches, launches.c.job == jobs.c.id)
        .outerjoin(job_tags, _TAGGED)
        .where(due(now), ~BEGUN)
    )
    return [
        Waiting(job, _owner(project, owner), priority, since, project)
        for job, priority, since, project, owner in db.execute(query)
    ]


def begun(db: Connection) -> set[str]:
    """Return the running jobs whose driver has started.

    A job whose driver has died since is included, because it gets its next driver without waiting in the queue.
    """
    return set(db.execute(select(jobs.c.id).where(BEGUN)).scalars())


def windows(db: Connection, names: Sequence[str]) -> dict[str, Window]:
    """Return the daily time windows in which these jobs may run, by job. A job without a window is left out.

    Only specs with a window are read, because at its start the service calls this for thousands of jobs, of which few have a window.
    """
    by_job: dict[str, Window] = {}
    for first in range(0, len(names), AT_ONCE):
        those = jobs.c.id.in_(names[first : first + AT_ONCE])
        query = select(jobs.c.id, jobs.c.spec).where(those, contains_type(jobs.c.spec, Window))
        by_job |= {row.id: decode(row.spec).window for row in db.execute(query)}
    return by_job


def shares(db: Connection, now: Instant) -> dict[str, Share]:
    """Return the use of the cluster by each owner: the number of running jobs, and the recent spend. Keys are `project/owner`.

    A job counts as running if it has a driver, or if its driver died while the job was running. The recent spend is the total spend of
    the running jobs and of the jobs that ended in the last 24 hours.
    """
    by_owner: dict[str, Share] = {}
    # Three queries, because with an OR over two tables PostgreSQL may scan all jobs for each row.
    for counts, which in (
        (1, HAS_DRIVER & jobs.c.ended_at.is_(None)),
        (1, (launches.c.state == "wanted") & BEGUN & jobs.c.ended_at.is_(None)),
        (0, jobs.c.ended_at > now - RECENT_NS),
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
            before = by_owner.get(_owner(project, owner), Share())
            more = Share(before.at_work + count * counts, before.spent + Money(int(spent)), project)
            by_owner[_owner(project, owner)] = more
    return by_owner


def in_fair_order(db: Connection, now: Instant) -> list[Waiting]:
    """Return the waiting jobs that may be launched now, in the order of the queue."""
    due = waiting(db, now)
    return line_up(due, shares(db, now) if len(due) > 1 else {})


class QueuePlaces:
    """The place of each waiting job in the queue, for views of jobs. Thread-safe.

    The places are read at most once per `kept_ns`, because everybody who watches a waiting job asks for them a few times per second.
    With 5,000 waiting jobs, reading them takes 20 ms. What the controller launches does not depend on them.
    """

    def __init__(self, kept_ns: int = NS) -> None:
        self._kept_ns = kept_ns
        self._lock = threading.Lock()
        self._read_at = Instant(0)
        self._places: dict[str, int] = {}

    def of(self, db: Connection, wanted_at: Mapping[str, Instant], now: Instant) -> dict[str, int]:
        """Return the place of each waiting job, from 1. The places may be up to `kept_ns` old.

        Args:
            wanted_at: When the launches of the jobs in question were ordered. A job whose launch has just been ordered always has
                its place.
        """
        with self._lock:
            is_new = any(
                job not in self._places and at > self._read_at - self._kept_ns
                for job, at in wanted_at.items()
            )
            if is_new or not 0 <= now - self._read_at < self._kept_ns:
                order = in_fair_order(db, now)
                self._places = {waiting.job: place for place, waiting in enumerate(order, start=1)}
                self._read_at = now
            return self._places

    def forget(self) -> None:
        """Read the places again when they are asked for next. Call this after a change of a job's priority or tags."""
        with self._lock:
            self._read_at = Instant(0)


def _owner(project: str, owner: str | None) -> str:
    return f"{project}/{owner or ''}"
