"""Figures over all jobs and projects, for people who watch the service. No query reads more rows the more was reported: what grows
with the record is counted in indexes, or from the last entry that was counted on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, case, func, literal_column, or_, select

from tuner.domain.budget import UNLIMITED_GPU_MS, UNLIMITED_MICRO_USD
from tuner.domain.events import Reported
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.time import Instant
from tuner.store.budget_tables import deliveries
from tuner.store.codec import decode
from tuner.store.tables import (
    accounts,
    attempt_usage,
    attempts,
    entries,
    events,
    front,
    holds,
    jobs,
    launches,
    reports,
)

OPEN = ("queued", "running", "paused")
NEARLY = 9, 10  # of a job's budget

Posted = dict[tuple[str, str, str], Cost]
"""By entry (`post`, `correct`), kind of cost and market."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts by state. `open` sums the accounts of jobs that have not ended, of
    which `nearly_spent` run and have spent nine tenths. `queue_wait_ns` is the sum over `started` jobs of the time from submission to the first driver;
    `waiting` jobs are due and have none, the first since `waiting_since`. `silent_since` is when the driver was last heard of that has been silent for
    longest, `undelivered_since` when the oldest webhook that waits was
    due first."""

    jobs: Mapping[str, int]
    open: Account
    nearly_spent: int
    started: int
    queue_wait_ns: int
    waiting: int
    waiting_since: Instant | None
    silent_since: Instant | None
    deliveries: Mapping[str, int]
    undelivered_since: Instant | None


@dataclass(frozen=True, slots=True)
class Running:
    """How one running job stands. `reported_at` is the time of its last report and `step_ns` its mean time a step (None: there is none yet); `improved_spent` what
    the job had spent when its best was reported. `used` are measured sums of the attempts under way: `cpu_ns` of `cpu_wall_ns`,
    `gpu_percent` of `gpu_samples`."""

    job: str
    running_since: Instant
    account: Account
    reported_at: Instant | None
    step_ns: int | None
    improved_spent: Money
    used: Mapping[str, int]


def totals(db: Connection, now: Instant) -> Totals:
    """Over all jobs and projects."""
    j, w = jobs.c, launches.c
    wait = j.started_at - j.created_at  # by two machines' clocks
    started, waited = db.execute(
        select(func.count(), func.coalesce(func.sum(case((wait > 0, wait), else_=0)), 0)).where(
            j.started_at.is_not(None)
        )
    ).one()
    opened, nearly = _open(db)
    begun = and_(j.state == "running", j.running_since.is_not(None))
    waiting, since = db.execute(
        select(func.count(), func.min(w.wanted_at))
        .join(jobs, j.id == w.job)
        .where(w.state == "wanted", w.not_before <= now, ~begun)
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
    """Of jobs that have not ended: the sum of their accounts, and how many of them are nearly spent. A kind of budget that a job
    does not have counts neither as limit nor as posted."""
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
    """By id."""
    a, r, f, e = accounts.c, reports.c, front.c, events.c
    # By indexes: the last report of a job, and the first of its best.
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
    """By job, of running ones. Each attempt under way has an open hold."""
    h, u = holds.c, attempt_usage.c
    same = and_(u.job == h.job, u.trial == h.trial, u.attempt == h.attempt)
    measured = u.cpu_ns.is_not(None)
    names = ("cpu_ns", "cpu_wall_ns", "gpu_percent", "gpu_samples")
    sums = (u.cpu_ns, case((measured, u.wall_ns), else_=0), u.gpu_percent, u.gpu_samples)
    query = (
        select(h.job, *(func.coalesce(func.sum(one), 0) for one in sums))
        .select_from(jobs.join(holds, h.job == jobs.c.id).join(attempt_usage, same))
        .where(jobs.c.state == "running", h.state == "open")
        .group_by(h.job)
    )
    return {job: dict(zip(names, map(int, found), strict=True)) for job, *found in db.execute(query)}


def posted_between(db: Connection, after: int, last: int) -> Posted:
    """Sums of the entries behind one sequence number and up to another. An attempt's market is that of its machine."""
    e, a = entries.c, attempts.c
    same = and_(a.job == e.job, a.trial == e.trial, a.attempt == e.attempt)
    # Written out, so that PostgreSQL knows the column it groups by for the one it selects.
    market = func.coalesce(a.market, literal_column("'on_demand'"))
    query = (
        select(e.entry, e.kind, market, func.sum(e.usd), func.sum(e.gpu_ms))
        .select_from(entries.outerjoin(attempts, same))
        .where(e.seq > after, e.seq <= last, e.kind.is_not(None))
        .group_by(e.entry, e.kind, market)
    )
    return {
        (entry, kind, market): Cost(Money(int(usd)), int(gpu_ms))
        for entry, kind, market, usd, gpu_ms in db.execute(query)
    }


def newest_entry(db: Connection) -> int:
    """0 where there is none yet."""
    return db.execute(select(func.max(entries.c.seq))).scalar() or 0


def add(sums: Posted, more: Posted) -> None:
    for key, cost in more.items():
        sums[key] = sums.get(key, FREE) + cost


def _by_state(db: Connection, query: Select[Any]) -> dict[str, int]:
    return {state: count for state, count in db.execute(query)}


def ping(db: Connection) -> None:
    db.execute(select(1))
