"""Queries for mirrors, which copy jobs to other tools: what changed in a job after a given event."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, case, func, or_, select

from tuner.database.tables import attempts, events, jobs, reports, trials
from tuner.domain.job import FINAL
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.objective import Mode
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.ledger.readable import entries

NAMES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ToldReport:
    step: int
    at: Instant
    value: float | None
    metrics: Mapping[str, Any]
    cost: Cost
    best: float | None  #: The best value up to this step.


@dataclass(frozen=True, slots=True)
class ToldTrial:
    """A trial with its new reports."""

    trial: str
    number: int
    config: Config
    state: TrialState
    reason: str
    value: float | None
    best: float | None
    cost: Cost
    attempts: int
    preemptions: int
    created_at: Instant
    updated_at: Instant
    is_as_of_then: bool  #: False if the trial has changed after the last included event. Its state is then newer than the reports.
    reports: Sequence[ToldReport]


def heads(db: Connection, among: Collection[str] | None) -> dict[str, tuple[int, str]]:
    """Return the number of the newest event and the state of each job, over all projects. A job without events is left out.

    Args:
        among: Of the jobs that have ended, return only these. None returns all jobs.
    """
    j, e = jobs.c, events.c
    last = select(func.max(e.seq)).where(e.job == j.id).scalar_subquery()
    query = select(j.id, last.label("seq"), j.state)
    if among is not None:
        query = query.where(or_(j.state.not_in(FINAL), j.id.in_(among)))
    return {row.id: (row.seq, row.state) for row in db.execute(query) if row.seq is not None}


def newest(db: Connection, job: str) -> int:
    return int(db.execute(select(func.max(events.c.seq)).where(events.c.job == job)).scalar() or 0)


def read_changes(
    db: Connection, job: str, mode: Mode, after: int, *, limit: int, everything: bool
) -> tuple[int, list[ToldTrial]]:
    """Return the number of the last event that is included, and the trials that changed after event `after` up to that event.

    Args:
        limit: About how many reports to return at most.
        everything: If the newest event is included, return all trials of the job, even unchanged ones.
    """
    r, t = reports.c, trials.c
    latest = newest(db, job)
    behind = (r.job == job) & (r.seq > after)
    # Reports of one event have the same number and are returned together.
    last = db.execute(select(r.seq).where(behind).order_by(r.seq).offset(limit - 1).limit(1)).scalar()
    upto = latest if last is None else int(last)
    rows = list(db.execute(select(reports).where(behind, r.seq <= upto).order_by(r.seq, r.step)))
    bests = _bests(db, job, mode, {row.trial for row in rows}, upto=after)
    found: dict[str, list[ToldReport]] = {}
    for row in rows:
        cost = Cost(Money(row.usd), row.gpu_ms)
        known = [value for value in (bests.get(row.trial), row.value) if value is not None]
        best = bests[row.trial] = (max if mode == "max" else min)(known, default=None)
        said = ToldReport(row.step, Instant(row.at), row.value, json.loads(row.metrics), cost, best)
        found.setdefault(row.trial, []).append(said)
    changed = select(t.trial).where(t.job == job)
    if not everything or upto < latest:
        changed = changed.where(t.seq > after, t.seq <= upto)
    names = {*found, *db.execute(changed).scalars()}
    return upto, sorted(_trials(db, job, mode, names, found, upto), key=lambda trial: trial.number)


def _bests(
    db: Connection, job: str, mode: Mode, names: Collection[str], *, upto: int | None = None
) -> dict[str, float | None]:
    """Return the best value that each of these trials reported, up to event `upto` if that is given."""
    r = reports.c
    best = func.max(r.value) if mode == "max" else func.min(r.value)
    found: dict[str, float | None] = {}
    ordered = sorted(names)
    for first in range(0, len(ordered), NAMES_AT_ONCE):
        some = ordered[first : first + NAMES_AT_ONCE]
        query = select(r.trial, best).where(r.job == job, r.trial.in_(some))
        if upto is not None:
            query = query.where(r.seq <= upto)
        found |= {trial: value for trial, value in db.execute(query.group_by(r.trial))}
    return found


def _trials(
    db: Connection,
    job: str,
    mode: Mode,
    names: Iterable[str],
    reports_by_trial: Mapping[str, Sequence[ToldReport]],
    upto: int,
) -> Iterable[ToldTrial]:
    t, e, a = trials.c, entries.c, attempts.c
    preempted = func.sum(case((a.end == "preempted", 1), else_=0))
    ordered = sorted(names)
    for first in range(0, len(ordered), NAMES_AT_ONCE):
        some = ordered[first : first + NAMES_AT_ONCE]
        spent = (
            select(e.trial, func.sum(e.usd), func.sum(e.gpu_ms))
            .where(e.job == job, e.trial.in_(some), e.kind.is_not(None))
            .group_by(e.trial)
        )
        costs = {name: Cost(Money(int(usd)), int(gpu_ms)) for name, usd, gpu_ms in db.execute(spent)}
        ran = (
            select(a.trial, func.count(), preempted).where(a.job == job, a.trial.in_(some)).group_by(a.trial)
        )
        runs = {name: (int(count), int(taken)) for name, count, taken in db.execute(ran)}
        bests = _bests(db, job, mode, some)
        for row in db.execute(select(trials).where(t.job == job, t.trial.in_(some))):
            count, taken = runs.get(row.trial, (0, 0))
            yield ToldTrial(
                row.trial,
                row.number,
                json.loads(row.config),
                row.state,
                row.reason,
                row.value,
                bests.get(row.trial),
                costs.get(row.trial, FREE),
                count,
                taken,
                Instant(row.created_at),
                Instant(row.updated_at),
                row.seq <= upto,
                reports_by_trial.get(row.trial, ()),
            )
