"""Which report of a job is best within limits on what it costs, read from the job's front."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, select

from tuner.domain.money import Money
from tuner.domain.objective import Mode
from tuner.store.answers import Reached, reached, with_origin
from tuner.store.front import loss_of
from tuner.store.tables import front, reports


@dataclass(frozen=True, slots=True)
class Limits:
    """What a configuration may cost to train; None: any amount."""

    usd: Money | None = None
    gpu_ms: int | None = None
    duration_ns: int | None = None

    def allow(self, usd: Money, gpu_ms: int, duration_ns: int) -> bool:
        return (
            (self.usd is None or usd <= self.usd)
            and (self.gpu_ms is None or gpu_ms <= self.gpu_ms)
            and (self.duration_ns is None or duration_ns <= self.duration_ns)
        )

    def conditions(self) -> list[ColumnElement[bool]]:
        f = front.c
        found: list[ColumnElement[bool]] = []
        if self.usd is not None:
            found.append(f.usd <= self.usd.micro_usd)
        if self.gpu_ms is not None:
            found.append(f.gpu_ms <= self.gpu_ms)
        if self.duration_ns is not None:
            found.append(f.duration_ns <= self.duration_ns)
        return found


ANY = Limits()
BEST_FIRST = (front.c.loss, front.c.usd, front.c.duration_ns, front.c.gpu_ms, front.c.seq)
CHEAPEST_FIRST = (front.c.usd, front.c.loss, front.c.duration_ns, front.c.gpu_ms, front.c.seq)


def best(db: Connection, job: str, limits: Limits = ANY) -> Reached | None:
    """The best metric that a trial reached within the limits; of equal ones the cheapest, the fastest, the first."""
    query = _points(job).where(*limits.conditions()).order_by(*BEST_FIRST)
    return _first(db, job, query)


def next_better(db: Connection, job: str, mode: Mode, than: float) -> Reached | None:
    """The cheapest point with a better metric than this."""
    query = _points(job).where(front.c.loss < loss_of(mode, than)).order_by(*CHEAPEST_FIRST)
    return _first(db, job, query)


def cheapest(db: Connection, job: str) -> Reached | None:
    """The point that costs least, of those that have a metric."""
    f = front.c
    return _first(db, job, _points(job).order_by(f.usd, f.gpu_ms, f.duration_ns, f.loss, f.seq))


def points(db: Connection, job: str) -> list[Row[Any]]:
    """All of the front, cheapest first: trial, step, value, loss, usd, gpu_ms, duration_ns, attempt."""
    f, r = front.c, reports.c
    query = (
        select(f.trial, f.step, r.value, f.loss, f.usd, f.gpu_ms, f.duration_ns, f.seq, r.attempt)
        .join(reports, _same_report())
        .where(f.job == job)
    )
    return list(db.execute(query.order_by(*CHEAPEST_FIRST)))


def pareto(db: Connection, job: str) -> list[Reached]:
    """Points that no other beats on both dollars and metric, cheapest first."""
    found: list[Row[Any]] = []
    least = math.inf
    for row in db.execute(_points(job).order_by(*CHEAPEST_FIRST)):
        if row.loss < least:
            found.append(row)
            least = row.loss
    return whole(db, job, found)


def at(db: Connection, job: str, trial: str, step: int) -> Reached:
    """One report, with all that is known of it."""
    r = reports.c
    row = db.execute(select(reports).where(r.job == job, r.trial == trial, r.step == step)).one()
    return with_origin(db, job, reached(row))


def whole(db: Connection, job: str, rows: Sequence[Row[Any]]) -> list[Reached]:
    return [at(db, job, row.trial, row.step) for row in rows]


def _points(job: str) -> Select[Any]:
    return select(front).where(front.c.job == job)


def _first(db: Connection, job: str, query: Select[Any]) -> Reached | None:
    row = db.execute(query.limit(1)).first()
    return None if row is None else at(db, job, row.trial, row.step)


def _same_report() -> ColumnElement[bool]:
    f, r = front.c, reports.c
    return (r.job == f.job) & (r.trial == f.trial) & (r.step == f.step)
