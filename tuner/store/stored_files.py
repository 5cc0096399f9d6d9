"""The files that jobs have in the storage: their sizes over time, and trials whose files are being removed."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    Table,
    and_,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    union_all,
    update,
)

from tuner.database.tables import (
    attempt_usage,
    attempts,
    checkpoints,
    front,
    jobs,
    launches,
    removals,
    reports,
    same_trial,
    storage_spans,
    teachers,
    trials,
    warm_starts,
)
from tuner.database.tables import exports as exports_table
from tuner.domain.job import FINAL, JobSpec, Teacher
from tuner.domain.retention import Retain
from tuner.domain.time import Instant
from tuner.store import exports
from tuner.store.pareto_front import BEST_FIRST

_FINAL = sorted(FINAL)


@dataclass(frozen=True, slots=True)
class Removal:
    """A trial whose checkpoints and artifacts are being removed."""

    job: str
    trial: str
    project: str
    up_to_attempt: int  #: Files of later attempts are kept.


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended and may have files in the storage."""

    id: str
    project: str
    ended_at: Instant


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """A time span in which the files of a job had a constant size."""

    job: str
    since: Instant
    until: Instant | None  #: The end of the span. None if this is the current size.
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DueMeasurement:
    """A job whose files must be measured."""

    job: str
    project: str


# Files that retention may remove


def ended_with_files(db: Connection, before: Instant) -> list[EndedJob]:
    """Return the jobs that ended before the time `before` and have recorded checkpoints or artifacts, in the order of their ends."""
    j, c, u = jobs.c, checkpoints.c, attempt_usage.c
    has_files = or_(
        exists(select(c.job).where(c.job == j.id)),
        exists(select(u.job).where(u.job == j.id, u.artifact_bytes > 0)),
    )
    query = select(j.id, j.project, j.ended_at).where(
        j.state.in_(_FINAL), j.ended_at.is_not(None), j.ended_at < before, has_files
    )
    rows = db.execute(query.order_by(j.ended_at, j.id))
    return [EndedJob(row.id, row.project, Instant(row.ended_at)) for row in rows]


def lock_job(db: Connection, job: str) -> None:
    """Block changes of the job's state, and new jobs that name it for a warm start, until the transaction ends.

    A new job for a warm start inserts a row with a foreign key to this job's row. PostgreSQL delays the insertion while this job's row
    is locked.
    """
    db.execute(select(jobs.c.id).where(jobs.c.id == job).with_for_update()).all()


def needed_by(db: Connection, job: str) -> str | None:
    """Return the reason why the job's files are still needed, or None if they are not needed."""
    return reasons_to_keep(db, select(jobs.c.id).where(jobs.c.id == job)).get(job)


def reasons_to_keep(db: Connection, which: Select[tuple[str]]) -> dict[str, str]:
    """Return why the files of the selected jobs are still needed, by job. Jobs whose files are not needed are left out.

    The files of a job are needed until it has ended, and while it has a driver or an export under way. They are also needed while
    another job that has not ended names this job for a warm start, or has a trial of this job as its teacher.
    """
    j, launch, export = jobs.c, launches.c, exports_table.c
    queries = {  # from the weakest reason to the strongest; for each job the last matching reason is returned
        "{} learns from a trial of this job": _users(teachers, which),
        "{} continues trials of this job": _users(warm_starts, which),
        "{} of the job is {}": select(export.job, export.export, export.state).where(
            export.job.in_(which), export.state.in_(exports.LIVE)
        ),
        "the job still has a driver": select(launch.job).where(
            launch.job.in_(which), launch.state != "ended"
        ),
        "the job is {}": select(j.id, j.state).where(j.id.in_(which), j.state.not_in(_FINAL)),
    }
    return {job: text.format(*facts) for text, query in queries.items() for job, *facts in db.execute(query)}


def _users(table: Table, which: Select[tuple[str]]) -> Select[Any]:
    """Return a query for pairs: a job selected by `which`, and the unfinished job with the lowest id that uses its files."""
    t = table.c
    query = select(t.source, func.min(t.job)).join(jobs, jobs.c.id == t.job)
    return query.where(t.source.in_(which), jobs.c.state.not_in(_FINAL)).group_by(t.source)


def student_of(db: Connection, job: str) -> str | None:
    """Return an unfinished job that learns from a trial of this job (its teacher), or None if no unfinished job does."""
    row = db.execute(_users(teachers, select(jobs.c.id).where(jobs.c.id == job))).first()
    return None if row is None else str(row[1])


