"""How long a job's attempts held their workers, and how many of them ended in the loss of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from tuner.domain.time import Instant
from tuner.store.tables import attempts


@dataclass(frozen=True, slots=True)
class Losses:
    """`ends` counts attempts by how they ended."""

    held_ns: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)


def losses(db: Connection, job: str, now: Instant) -> Losses:
    a = attempts.c
    until = func.coalesce(a.ended_at, now)
    held = func.sum(until - func.coalesce(a.landed_at, until))  # what waited for a worker held none
    query = select(a.end, held, func.count()).where(a.job == job).group_by(a.end)
    rows = db.execute(query).all()
    return Losses(sum(max(0, int(row[1])) for row in rows), {row[0]: row[2] for row in rows if row[0]})
