"""Find the report of a job with the best metric within cost limits, in the job's front (`tuner.store.pareto_front`)."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, select, tuple_

from tuner.domain.money import Money
from tuner.domain.objective import Mode
from tuner.store.answers import Reached, reached
from tuner.store.pareto_front import loss_of
from tuner.store.tables import checkpoints, front, jobs, reports, trials


@dataclass(frozen=True, slots=True)
class Limits:
    """What training a configuration may cost. None means any amount."""

    usd: Money | None = None
    gpu_ms: int | None = None
    duration_ns: int | None = None

    def allow(self, usd: Money, gpu_ms: int, duration_ns: int) -> bool:
        return (
            (self.usd is None or usd <= self.usd)
            and (self.gpu_ms is None or gpu_ms <= self.gpu_ms)
            and (self.duration_ns is None or duration_ns <= self.duration_ns)
        )

    def given(self) -> dict[str, int]:
        """Return the limits that are set, by their column in the `front` table."""
        usd = None if self.usd is None else self.usd.micro_usd
        each = {"usd": usd, "gpu_ms": self.gpu_ms, "duration_ns": self.duration_ns}
        return {name: most for name, most in each.items() if most is not None}


ANY = Limits()
BEST_FIRST = (front.c.loss, front.c.usd, front.c.duration_ns, front.c.gpu_ms, front.c.seq)
CHEAPEST_FIRST = (front.c.usd, front.c.loss, front.c.duration_ns, front.c.gpu_ms, front.c.seq)

_POINTS: Select[Any] = select(front).where(front.c.job == bindparam("of"))
_NEXT_BETTER = _POINTS.where(front.c.loss < bindparam("below")).order_by(*CHEAPEST_FIRST).limit(1)
_CHEAPEST = _POINTS.order_by(
    front.c.usd, front.c.gpu_ms, front.c.duration_ns, front.c.loss, front.c.seq
).limit(1)


@cache
def _best_within(limited: tuple[str, ...]) -> Select[Any]:
    within = (front.c[name] <= bindparam(f"most_{name}") for name in limited)
    return _POINTS.where(*within).order_by(*BEST_FIRST).limit(1)


def _places() -> Select[Any]:
    f = front.c
    trial, step = (
        select(column)
        .where(f.job == jobs.c.id)
        .order_by(*BEST_FIRST, f.trial, f.step)
        .limit(1)
        .scalar_subquery()
        for column in (f.trial, f.step)
    )
    return select(jobs.c.id, trial, step).where(jobs.c.id.in_(bindparam("jobs", expanding=True)))


def _at_places() -> Select[Any]:
    r, t, c = reports.c, trials.c, checkpoints.c
    return (
        select(reports, t.config, c.uri)
        .join(trials, (t.job == r.job) & (t.trial == r.trial))
        .outerjoin(checkpoints, (c.job == r.job) & (c.trial == r.trial) & (c.step == r.step))
        .where(tuple_(r.job, r.trial, r.step).in_(bindparam("places", expanding=True)))
    )


_PLACES, _AT_PLACES = _places(), _at_places()


def best(db: Connection, job: str, limits: Limits = ANY) -> Reached | None:
    """Return the report with the best metric within the limits, or None if there is none.

    Among equal metrics the cheapest in dollars wins, then the one with the shortest training, the least GPU time, and the earliest.
    """
    given = limits.given()
    return _first(
        db, job, _best_within(tuple(given)), **{f"most_{name}": most for name, most in given.items()}
    )


def best_of_each(db: Connection, names: Collection[str]) -> dict[str, Reached]:
    """Return the report with the best metric of each of these jobs, without cost limits. A job without a metric is left out."""
    places = [tuple(row) for row in db.execute(_PLACES, {"jobs": list(names)}) if row[1] is not None]
    if not places:
        return {}
    return {row.job: _in_whole(row) for row in db.execute(_AT_PLACES, {"places": places})}


def next_better(db: Connection, job: str, mode: Mode, than: float) -> Reached | None:
    """Return the cheapest report of the front whose metric is better than `than`, or None if there is none."""
    return _first(db, job, _NEXT_BETTER, below=loss_of(mode, than))


def cheapest(db: Connection, job: str) -> Reached | None:
    """Return the cheapest report of the front, or None if the front is empty."""
    return _first(db, job, _CHEAPEST)


def points(db: Connection, job: str) -> list[Row[Any]]:
    """Return all points of the front, cheapest first. Columns: trial, step, loss, usd, gpu_ms, duration_ns, seq."""
    return list(db.execute(_POINTS.order_by(*CHEAPEST_FIRST), {"of": job}))


def pareto(db: Connection, job: str) -> list[Reached]:
    """Return the Pareto front of dollars and metric, cheapest first: each report is better than all cheaper ones."""
    found: list[Row[Any]] = []
    least = math.inf
    for row in points(db, job):
        if row.loss < least:
            found.append(row)
            least = row.loss
    return whole(db, job, [(row.trial, row.step) for row in found])


def whole(db: Connection, job: str, places: Sequence[tuple[str, int]]) -> list[Reached]:
    """Return complete reports, with configuration and checkpoint, for these (trial, step) points of the front, in the same order."""
    if len(places) == 1:
        rows = db.execute(_ONE_IN_WHOLE, {"of": job, "trial": places[0][0], "step": places[0][1]})
    else:
        rows = db.execute(_IN_WHOLE, {"of": job})
    wanted = set(places)
    found = {(row.trial, row.step): _in_whole(row) for row in rows if (row.trial, row.step) in wanted}
    return [found[place] for place in places]


def _all_in_whole() -> Select[Any]:
    f, r, t, c = front.c, reports.c, trials.c, checkpoints.c
    return (
        select(reports, t.config, c.uri)
        .select_from(front)
        .join(reports, (r.job == f.job) & (r.trial == f.trial) & (r.step == f.step))
        .join(trials, (t.job == f.job) & (t.trial == f.trial))
        .outerjoin(checkpoints, (c.job == f.job) & (c.trial == f.trial) & (c.step == f.step))
        .where(f.job == bindparam("of"))
    )


_IN_WHOLE = _all_in_whole()
_ONE_IN_WHOLE = _IN_WHOLE.where(front.c.trial == bindparam("trial"), front.c.step == bindparam("step"))


def _in_whole(row: Row[Any]) -> Reached:
    return replace(reached(row), config=json.loads(row.config), checkpoint_uri=row.uri)


def _first(db: Connection, job: str, query: Select[Any], **given: float) -> Reached | None:
    row = db.execute(query, {"of": job, **given}).first()
    return None if row is None else whole(db, job, [(row.trial, row.step)])[0]
