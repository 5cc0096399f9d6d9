"""Warm starts: the trials of earlier jobs that a job may learn from or continue, and the trial that each new trial has continued.

For each source job, a mark records the last event that the new job considers (the cut-off event). The queries return only reports up to
this event.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from tuner.database.codec import decode, stored_name
from tuner.database.database import Database
from tuner.database.tables import (
    checkpoints,
    events,
    jobs,
    reports,
    same_step,
    same_trial,
    trials,
    warm_starts,
)
from tuner.domain.events import RULES, Inherited, Launched
from tuner.domain.job import JobSpec
from tuner.domain.money import Cost, Money
from tuner.domain.objective import Objective, violation
from tuner.domain.records import (
    MAX_TRIALS,
    CheckpointRow,
    PastTrial,
    ReportRow,
    ScorePoint,
    WarmStartTrial,
    most_informative,
    transferred,
)
from tuner.domain.space import Config
from tuner.domain.time import Instant

TRIALS_PAGE = 100
_BestFirst = tuple[float, int, float]  # violation, negative stage and negative score of a report


@dataclass(frozen=True, slots=True)
class Mark:
    """The cut-off event of a source job. The warm start ignores all later events."""

    source: str
    until_seq: int  #: Number of the last event of `source` that is considered.


@dataclass(frozen=True, slots=True)
class _End:
    """A trial's last report that counts for the new job, and whether the trial had failed by its job's cut-off event."""

    mark: Mark
    trial: str
    config: Config
    score: float
    step: int
    failed: bool
    violation: float  #: The total violation of the new job's constraints by this report.


def note(db: Connection, job: str, project: str, sources: Sequence[str]) -> None:
    """Record the current newest event of each source job as its cut-off.

    Later events of the source are ignored. Otherwise a restarted driver of the job could see other trials than the first driver,
    and decide differently.
    """
    e = events.c
    for number, source in enumerate(sources):
        newest = select(func.coalesce(func.max(e.seq), 0)).where(e.job == source).scalar_subquery()
        row = {"job": job, "source": source, "project": project, "number": number}
        db.execute(insert(warm_starts).values(**row, until_seq=newest))


def marks(db: Connection, job: str) -> list[Mark]:
    """Return the job's marks, one for each of its sources, in the order in which the job names the sources."""
    w = warm_starts.c
    rows = db.execute(select(w.source, w.until_seq).where(w.job == job).order_by(w.number))
    return [Mark(row.source, row.until_seq) for row in rows]


def past_trials(
    database: Database, job: str, spec: JobSpec, *, limit: int = MAX_TRIALS, rules: int = RULES
) -> list[PastTrial]:
    """Return the trials that the job learns from, ordered by source as the job names them, then by number.

    Reports after the job's last step are ignored, and so are trials without an earlier one. The sampler would take their scores for
    scores of the last step.

    Every call returns the same list. The reports are read page by page, because with SQLite's rollback journal no process can
    commit during a read. Reports up to the cut-off events do not change between the pages.

    Args:
        limit: How many trials to return at most. If there are more, half of the result are the best trials, feasible trials first. The
            other half are the remaining trials with the most steps.
        rules: The version of the decision rules. Before version 3, reports of all steps count. Before version 6, a trial that failed after
            the job's last step counts as failed.
    """
    last_step = spec.fidelity.max if rules >= 3 else None
    with database.read() as db:
        counted = marks(db, job)
    failed_before = last_step if rules >= 6 else None
    ends = [end for mark in counted for end in _ends(database, mark, spec, last_step, failed_before)]
    last = [(end.violation, end.score, end.step) for end in ends]
    chosen = [ends[i] for i in most_informative(last, limit)]
    curves: dict[tuple[str, str], tuple[ScorePoint, ...]] = {}
    for mark in counted:
        names = [end.trial for end in chosen if end.mark is mark]
        for first in range(0, len(names), TRIALS_PAGE):
            page = names[first : first + TRIALS_PAGE]
            for trial, curve in _curves(database, mark, page, spec.objective, last_step):
                curves[mark.source, trial] = curve
    return [
        PastTrial(end.config, curves[end.mark.source, end.trial], end.failed, end.violation) for end in chosen
    ]


