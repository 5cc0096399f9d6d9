"""Counts and sums over all jobs and projects, for monitoring the service.

A caller that needs current counts calls `of_all` once, and later `of_jobs` for the jobs that have changed.

No query reads all reports. Jobs, trials and attempts are counted from indexes. Sums of ledger entries are kept by the caller, who
adds the entries after the last one that was counted (`posted_between`).
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, and_, case, func, literal_column, or_, select

from tuner.database.codec import decode
from tuner.database.tables import (
    attempt_usage,
    attempts,
    deliveries,
    events,
    front,
    jobs,
    launches,
    reports,
    same_attempt,
    trials,
)
from tuner.domain.budget import UNLIMITED_GPU_MS, UNLIMITED_MICRO_USD
from tuner.domain.events import Reported
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.time import Instant
from tuner.ledger.readable import accounts, entries, holds
from tuner.store.launches import BEGUN, due

Counts = Counter[tuple[str, ...]]
"""Numbers of trials by `("trials", state)`, of steps by `("steps",)`, and of ended attempts by `("ends", outcome, cause, market)`.

An unknown cause is the empty string.
"""
PAGE = 500


def of_all(db: Connection) -> Counts:
    """Return the counts over all jobs. The queries read only indexes."""
    t, a = trials.c, attempts.c
    counts: Counts = Counter()
    for state, count, steps in db.execute(select(t.state, func.count(), func.sum(t.steps)).group_by(t.state)):
        counts["trials", state] += count
        counts["steps",] += int(steps)
    ends = select(a.end, a.cause, a.market, func.count()).where(a.end.is_not(None))
    for end, cause, market, count in db.execute(ends.group_by(a.end, a.cause, a.market)):
        counts["ends", end, cause or "", market] += count
    return counts


def of_jobs(db: Connection, names: Collection[str]) -> dict[str, tuple[Counts, dict[int, int]]]:
    """Return, for each of these jobs, its counts, and the number of its trials by the number of steps that they have reported."""
    t, a = trials.c, attempts.c
    by_job: dict[str, tuple[Counts, dict[int, int]]] = {name: (Counter(), {}) for name in names}
    left = iter(names)
    while page := list(islice(left, PAGE)):
        query = select(t.job, t.state, t.steps, func.count()).where(t.job.in_(page))
        for job, state, steps, count in db.execute(query.group_by(t.job, t.state, t.steps)):
            counts, reached = by_job[job]
            counts["trials", state] += count
            counts["steps",] += steps * count
            reached[steps] = reached.get(steps, 0) + count
        ends = select(a.job, a.end, a.cause, a.market, func.count())
        ends = ends.where(a.job.in_(page), a.end.is_not(None)).group_by(a.job, a.end, a.cause, a.market)
        for job, end, cause, market, count in db.execute(ends):
            by_job[job][0]["ends", end, cause or "", market] += count
    return by_job


def started_and_open(db: Connection) -> list[str]:
    """Return the ids of the jobs that have started and are running or paused."""
    j = jobs.c
    query = select(j.id).where(j.state.in_(("running", "paused")), j.started_at.is_not(None))
    return list(db.execute(query).scalars())


def all_ended(db: Connection) -> set[str]:
    return set(db.execute(select(jobs.c.id).where(jobs.c.ended_at.is_not(None))).scalars())


def ended_since(db: Connection, at: Instant) -> dict[str, Instant]:
    """Return the jobs that ended at or after `at`, each with the time of its end."""
    j = jobs.c
    return {job: ended for job, ended in db.execute(select(j.id, j.ended_at).where(j.ended_at >= at))}


OPEN = ("queued", "running", "paused")
NEARLY = 9, 10  # a budget counts as nearly spent from nine tenths on

Posted = dict[tuple[str, str, str], Cost]
"""Sums of ledger entries by entry type (`post` or `correct`), cost kind and market."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts and sums over all jobs and projects."""

    jobs: Mapping[str, int]  #: Number of jobs by state.
    open: Account  #: Sum of the accounts of the jobs that have not ended.
    nearly_spent: int  #: Number of running jobs that have spent at least nine tenths of their budget.
    started: int  #: Number of jobs that ever had a driver.
    queue_wait_ns: int  #: Time from submission to the first driver, summed over the `started` jobs.
    #: Number of jobs that are due to be launched, without those whose driver died while they ran.
    waiting: int
    #: When the launch of the job that has waited longest was ordered. None if no job waits.
    waiting_since: Instant | None
    #: Time of the last heartbeat of the running driver that has been silent longest. None if no driver runs.
    silent_since: Instant | None
    deliveries: Mapping[str, int]  #: Number of webhook deliveries by state.
    undelivered_since: (
        Instant | None
    )  #: Time at which the oldest pending delivery was created. None if none is pending.


