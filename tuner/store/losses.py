"""How long a job's attempts had their machines, and how many of them ended in the loss of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from tuner.domain.time import Instant
from tuner.store.tables import attempts


@dataclass(frozen=True, slots=True)
class Losses:
    """Of attempts that had a machine: what still waits for one cannot lose it. `ends` counts them by how they ended."""

    held_ns: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)


def losses(db: Connection, job: str, now: Instant) -> Losses:
    a = attempts.c
    held = func.sum(func.coalesce(a.ended_at, now) - a.landed_at)
    query = select(a.end, held, func.count()).where(a.job == job, a.landed_at.is_not(None)).group_by(a.end)
    rows = db.execute(query).all()
    return Losses(sum(max(0, int(row[1])) for row in rows), {row[0]: row[2] for row in rows if row[0]})
