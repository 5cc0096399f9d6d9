"""Trials of earlier jobs that a job may continue (warm start), and what a trial inherited."""

import json
from typing import Any

from sqlalchemy import Connection, Row, func, select

from tuner.domain.events import Inherited
from tuner.domain.history import transferred
from tuner.domain.job import JobSpec
from tuner.domain.money import Cost, Money
from tuner.domain.records import CheckpointRow, ReportRow, WarmStart
from tuner.domain.time import Instant
from tuner.store.codec import decode
from tuner.store.history import Mark, marks
from tuner.store.tables import checkpoints, events, jobs, reports, trials


def find_warm_starts(db: Connection, job: str, spec: JobSpec, *, code: str, limit: int) -> list[WarmStart]:
    """Return up to `limit` trials of earlier jobs that the job may continue, best score first.

    Only source jobs whose trainable's code has the digest `code` are considered. Each trial is returned with its newest
    checkpoint whose step has a metric that was reported by the source's cut-off event (`Mark.until_seq`). Its score is
    that metric. Failed trials, and trials outside the job's search space, are left out. If several trials have the same
    configuration, only the best is kept. Equal scores are ordered by source, as the job lists them, and then by trial number.
    """
    found: list[tuple[float, Mark, Row[Any]]] = []
    for mark in marks(db, job):
        if db.execute(select(jobs.c.code).where(jobs.c.id == mark.source)).scalar() == code:
            found += [(spec.objective.score(row.value), mark, row) for row in _saved(db, mark, spec)]
    chosen: dict[str, tuple[Mark, Row[Any]]] = {}
    for _, mark, row in sorted(found, key=lambda one: -one[0]):
        chosen.setdefault(json.dumps(json.loads(row.config), sort_keys=True), (mark, row))
    return [_warm_start(db, mark, row) for mark, row in list(chosen.values())[:limit]]


def _saved(db: Connection, mark: Mark, spec: JobSpec) -> list[Row[Any]]:
    """Return a row for each trial of the source that the job may continue: its newest usable checkpoint, with the metric there.

    A checkpoint is usable if its step has a metric that was reported by the cut-off event `mark.until_seq`. Failed
    trials, and trials whose configuration lies outside the job's search space, are left out.
    """
    r, c, t = reports.c, checkpoints.c, trials.c
    counts = (c.job == mark.source) & (r.seq <= mark.until_seq) & r.value.is_not(None)
    at_step = (r.job == c.job) & (r.trial == c.trial) & (r.step == c.step)
    last = (
        select(c.trial, func.max(c.step).label("step")).join(reports, at_step).where(counts).group_by(c.trial)
    ).subquery()
    query = (
        select(checkpoints, r.value, t.config)
        .join(last, (c.trial == last.c.trial) & (c.step == last.c.step))
        .join(reports, at_step)
        .join(trials, (t.job == c.job) & (t.trial == c.trial))
        .where(c.job == mark.source, t.state != "failed")
        .order_by(t.number)
    )
    rows = db.execute(query).all()
    return [row for row in rows if transferred(spec.space, (was := json.loads(row.config))) == was]


def _warm_start(db: Connection, mark: Mark, row: Row[Any]) -> WarmStart:
    r = reports.c
    mine = (r.job == mark.source) & (r.trial == row.trial) & (r.step <= row.step) & r.value.is_not(None)
    curve = tuple(
        ReportRow(
            one.trial,
            one.attempt,
            one.step,
            Instant(one.at),
            one.value,
            json.loads(one.metrics),
            Cost(Money(one.usd), one.gpu_ms),
            one.duration_ns,
        )
        for one in db.execute(select(reports).where(mine).order_by(r.step))
    )
    kept = (row.trial, row.step, row.attempt, row.uri, row.size_bytes, row.seconds, Instant(row.at))
    return WarmStart(mark.source, row.trial, json.loads(row.config), curve, CheckpointRow(*kept))


def inherited(db: Connection, job: str, trial: str) -> Inherited | None:
    """Return what the trial inherited when it began, or None if it inherited nothing."""
    r, e = reports.c, events.c
    seq = select(r.seq).where(r.job == job, r.trial == trial, r.attempt == 0).limit(1).scalar_subquery()
    body = db.execute(select(e.body).where(e.job == job, e.seq == seq)).scalar()
    found: Inherited | None = None if body is None else decode(body).inherited
    return found