def note_teacher(db: Connection, job: str, project: str, teacher: Teacher | None) -> None:
    """Record that `job` needs the files of the earlier job `teacher.job` until `job` has ended. Do nothing if `teacher` is None."""
    if teacher is not None:
        db.execute(insert(teachers).values(job=job, source=teacher.job, project=project))


def retained_trials(
    db: Connection, specs: Mapping[str, JobSpec], retain: Retain
) -> dict[str, set[str]] | None:
    """Return the trials of each job whose files are kept under the retention policy `retain`, or None if those of all trials are kept.

    If no trial is feasible, the result contains the trial that violates the constraints least, among the trials with a checkpoint. If the
    job trains its best configurations again (`confirm`), the result also contains all trials of these configurations, because the
    configuration that is confirmed as the best need not have the best single result.

    Args:
        specs: The jobs, by id.
    """
    if retain == "all":
        return None
    kept: dict[str, set[str]] = {job: set() for job in specs}
    if retain == "none":
        return kept
    f, r = front.c, reports.c
    if retain == "best":
        known = _firsts(select(f.job, f.trial).where(f.job.in_(kept)), f.job, *BEST_FIRST)
    else:
        known = select(f.job, f.trial).where(f.job.in_(kept))
    _add_trials(db, kept, known)
    if infeasible := [job for job, trials_of in kept.items() if not trials_of]:
        saved = exists().where(same_trial(checkpoints, reports))
        measured = select(r.job, r.trial).where(
            r.job.in_(infeasible), r.value.is_not(None), r.violation.is_not(None), saved
        )
        _add_trials(db, kept, _firsts(measured, r.job, r.violation, r.seq, r.step))
    if confirming := [job for job, spec in specs.items() if spec.confirm is not None]:
        t, other = trials.c, trials.alias().c
        again = exists().where(other.job == t.job, other.config == t.config, other.trial != t.trial)
        _add_trials(db, kept, select(t.job, t.trial).where(t.job.in_(confirming), again))
    return kept


def _firsts(rows: Select[Any], job: ColumnElement[str], *order: ColumnElement[Any]) -> Select[Any]:
    """Return a query for the job and the trial of the first row of each job, in the given order."""
    place = func.row_number().over(partition_by=job, order_by=order).label("place")
    ranked = rows.add_columns(place).subquery()
    return select(ranked.c.job, ranked.c.trial).where(ranked.c.place == 1)


def _add_trials(db: Connection, by_job: dict[str, set[str]], query: Select[Any]) -> None:
    """Add the trials that a query for pairs of job and trial returns."""
    for job, trial in db.execute(query):
        by_job[job].add(trial)


def trials_with_files(db: Connection, job: str) -> set[str]:
    """Return the trials that have recorded checkpoints or artifacts."""
    return {row.trial for row in db.execute(_with_files([job]))}


def trials_with_files_or_exports(db: Connection, names: Collection[str]) -> dict[str, set[str]]:
    """Return the trials of each of these jobs that have recorded checkpoints or artifacts, or exports with files."""
    by_job: dict[str, set[str]] = {job: set() for job in names}
    for job, trial in db.execute(_with_files(names)):
        by_job[job].add(trial)
    for row in exports.of_jobs(db, names):
        if _has_files(row):
            by_job[row.job].add(row.trial)
    return by_job


def _with_files(names: Collection[str]) -> CompoundSelect[Any]:
    """Return a query for the job and the trial of each trial of these jobs that has recorded checkpoints or artifacts."""
    c, u = checkpoints.c, attempt_usage.c
    return (
        select(c.job, c.trial)
        .where(c.job.in_(names))
        .union(select(u.job, u.trial).where(u.job.in_(names), u.artifact_bytes > 0))
    )


def exports_with_files(db: Connection, job: str) -> dict[str, str]:
    """Return the exports of the job that have files, each with its trial, by export id."""
    return {row.id: row.trial for row in exports.of_job(db, job) if _has_files(row)}


def _has_files(export: exports.ExportRow) -> bool:
    return any(each["file"] for each in export.result.get("variants", ()))