def _ends(
    database: Database, mark: Mark, spec: JobSpec, last_step: int | None, failed_before: int | None
) -> Iterator[_End]:
    """Yield the last report with a metric, up to `last_step`, of each trial whose configuration fits the job's search space.

    The trials are ordered by number.

    A trial is left out if this report lacks the metric of one of the job's constraints. If `failed_before` is not None, a trial that
    reported this step or a later one does not count as failed.
    """
    r, t = reports.c, trials.c
    reported = (r.job == mark.source) & (r.seq <= mark.until_seq) & r.value.is_not(None)
    counts = reported if last_step is None else reported & (r.step <= last_step)
    last = select(r.trial, func.max(r.step).label("step")).where(counts).group_by(r.trial).subquery()
    failed = (t.state == "failed") & (t.seq <= mark.until_seq)
    if failed_before is not None:
        failed &= t.trial.not_in(select(r.trial).where(reported, r.step >= failed_before))
    columns = [r.trial, r.step, r.value, *([r.metrics] if spec.constraints else []), t.config]
    query = (
        select(*columns, failed.label("failed"))
        .join(last, (r.trial == last.c.trial) & (r.step == last.c.step))
        .join(trials, same_trial(trials, reports))
        .where(r.job == mark.source)
        .order_by(t.number)
    )
    with database.read() as db:
        rows = db.execute(query).all()
    for row in rows:
        config = transferred(spec.space, json.loads(row.config))
        violates = violation(spec.constraints, json.loads(row.metrics)) if spec.constraints else 0.0
        if config is not None and violates is not None:
            score = spec.objective.score(row.value)
            yield _End(mark, row.trial, config, score, row.step, bool(row.failed), violates)


def _curves(
    database: Database, mark: Mark, names: Sequence[str], objective: Objective, last_step: int | None
) -> Iterator[tuple[str, tuple[ScorePoint, ...]]]:
    r = reports.c
    theirs = (r.job == mark.source) & r.trial.in_(names) & r.value.is_not(None)
    if last_step is not None:
        theirs &= r.step <= last_step
    query = select(r.trial, r.step, r.value, r.duration_ns, r.seq).where(theirs).order_by(r.trial, r.step)
    with database.read() as db:
        rows = db.execute(query).all()
    # The reports are filtered here, because with a condition on `seq` SQLite would read all reports of the job for each page.
    counted = (row for row in rows if row.seq <= mark.until_seq)
    for trial, group in groupby(counted, key=lambda row: str(row.trial)):
        yield trial, tuple(ScorePoint(row.step, objective.score(row.value), row.duration_ns) for row in group)


def find_warm_starts(
    db: Connection, job: str, spec: JobSpec, *, code: str, limit: int
) -> list[WarmStartTrial]:
    """Return up to `limit` trials of earlier jobs that the job may continue, best first.

    Only source jobs whose trainable's code has the digest `code` are considered. Each trial is returned with its newest checkpoint whose
    step has a metric that was reported up to the source's cut-off event (`Mark.until_seq`).

    A trial is ranked by its best report up to the cut-off event, which may be of another step than its checkpoint. Trials with a feasible
    report come first, by stage and score. The others follow, ordered by how much they violate the job's constraints. Equal trials are
    ordered by source, as the job lists them, and then by trial number. Failed trials, and trials outside the job's search space, are left
    out. Of several trials with the same configuration, only the best is returned.

    Reports and checkpoints after the job's last step are ignored, because the job would take the scores of these steps for scores of its
    last step. They count in a job that was launched first with decision rules before version 6. Each trial of a job under way continues the
    earlier trial at its own place in the result, so this result must not change.
    """
    last_step = spec.fidelity.max if _first_rules(db, job) >= 6 else None
    candidates: list[tuple[_BestFirst, Mark, Row[Any]]] = []
    for mark in marks(db, job):
        if db.execute(select(jobs.c.code).where(jobs.c.id == mark.source)).scalar() == code:
            rows = [
                row
                for row in _saved(db, mark, spec, last_step)
                if spec.violation(json.loads(row.metrics)) is not None
            ]
            best = _best_reports(db, mark, spec, [row.trial for row in rows], last_step)
            candidates += [(best[row.trial], mark, row) for row in rows]
    chosen: dict[str, tuple[Mark, Row[Any]]] = {}
    for _, mark, row in sorted(candidates, key=lambda candidate: candidate[0]):
        chosen.setdefault(json.dumps(json.loads(row.config), sort_keys=True), (mark, row))
    return [_warm_start(db, mark, row, spec) for mark, row in list(chosen.values())[:limit]]