@dataclass(frozen=True, slots=True)
class Running:
    """The state of one running job."""

    job: str
    running_since: Instant
    account: Account
    reported_at: Instant | None  #: Time of the last report. None if there is none yet.
    #: Mean time per step of the trial that reported last. None if there is no report yet.
    step_ns: int | None
    improved_spent: Money  #: The job's spend when its best metric was reported.
    #: Sums over the running attempts: processor time `cpu_ns` within the wall time `cpu_wall_ns`, and `gpu_percent` of `gpu_samples` samples.
    used: Mapping[str, int]


def totals(db: Connection, now: Instant) -> Totals:
    """Return the totals over all jobs and projects."""
    j, w = jobs.c, launches.c
    # A negative wait counts as 0. It occurs because the two times come from the clocks of two machines.
    wait = j.started_at - j.created_at
    started, waited = db.execute(
        select(func.count(), func.coalesce(func.sum(case((wait > 0, wait), else_=0)), 0)).where(
            j.started_at.is_not(None)
        )
    ).one()
    opened, nearly = _open(db)
    waiting, since = db.execute(
        select(func.count(), func.min(w.wanted_at)).join(jobs, j.id == w.job).where(due(now), ~BEGUN)
    ).one()
    silent = select(func.min(func.coalesce(w.heartbeat_at, w.submitted_at))).where(w.state == "running")
    d = deliveries.c
    undelivered = select(func.min(d.created_at)).where(d.state == "pending")
    return Totals(
        _by_state(db, select(j.state, func.count()).group_by(j.state)),
        opened,
        nearly,
        started,
        int(waited),
        waiting,
        since,
        db.execute(silent).scalar(),
        _by_state(db, select(d.state, func.count()).group_by(d.state)),
        db.execute(undelivered).scalar(),
    )


def _open(db: Connection) -> tuple[Account, int]:
    """Return the sum of the accounts of all jobs that have not ended, and the number of running jobs with a nearly spent budget.

    A unit (dollars or GPU time) that a job's budget does not limit adds nothing to the sum of the limits and to that of the posted
    amounts.
    """
    a = accounts.c
    part, whole = NEARLY
    usd, gpu = a.limit_usd < UNLIMITED_MICRO_USD, a.limit_gpu_ms < UNLIMITED_GPU_MS
    spent = or_(
        and_(usd, a.posted_usd * whole >= a.limit_usd * part),
        and_(gpu, a.posted_gpu_ms * whole >= a.limit_gpu_ms * part),
    )
    near = and_(jobs.c.state == "running", spent)
    amounts = (
        case((usd, a.limit_usd), else_=0),
        case((gpu, a.limit_gpu_ms), else_=0),
        case((usd, a.posted_usd), else_=0),
        case((gpu, a.posted_gpu_ms), else_=0),
        a.held_usd,
        a.held_gpu_ms,
        case((near, 1), else_=0),
    )
    row = db.execute(
        select(*(func.coalesce(func.sum(amount), 0) for amount in amounts))
        .join(jobs, jobs.c.id == a.job)
        .where(jobs.c.state.in_(OPEN))
    ).one()
    pairs = [Cost(Money(int(row[at])), int(row[at + 1])) for at in (0, 2, 4)]
    return Account(*pairs), int(row[6])