def checkpoint_bytes(db: Connection, job: str, names: Collection[str]) -> int:
    """Return the total size of the recorded checkpoints of these trials, in bytes."""
    c = checkpoints.c
    sizes = db.execute(select(c.trial, func.sum(c.size_bytes)).where(c.job == job).group_by(c.trial))
    return sum(int(size) for trial, size in sizes if trial in names)


def order_removal(
    db: Connection, job: str, project: str, at: Instant, *, kept: Collection[str], exported: Collection[str]
) -> None:
    """Delete the records of a job's files, and order the removal of the files from the storage, except those of the trials `kept`.

    After this transaction, nothing lists the files. A background loop removes them later. The removal is ordered for each trial that
    has had an attempt or has recorded files, and for each export. An earlier order for a trial keeps its place, and covers the newer
    attempts from now on.

    The caller must have locked the job (`lock_job`). The number of statements does not depend on the number of trials, because a job may
    have thousands, and with SQLite nobody else can write meanwhile.

    Args:
        exported: The exports of which files are recorded.
    """
    c, u, a, e, r = checkpoints.c, attempt_usage.c, attempts.c, exports_table.c, removals.c
    retained = sorted(kept)
    newest = select(func.max(a.attempt)).where(a.job == r.job, a.trial == r.trial).scalar_subquery()
    older = (r.job == job, r.trial.not_in(retained), r.up_to_attempt < newest)
    db.execute(update(removals).where(*older).values(up_to_attempt=newest))
    files = union_all(
        select(a.trial, a.attempt).where(a.job == job, a.trial.not_in(retained)),
        select(c.trial, literal_column("0")).where(c.job == job, c.trial.not_in(retained)),
        select(u.trial, literal_column("0")).where(
            u.job == job, u.trial.not_in(retained), u.artifact_bytes > 0
        ),
        select(e.export, literal_column("1")).where(e.job == job, e.trial.not_in(retained)),
    ).subquery()
    trial, attempt = files.c
    is_new = ~exists().where(r.job == job, r.trial == trial)
    order = select(literal(job), trial, literal(project), func.max(attempt), literal(at))
    columns = [r.job, r.trial, r.project, r.up_to_attempt, r.ordered_at]
    db.execute(insert(removals).from_select(columns, order.where(is_new).group_by(trial)))
    db.execute(delete(checkpoints).where(c.job == job, c.trial.not_in(retained)))
    of_artifacts = (u.job == job, u.trial.not_in(retained), u.artifact_bytes > 0)
    db.execute(update(attempt_usage).where(*of_artifacts).values(artifact_bytes=0))
    for export in exported:
        exports.forget_files(db, job, export)


def removals_to_do(db: Connection, limit: int, last: Collection[str] = ()) -> list[Removal]:
    """Return up to `limit` orders to remove files. Jobs take turns, and the oldest order of each job is first.

    The files of a job with thousands of trials therefore do not delay the removal of those of other jobs.

    Args:
        last: Jobs whose orders come after those of all other jobs.
    """
    r = removals.c
    turn = func.row_number().over(partition_by=r.job, order_by=(r.ordered_at, r.trial))
    query = select(r.job, r.trial, r.project, r.up_to_attempt)
    query = query.order_by(r.job.in_(sorted(last)), turn, r.ordered_at, r.job)
    return [Removal(*row) for row in db.execute(query.limit(limit))]


def removal_of(db: Connection, job: str, trial: str) -> int | None:
    """Return the number of the last attempt whose files are ordered to be removed, or None if nothing was ordered.

    The order covers the files of all attempts of the trial up to this number.
    """
    r = removals.c
    return db.execute(select(r.up_to_attempt).where(r.job == job, r.trial == trial)).scalar()


def removed(db: Connection, done: Removal) -> None:
    """Record that the files of a removal are gone, and that the size of the job's files has to be measured again."""
    r, s = removals.c, storage_spans.c
    mine = (r.job == done.job, r.trial == done.trial, r.up_to_attempt == done.up_to_attempt)
    db.execute(delete(removals).where(*mine))
    db.execute(update(storage_spans).where(s.job == done.job, s.until.is_(None)).values(seen_at=0))


def postpone_removal(db: Connection, failed: Removal) -> None:
    """Make a removal that failed the newest order, so that all other removals of the job are tried before it."""
    r = removals.c
    newest = db.execute(select(func.max(r.ordered_at))).scalar() or 0
    mine = (r.job == failed.job, r.trial == failed.trial)
    db.execute(update(removals).where(*mine).values(ordered_at=newest + 1))