def _first_rules(db: Connection, job: str) -> int:
    """Return the version of the decision rules with which the job was launched first, or the newest if it has not been launched."""
    e = events.c
    first = select(e.body).where(e.job == job, e.type == stored_name(Launched)).order_by(e.seq).limit(1)
    body = db.execute(first).scalar()
    rules: int = RULES if body is None else decode(body).rules
    return rules


def _saved(db: Connection, mark: Mark, spec: JobSpec, last_step: int | None) -> list[Row[Any]]:
    """Return a row for each trial of the source that the job may continue: its newest usable checkpoint, with the metric of its step.

    A checkpoint is usable if its step, which is `last_step` at most, has a metric that was reported up to the cut-off event
    `mark.until_seq`. Failed trials, and trials whose configuration is outside the job's search space, are left out.
    """
    r, c, t = reports.c, checkpoints.c, trials.c
    counts = (c.job == mark.source) & (r.seq <= mark.until_seq) & r.value.is_not(None)
    if last_step is not None:
        counts &= c.step <= last_step
    at_step = same_step(reports, checkpoints)
    last = (
        select(c.trial, func.max(c.step).label("step")).join(reports, at_step).where(counts).group_by(c.trial)
    ).subquery()
    query = (
        select(checkpoints, r.value, r.metrics, t.config)
        .join(last, (c.trial == last.c.trial) & (c.step == last.c.step))
        .join(reports, at_step)
        .join(trials, same_trial(trials, checkpoints))
        .where(c.job == mark.source, t.state != "failed")
        .order_by(t.number)
    )
    rows = db.execute(query).all()
    return [row for row in rows if transferred(spec.space, (was := json.loads(row.config))) == was]


def _best_reports(
    db: Connection, mark: Mark, spec: JobSpec, names: Sequence[str], last_step: int | None
) -> dict[str, _BestFirst]:
    """Return the sort key of the best report of each trial up to the cut-off event and up to `last_step`.

    Reports that lack a metric of the constraints or of the second objective do not count.
    """
    r = reports.c
    columns = [r.trial, r.step, r.value, r.seq, *([r.metrics] if spec.side_metrics else [])]
    best: dict[str, _BestFirst] = {}
    for first in range(0, len(names), TRIALS_PAGE):
        theirs = (r.job == mark.source) & r.trial.in_(names[first : first + TRIALS_PAGE])
        for row in db.execute(select(*columns).where(theirs, r.value.is_not(None))):
            # filtered here, for the same reason as in `_curves`
            violates = spec.violation(json.loads(row.metrics)) if spec.side_metrics else 0.0
            is_early = last_step is None or row.step <= last_step
            if is_early and row.seq <= mark.until_seq and violates is not None:
                stage, score = spec.rank(row.step, row.value)
                key = (violates, -stage, -score)
                best[row.trial] = min(best.get(row.trial, key), key)
    return best


def _warm_start(db: Connection, mark: Mark, row: Row[Any], spec: JobSpec) -> WarmStartTrial:
    r = reports.c
    mine = (r.job == mark.source) & (r.trial == row.trial) & (r.step <= row.step) & r.value.is_not(None)
    curve = []
    for report in db.execute(select(reports).where(mine).order_by(r.step)):
        metrics, cost = json.loads(report.metrics), Cost(Money(report.usd), report.gpu_ms)
        where = report.trial, report.attempt, report.step, Instant(report.at)
        violates = spec.violation(metrics)
        curve.append(ReportRow(*where, report.value, metrics, cost, report.duration_ns, violates))
    kept = (row.trial, row.step, row.attempt, row.uri, row.size_bytes, row.seconds, Instant(row.at))
    return WarmStartTrial(mark.source, row.trial, json.loads(row.config), tuple(curve), CheckpointRow(*kept))


def inherited(db: Connection, job: str, trial: str) -> Inherited | None:
    """Return the progress that the trial inherited from an earlier job's trial when it began, or None if it inherited none."""
    r, e = reports.c, events.c
    seq = select(r.seq).where(r.job == job, r.trial == trial, r.attempt == 0).limit(1).scalar_subquery()
    body = db.execute(select(e.body).where(e.job == job, e.seq == seq)).scalar()
    earlier_trial: Inherited | None = None if body is None else decode(body).inherited
    return earlier_trial
