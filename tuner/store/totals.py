"""Figures over all jobs and projects, for people who watch the service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from tuner.domain.money import Cost, Money
from tuner.store.tables import accounts, attempts, entries, jobs, trials


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts by state; `queue_wait_ns` is the sum over `started` jobs of the time from submission to the first driver."""

    jobs: Mapping[str, int]
    trials: Mapping[str, int]
    posted: Cost
    held: Cost
    by_kind: Mapping[str, Cost]
    started: int
    queue_wait_ns: int
    preemptions: int


def totals(db: Connection) -> Totals:
    """Over all jobs and projects."""
    a, e, j, t = accounts.c, entries.c, jobs.c, trials.c
    sums = db.execute(
        select(
            *(
                func.coalesce(func.sum(x), 0)
                for x in (a.posted_usd, a.posted_gpu_ms, a.held_usd, a.held_gpu_ms)
            )
        )
    ).one()
    kinds = select(e.kind, func.sum(e.usd), func.sum(e.gpu_ms)).where(e.kind.is_not(None)).group_by(e.kind)
    waits = select(func.count(), func.coalesce(func.sum(j.started_at - j.created_at), 0))
    started, waited = db.execute(waits.where(j.started_at.is_not(None))).one()
    taken = select(func.count()).select_from(attempts).where(attempts.c.end == "preempted")
    preempted = db.execute(taken).scalar_one()
    return Totals(
        _by_state(db, select(j.state, func.count()).group_by(j.state)),
        _by_state(db, select(t.state, func.count()).group_by(t.state)),
        Cost(Money(int(sums[0])), int(sums[1])),
        Cost(Money(int(sums[2])), int(sums[3])),
        {kind: Cost(Money(int(usd)), int(gpu)) for kind, usd, gpu in db.execute(kinds)},
        started,
        int(waited),
        preempted,
    )


def _by_state(db: Connection, query: Select[Any]) -> dict[str, int]:
    return {state: count for state, count in db.execute(query)}


def ping(db: Connection) -> None:
    db.execute(select(1))