def running(db: Connection) -> list[Running]:
    """Return all running jobs, by id."""
    a, r, f, e = accounts.c, reports.c, front.c, events.c
    # The event numbers of the job's last report, and of the oldest of its equally best reports. An index answers each of these subqueries.
    last = select(func.max(r.seq)).where(r.job == a.job).correlate(accounts).scalar_subquery()
    best = (
        select(f.seq)
        .where(f.job == a.job)
        .order_by(f.loss, f.seq)
        .limit(1)
        .correlate(accounts)
        .scalar_subquery()
    )
    query = (
        select(accounts, jobs.c.running_since, r.at, r.step, r.duration_ns, e.body)
        .select_from(
            accounts.join(jobs, jobs.c.id == a.job)
            .outerjoin(reports, (r.job == a.job) & (r.seq == last))
            .outerjoin(events, (e.job == a.job) & (e.seq == best))
        )
        .where(jobs.c.state == "running", jobs.c.running_since.is_not(None))
        .order_by(a.job)
    )
    used = _used(db)
    return [_running(row._asdict(), used) for row in db.execute(query).all()]


def _running(row: Mapping[str, Any], used: Mapping[str, Mapping[str, int]]) -> Running:
    event = None if row["body"] is None else decode(row["body"])
    return Running(
        row["job"],
        row["running_since"],
        Account(*(Cost(Money(row[f"{of}_usd"]), row[f"{of}_gpu_ms"]) for of in ("limit", "posted", "held"))),
        row["at"],
        None if row["at"] is None else row["duration_ns"] // row["step"],
        event.spent if isinstance(event, Reported) else Money(0),
        used.get(row["job"], {}),
    )


def _used(db: Connection) -> dict[str, dict[str, int]]:
    """Return the measured usage of running jobs, by job, summed over their running attempts (the attempts with an open hold)."""
    h, u = holds.c, attempt_usage.c
    measured = u.cpu_ns.is_not(None)
    names = ("cpu_ns", "cpu_wall_ns", "gpu_percent", "gpu_samples")
    sums = (u.cpu_ns, case((measured, u.wall_ns), else_=0), u.gpu_percent, u.gpu_samples)
    query = (
        select(h.job, *(func.coalesce(func.sum(column), 0) for column in sums))
        .select_from(
            jobs.join(holds, h.job == jobs.c.id).join(attempt_usage, same_attempt(attempt_usage, holds))
        )
        .where(jobs.c.state == "running", h.state == "open")
        .group_by(h.job)
    )
    return {job: dict(zip(names, map(int, amounts), strict=True)) for job, *amounts in db.execute(query)}


def posted_between(db: Connection, after: int, last: int) -> Posted:
    """Return the sums of the ledger entries with sequence numbers above `after` and up to `last`.

    The market is that of the attempt's machine. If no attempt is recorded for an entry, it counts as `on_demand`.
    """
    e, a = entries.c, attempts.c
    # This is a literal, not a parameter, so that PostgreSQL recognises the grouped column as the selected one.
    market = func.coalesce(a.market, literal_column("'on_demand'"))
    query = (
        select(e.entry, e.kind, market, func.sum(e.usd), func.sum(e.gpu_ms))
        .select_from(entries.outerjoin(attempts, same_attempt(attempts, entries)))
        .where(e.seq > after, e.seq <= last, e.kind.is_not(None))
        .group_by(e.entry, e.kind, market)
    )
    return {
        (entry, kind, market): Cost(Money(int(usd)), int(gpu_ms))
        for entry, kind, market, usd, gpu_ms in db.execute(query)
    }


def newest_entry(db: Connection) -> int:
    """Return the sequence number of the newest ledger entry, or 0 if there is none."""
    return db.execute(select(func.max(entries.c.seq))).scalar() or 0


def add(sums: Posted, more: Posted) -> None:
    for key, cost in more.items():
        sums[key] = sums.get(key, FREE) + cost


def _by_state(db: Connection, query: Select[Any]) -> dict[str, int]:
    return {state: count for state, count in db.execute(query)}


def ping(db: Connection) -> None:
    db.execute(select(1))