# Sizes over time


def to_measure(db: Connection, now: Instant, *, every_ns: int, limit: int) -> list[DueMeasurement]:
    """Return up to `limit` jobs whose files must be measured, the oldest measurement first.

    A job that has started is measured every `every_ns` until it ends, once more after it has ended, and once after each later export.
    A measurement with a time in the future was made before the clock was set back, so it does not count.
    """
    j, s = jobs.c, storage_spans.c
    ended, e = j.state.in_(_FINAL), exports_table.c
    exported = exists().where(e.job == j.id, e.ended_at >= s.seen_at)
    due = or_(
        s.seen_at.is_(None),
        s.seen_at > now,
        and_(~ended, s.seen_at <= now - every_ns),
        and_(ended, or_(s.seen_at <= func.coalesce(j.ended_at, 0), exported)),
    )
    query = (
        select(j.id, j.project)
        .outerjoin(storage_spans, (s.job == j.id) & s.until.is_(None))
        .where(j.started_at.is_not(None), due)
        .order_by(func.coalesce(s.seen_at, 0), j.id)
    )
    return [DueMeasurement(row.id, row.project) for row in db.execute(query.limit(limit))]


def record_sizes(db: Connection, sizes: Mapping[DueMeasurement, int], now: Instant) -> None:
    """Record the sizes in bytes of the files of jobs, which were measured at `now` or later. The previous sizes apply until `now`."""
    s = storage_spans.c
    ids = [due.job for due in sizes]
    newest = {
        row.job: row
        for row in db.execute(select(s.job, s.since, s.bytes).where(s.job.in_(ids), s.until.is_(None)))
    }
    same = {due.job for due, size in sizes.items() if due.job in newest and newest[due.job].bytes == size}
    if same:
        db.execute(update(storage_spans).where(s.job.in_(same), s.until.is_(None)).values(seen_at=now))
    rows = []
    for due, size in sizes.items():
        if due.job in same:
            continue
        since = now
        if due.job in newest:
            since = Instant(max(now, newest[due.job].since + 1))  # the clock may have been set back
            mine = (s.job == due.job) & s.until.is_(None)
            db.execute(update(storage_spans).where(mine).values(until=since))
        rows.append({"job": due.job, "project": due.project, "since": since, "bytes": size, "seen_at": now})
    if rows:
        db.execute(insert(storage_spans), rows)


def spans(
    db: Connection, project: str, since: Instant, until: Instant, job: str | None = None
) -> Iterator[StoredSpan]:
    """Yield the spans that overlap the time from `since` to `until`, with the sizes of the jobs' files, ordered by job and time.

    Spans without files are left out. If `job` is given, yield only its spans.
    """
    s = storage_spans.c
    query = select(s.job, s.since, s.until, s.bytes).where(*_overlapping(project, since, until))
    if job is not None:
        query = query.where(s.job == job)
    for row in db.execute(query.order_by(s.job, s.since)):
        ends = None if row.until is None else Instant(row.until)
        yield StoredSpan(row.job, Instant(row.since), ends, row.bytes)


def _overlapping(project: str, since: Instant, until: Instant) -> tuple[ColumnElement[bool], ...]:
    s = storage_spans.c
    return s.project == project, s.since < until, or_(s.until.is_(None), s.until > since), s.bytes > 0


def stored_between(project: str, since: Instant, until: Instant) -> Select[tuple[str]]:
    """Return a query for the ids of the project's jobs that had files in the storage between the two times."""
    return select(storage_spans.c.job).where(*_overlapping(project, since, until))


def stored(project: str, job: str | None = None) -> Select[tuple[str]]:
    """Return a query for the ids of the project's jobs that have files in the storage.

    If `job` is given, the query selects only this job, even if it has no files any more.
    """
    s = storage_spans.c
    is_chosen = s.bytes > 0 if job is None else s.job == job
    return select(s.job).where(s.project == project, s.until.is_(None), is_chosen)


def present_sizes(db: Connection, which: Select[tuple[str]]) -> dict[str, tuple[int, Instant]]:
    """Return the last measured size of the files of each selected job, and when it was measured."""
    s = storage_spans.c
    rows = db.execute(select(s.job, s.bytes, s.seen_at).where(s.job.in_(which), s.until.is_(None)))
    return {row.job: (row.bytes, Instant(row.seen_at)) for row in rows}
