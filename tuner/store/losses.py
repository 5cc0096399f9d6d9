"""How long a job's attempts had machines of a market (spot or on-demand), and how these attempts ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, case, func, select

from tuner.domain.records import DRIVER_ENDED
from tuner.domain.time import Instant
from tuner.store.tables import attempts


@dataclass(frozen=True, slots=True)
class Losses:
    """MetricsSnapshot of the attempts that got a machine. Attempts that never had one are left out, because they could not lose it."""

    held_ns: int = 0  #: How long the attempts had their machines, summed.
    #: Number of attempts by outcome. Attempts that ended because their driver ended are left out: no machine was lost.
    ends: Mapping[str, int] = field(default_factory=dict)


def losses(db: Connection, job: str, market: str, now: Instant) -> Losses:
    a = attempts.c
    held = func.sum(func.coalesce(a.ended_at, now) - a.landed_at)
    ended = func.sum(case((a.reason == DRIVER_ENDED, 0), else_=1))
    mine = (a.job == job) & (a.market == market) & a.landed_at.is_not(None)
    rows = db.execute(select(a.end, held, ended).where(mine).group_by(a.end)).all()
    ends = {row[0]: int(row[2]) for row in rows if row[0] and row[2]}
    return Losses(sum(max(0, int(row[1])) for row in rows), ends)
