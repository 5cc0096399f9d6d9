"""How far a job's best trials came, what they had reached and paid at each report, and from where they could go on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Connection, func, select

from tuner.domain.objective import Mode
from tuner.domain.space import Config
from tuner.domain.trial import TrialState
from tuner.store.tables import checkpoints, events, reports, trials


@dataclass(frozen=True, slots=True)
class Standing:
    """`curve`: (step, value, micro-dollars up to it) of its reports with a metric, ascending by step, at least one. `saved`: the step
    of its newest checkpoint, 0 where there is none."""

    trial: str
    number: int
    state: TrialState
    config: Config
    curve: tuple[tuple[int, float, int], ...]
    saved: int


def best_trials(db: Connection, job: str, mode: Mode, limit: int) -> list[Standing]:
    """By their newest metric, the best first; those without a metric are left out."""
    t, r, c = trials.c, reports.c, checkpoints.c
    order = (t.value.desc() if mode == "max" else t.value.asc(), t.number)
    rows = db.execute(
        select(trials).where(t.job == job, t.value.is_not(None)).order_by(*order).limit(limit)
    ).all()
    names = [row.trial for row in rows]
    told = db.execute(
        select(r.trial, r.step, r.value, r.usd)
        .where(r.job == job, r.trial.in_(names), r.value.is_not(None))
        .order_by(r.trial, r.step)
    )
    curves = {
        trial: tuple((row.step, row.value, row.usd) for row in found)
        for trial, found in groupby(told, key=lambda row: str(row.trial))
    }
    newest = select(c.trial, func.max(c.step)).where(c.job == job, c.trial.in_(names)).group_by(c.trial)
    saved: dict[str, int] = {trial: step for trial, step in db.execute(newest)}
    return [
        Standing(
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


def newest_event(db: Connection, job: str) -> int:
    """0 where there is none yet."""
    return db.execute(select(func.max(events.c.seq)).where(events.c.job == job)).scalar() or 0


def values_at(curve: Sequence[tuple[int, float, int]], levels: Sequence[int]) -> list[float]:
    """That of the first report at or after each level; of a curve that came to none, its last report's."""
    found = []
    for level in levels:
        value = next((value for step, value, _ in curve if step >= level), None)
        if value is None:
            break
        found.append(value)
    return found or [curve[-1][1]]
