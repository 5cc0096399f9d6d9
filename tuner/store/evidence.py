"""Figures of earlier attempts and trials, from which plans and advice are made: step times, interruptions, curves, usage and bills."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select

from tuner.database.tables import attempt_usage, attempts, reports, same_attempt, trials
from tuner.domain.checkpointing import Losses
from tuner.domain.cost import CostKind
from tuner.domain.money import ZERO, Money
from tuner.domain.records import DRIVER_ENDED
from tuner.domain.time import NS, Instant
from tuner.domain.trial import TrialState
from tuner.ledger.readable import entries


def losses(db: Connection, job: str, market: str, now: Instant) -> Losses:
    a = attempts.c
    held = func.sum(func.coalesce(a.ended_at, now) - a.landed_at)
    ended = func.sum(case((a.reason == DRIVER_ENDED, 0), else_=1))
    mine = (a.job == job) & (a.market == market) & a.landed_at.is_not(None)
    rows = db.execute(select(a.end, held, ended).where(mine).group_by(a.end)).all()
    ends = {row[0]: int(row[2]) for row in rows if row[0] and row[2]}
    return Losses(sum(max(0, int(row[1])) for row in rows), ends)


def artifact_bytes(db: Connection, job: str) -> int:
    """Return the size of the artifacts that the job's attempts have stored."""
    u = attempt_usage.c
    return int(
        db.execute(select(func.coalesce(func.sum(u.artifact_bytes), 0)).where(u.job == job)).scalar_one()
    )


TRIALS = 50  # the most trials of a job whose step times are read
# Cost kinds of time that interruptions wasted, and of time that brought progress.
INTERRUPTED: tuple[CostKind, ...] = ("lost", "restore")
TRAINED: tuple[CostKind, ...] = ("setup", "train")


def step_seconds(db: Connection, job: str) -> list[float]:
    """Return the mean seconds per step of each trial with more than one step, for the first `TRIALS` such trials of the job.

    The first reported step is left out of the mean, because it includes the setup.
    """
    t, r = trials.c, reports.c
    some = select(t.trial).where(t.job == job, t.steps > 1).order_by(t.number).limit(TRIALS)
    names = list(db.execute(some).scalars())
    query = (
        select(func.min(r.step), func.max(r.step), func.min(r.duration_ns), func.max(r.duration_ns))
        .where(r.job == job, r.trial.in_(names))
        .group_by(r.trial)
        .having(func.max(r.step) > func.min(r.step), func.max(r.duration_ns) > func.min(r.duration_ns))
    )
    return [(longest - least) / (last - first) / NS for first, last, least, longest in db.execute(query)]


@dataclass(frozen=True, slots=True)
class SpotSpend:
    """The spend of a job on spot machines, by its effect."""

    interrupted: Money = ZERO  #: Spend of the cost kinds lost and restore.
    trained: Money = ZERO  #: Spend of the cost kinds setup and train.

    def __add__(self, other: "SpotSpend") -> "SpotSpend":
        return SpotSpend(self.interrupted + other.interrupted, self.trained + other.trained)


def on_spot(db: Connection, jobs: Sequence[str]) -> dict[str, SpotSpend]:
    """Return the spend on spot machines of each of these jobs, by job. Jobs that spent nothing there are left out."""
    e, a = entries.c, attempts.c
    query = (
        select(e.job, e.kind, func.sum(e.usd))
        .join(attempts, same_attempt(attempts, entries))
        .where(e.job.in_(jobs), e.kind.in_((*INTERRUPTED, *TRAINED)), a.market == "spot")
        .group_by(e.job, e.kind)
    )
    paid: dict[str, dict[CostKind, int]] = {}
    for job, kind, usd in db.execute(query):
        paid.setdefault(job, {})[kind] = int(usd)
    return {
        job: SpotSpend(*(Money(sum(of.get(kind, 0) for kind in kinds)) for kinds in (INTERRUPTED, TRAINED)))
        for job, of in paid.items()
    }


@dataclass(frozen=True, slots=True)
class MeasuredGpuMemory:
    """The largest GPU memory that an attempt of a job used, and the memory of the GPU."""

    peak_bytes: int
    gpu_bytes: int
    instance_type: str | None  #: The machine type that the attempt ran on. None if it was not checked.


def gpu_memory(db: Connection, job: str) -> MeasuredGpuMemory | None:
    """Return the measurement of the attempt that used most GPU memory of the job's attempts, or None if none was measured."""
    a, u = attempts.c, attempt_usage.c
    query = (
        select(u.gpu_memory_peak_bytes, u.facts, a.instance_type)
        .join(attempts, same_attempt(attempt_usage, attempts))
        .where(u.job == job, u.gpu_memory_peak_bytes > 0)
        .order_by(u.gpu_memory_peak_bytes.desc())
        .limit(1)
    )
    row = db.execute(query).first()
    gpu_bytes = None if row is None else json.loads(row.facts).get("gpu_memory_bytes")
    if row is None or not isinstance(gpu_bytes, int):
        return None
    return MeasuredGpuMemory(row.gpu_memory_peak_bytes, gpu_bytes, row.instance_type)


def trials_of(db: Connection, job: str) -> dict[str, tuple[TrialState, int]]:
    """Return the state and the last reported step of each trial, by trial. The step is 0 if the trial has not reported."""
    t = trials.c
    rows = db.execute(select(t.trial, t.state, t.steps).where(t.job == job))
    return {trial: (state, steps) for trial, state, steps in rows}


def values_at(
    db: Connection, job: str, names: Collection[str], steps: Collection[int]
) -> Iterator[tuple[str, int, float | None, Money]]:
    """Yield (trial, step, metric, dollars spent up to the step) for each report of these trials at these steps."""
    r = reports.c
    query = select(r.trial, r.step, r.value, r.usd).where(r.job == job, r.trial.in_(names), r.step.in_(steps))
    for trial, step, value, usd in db.execute(query.order_by(r.trial, r.step)):
        yield trial, step, value, Money(usd)


def bills(db: Connection, job: str, names: Collection[str]) -> dict[tuple[str, int], dict[CostKind, Money]]:
    """Return the bill of each attempt of these trials: its spend by cost kind. Keys are (trial, attempt)."""
    e = entries.c
    query = (
        select(e.trial, e.attempt, e.kind, func.sum(e.usd))
        .where(e.job == job, e.trial.in_(names), e.kind.is_not(None))
        .group_by(e.trial, e.attempt, e.kind)
    )
    bill: dict[tuple[str, int], dict[CostKind, Money]] = {}
    for trial, attempt, kind, usd in db.execute(query):
        bill.setdefault((trial, attempt), {})[kind] = Money(int(usd))
    return bill
