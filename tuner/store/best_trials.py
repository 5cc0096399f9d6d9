"""The best trials of a job: their learning curves with the cost at each report, and their newest checkpoints."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select

from tuner.domain.objective import Mode
from tuner.domain.space import Config
from tuner.domain.trial import TrialState
from tuner.store.tables import checkpoints, events, reports, trials


@dataclass(frozen=True, slots=True)
class BestTrial:
    """A trial with its learning curve."""

    trial: str
    number: int
    state: TrialState
    config: Config
    #: (step, metric, micro-dollars up to that step) of each report with a metric, ascending. Never empty.
    curve: tuple[tuple[int, float, int], ...]
    saved: int  #: The step of the newest checkpoint, or 0 if there is none.


def best_trials(db: Connection, job: str, mode: Mode, limit: int) -> list[BestTrial]:
    """Return up to `limit` trials, ordered by the metric of their newest report, best first. Trials without a metric are left out."""
    rows = db.execute(_best_trials(mode), {"of": job, "most": limit}).all()
    names = [row.trial for row in rows]
    points = db.execute(_told(), {"of": job, "trials": names})
    curves = {
        trial: tuple((row.step, row.value, row.usd) for row in found)
        for trial, found in groupby(points, key=lambda row: str(row.trial))
    }
    newest = db.execute(_saved(), {"of": job, "trials": names})
    saved: dict[str, int] = {trial: step for trial, step in newest}
    return [
        BestTrial(
            row.trial,
            row.number,
            row.state,
            json.loads(row.config),
            curves[row.trial],
            saved.get(row.trial, 0),
        )
        for row in rows
        if row.trial in curves
    ]


@cache
def _best_trials(mode: Mode) -> Select[Any]:
    t = trials.c
    order = (t.value.desc() if mode == "max" else t.value.asc(), t.number)
    known = select(trials).where(t.job == bindparam("of"), t.value.is_not(None))
    return known.order_by(*order).limit(bindparam("most"))


@cache
def _told() -> Select[Any]:
    r = reports.c
    of_these = (r.job == bindparam("of"), r.trial.in_(bindparam("trials", expanding=True)))
    points = select(r.trial, r.step, r.value, r.usd).where(*of_these, r.value.is_not(None))
    return points.order_by(r.trial, r.step)


@cache
def _saved() -> Select[Any]:
    c = checkpoints.c
    of_these = (c.job == bindparam("of"), c.trial.in_(bindparam("trials", expanding=True)))
    return select(c.trial, func.max(c.step)).where(*of_these).group_by(c.trial)


@cache
def _newest_event() -> Select[Any]:
    return select(func.max(events.c.seq)).where(events.c.job == bindparam("of"))


def newest_event(db: Connection, job: str) -> int:
    """Return the number of the job's newest event, or 0 if it has none."""
    return db.execute(_newest_event(), {"of": job}).scalar() or 0


def values_at(curve: Sequence[tuple[int, float, int]], levels: Sequence[int]) -> list[float]:
    """Return the metric of the first report at or after each of the ascending levels, up to the last level that the curve reaches.

    If the curve reaches none of them, return the metric of its last report.
    """
    found = []
    for level in levels:
        value = next((value for step, value, _ in curve if step >= level), None)
        if value is None:
            break
        found.append(value)
    return found or [curve[-1][1]]
