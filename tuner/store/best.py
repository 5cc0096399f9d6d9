"""Which report of a job is best within limits on what it costs, read from the job's front."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, select, tuple_

from tuner.domain.money import Money
from tuner.domain.objective import Mode
from tuner.store.answers import Reached, reached
from tuner.store.front import loss_of
from tuner.store.tables import checkpoints, front, jobs, reports, trials


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


def best_of_each(db: Connection, names: Collection[str]) -> dict[str, Reached]:
    """As `best` of each of these jobs, without limits; one without a metric is left out."""
    f, r, t, c = front.c, reports.c, trials.c, checkpoints.c
    trial, step = (
        select(column)
        .where(f.job == jobs.c.id)
        .order_by(*BEST_FIRST, f.trial, f.step)
        .limit(1)
        .scalar_subquery()
        for column in (f.trial, f.step)
    )
    rows = db.execute(select(jobs.c.id, trial, step).where(jobs.c.id.in_(names)))
    places = [tuple(row) for row in rows if row[1] is not None]
    query = (
        select(reports, t.config, c.uri)
        .join(trials, (t.job == r.job) & (t.trial == r.trial))
        .outerjoin(checkpoints, (c.job == r.job) & (c.trial == r.trial) & (c.step == r.step))
        .where(tuple_(r.job, r.trial, r.step).in_(places))
    )
    return {row.job: _in_whole(row) for row in db.execute(query)} if places else {}


def next_better(db: Connection, job: str, mode: Mode, than: float) -> Reached | None:
    """The cheapest point with a better metric than this."""
    query = _points(job).where(front.c.loss < loss_of(mode, than)).order_by(*CHEAPEST_FIRST)
    return _first(db, job, query)


def cheapest(db: Connection, job: str) -> Reached | None:
    """The point that costs least, of those that have a metric."""
    f = front.c
    return _first(db, job, _points(job).order_by(f.usd, f.gpu_ms, f.duration_ns, f.loss, f.seq))


def points(db: Connection, job: str) -> list[Row[Any]]:
    """All of the front, cheapest first: trial, step, loss, usd, gpu_ms, duration_ns, seq."""
    return list(db.execute(_points(job).order_by(*CHEAPEST_FIRST)))


def pareto(db: Connection, job: str) -> list[Reached]:
    """Points that no other beats on both dollars and metric, cheapest first."""
    found: list[Row[Any]] = []
    least = math.inf
    for row in points(db, job):
        if row.loss < least:
            found.append(row)
            least = row.loss
    return whole(db, job, [(row.trial, row.step) for row in found])


def whole(db: Connection, job: str, places: Sequence[tuple[str, int]]) -> list[Reached]:
    """These points of the front, with all that is known of them, in this order."""
    f, r, t, c = front.c, reports.c, trials.c, checkpoints.c
    query = (
        select(reports, t.config, c.uri)
        .select_from(front)
        .join(reports, (r.job == f.job) & (r.trial == f.trial) & (r.step == f.step))
        .join(trials, (t.job == f.job) & (t.trial == f.trial))
        .outerjoin(checkpoints, (c.job == f.job) & (c.trial == f.trial) & (c.step == f.step))
        .where(f.job == job)
    )
    if len(places) == 1:
        query = query.where(f.trial == places[0][0], f.step == places[0][1])
    wanted = set(places)
    found = {
        (row.trial, row.step): _in_whole(row) for row in db.execute(query) if (row.trial, row.step) in wanted
    }
    return [found[place] for place in places]


def _in_whole(row: Row[Any]) -> Reached:
    return replace(reached(row), config=json.loads(row.config), checkpoint_uri=row.uri)


def _points(job: str) -> Select[Any]:
    return select(front).where(front.c.job == job)


def _first(db: Connection, job: str, query: Select[Any]) -> Reached | None:
    row = db.execute(query.limit(1)).first()
    return None if row is None else whole(db, job, [(row.trial, row.step)])[0]
