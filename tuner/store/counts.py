"""Numbers of trials by state, of steps, and of ended attempts by outcome, over all jobs or over some of them.

A caller that needs current numbers calls `of_all` once, and after that `of_jobs` for the jobs that have changed.
"""

from collections import Counter
from collections.abc import Collection
from itertools import islice

from sqlalchemy import Connection, func, select

from tuner.domain.time import Instant
from tuner.store.tables import attempts, jobs, trials

Counts = Counter[tuple[str, ...]]
"""Counts by `("trials", state)`, `("steps",)` and, for ended attempts, `("ends", end, cause, market)`. An unknown cause is ""."""
PAGE = 500


def of_all(db: Connection) -> Counts:
    """Return the counts over all jobs. It reads only indexes."""
    t, a = trials.c, attempts.c
    found: Counts = Counter()
    for state, count, steps in db.execute(select(t.state, func.count(), func.sum(t.steps)).group_by(t.state)):
        found["trials", state] += count
        found["steps",] += int(steps)
    ends = select(a.end, a.cause, a.market, func.count()).where(a.end.is_not(None))
    for end, cause, market, count in db.execute(ends.group_by(a.end, a.cause, a.market)):
        found["ends", end, cause or "", market] += count
    return found


def of_jobs(db: Connection, names: Collection[str]) -> dict[str, tuple[Counts, dict[int, int]]]:
    """Return each job's counts, and how many of its trials have each number of steps."""
    found: dict[str, tuple[Counts, dict[int, int]]] = {name: (Counter(), {}) for name in names}
    left = iter(names)
    while page := list(islice(left, PAGE)):
        _count_trials(db, page, found)
        _count_ends(db, page, found)
    return found


def _count_trials(db: Connection, page: list[str], found: dict[str, tuple[Counts, dict[int, int]]]) -> None:
    t = trials.c
    query = select(t.job, t.state, t.steps, func.count()).where(t.job.in_(page))
    for job, state, steps, count in db.execute(query.group_by(t.job, t.state, t.steps)):
        counts, reached = found[job]
        counts["trials", state] += count
        counts["steps",] += steps * count
        reached[steps] = reached.get(steps, 0) + count


def _count_ends(db: Connection, page: list[str], found: dict[str, tuple[Counts, dict[int, int]]]) -> None:
    a = attempts.c
    query = select(a.job, a.end, a.cause, a.market, func.count()).where(a.job.in_(page), a.end.is_not(None))
    for job, end, cause, market, count in db.execute(query.group_by(a.job, a.end, a.cause, a.market)):
        found[job][0]["ends", end, cause or "", market] += count


def begun(db: Connection) -> list[str]:
    """Return the ids of the jobs that have started and are running or paused."""
    j = jobs.c
    query = select(j.id).where(j.state.in_(("running", "paused")), j.started_at.is_not(None))
    return list(db.execute(query).scalars())


def all_ended(db: Connection) -> set[str]:
    return set(db.execute(select(jobs.c.id).where(jobs.c.ended_at.is_not(None))).scalars())


def ended_since(db: Connection, at: Instant) -> dict[str, Instant]:
    """Return the jobs that ended at or after `at`, with the time."""
    j = jobs.c
    return {job: ended for job, ended in db.execute(select(j.id, j.ended_at).where(j.ended_at >= at))}
