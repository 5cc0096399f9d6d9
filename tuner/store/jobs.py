"""The rows of jobs: create a job in one transaction, read it, tag it, record control requests, change its budget and state.

Requests about single trials are numbered within their job. The job's driver records each request as an event with the same number, so
that it knows after a restart which requests it has handled.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    Row,
    Select,
    Text,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from tuner.database.codec import decode, encode
from tuner.database.tables import attempts, events, idempotency, job_tags, jobs, trial_requests, trials
from tuner.domain.budget import Budget
from tuner.domain.errors import IdempotencyConflict, NotFound
from tuner.domain.events import TrialRequest
from tuner.domain.job import FINAL, JobSpec, JobState, StopReason, check_move
from tuner.domain.offer import Offer
from tuner.domain.text import storable
from tuner.domain.time import NS, Instant
from tuner.ledger import ledger
from tuner.store import launches, stored_files, warm_starts

ControlAction = Literal["pause", "cancel", "resume"]
"""A pending control request. `resume` is recorded only while a job is pausing. The job then resumes once it is paused."""
IDEMPOTENCY_NS = 24 * 3600 * NS


class _ObjectOf(FunctionElement[str]):
    """The SQL aggregate that returns the keys and values of several rows as the text of a JSON object.

    SQLite and PostgreSQL have different names for it.
    """

    type = Text()
    inherit_cache = True


@compiles(_ObjectOf, "postgresql")
def _on_postgresql(element: _ObjectOf, compiler: SQLCompiler, **options: Any) -> str:
    # As text, because psycopg would decode the JSON to a dict, which cannot be part of the key of the cache of `_made`.
    return f"CAST(json_object_agg({compiler.process(element.clauses, **options)}) AS TEXT)"


@compiles(_ObjectOf, "sqlite")
def _on_sqlite(element: _ObjectOf, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_group_object({compiler.process(element.clauses, **options)})"


# Built once, because SQLAlchemy takes several times as long to build such a query as the database takes to answer it.
_TAGS = (
    select(_ObjectOf(job_tags.c.key, job_tags.c.value)).where(job_tags.c.job == jobs.c.id).scalar_subquery()
)
_WITH_TAGS = select(jobs, _TAGS)
_GET = _WITH_TAGS.where(jobs.c.id == bindparam("job"))
_OF_KEY = select(idempotency).where(
    idempotency.c.project == bindparam("project"), idempotency.c.key == bindparam("key")
)
_NEWEST_EVENT = select(func.coalesce(func.max(events.c.seq), 0)).where(events.c.job == bindparam("job"))
_NEWEST_REQUEST = (
    select(func.coalesce(func.max(trial_requests.c.number), 0))
    .where(trial_requests.c.job == jobs.c.id)
    .scalar_subquery()
    .label("newest_request")
)
_CONTROL = select(
    jobs.c.wish, jobs.c.budget, jobs.c.budget_version, jobs.c.concurrency, _NEWEST_REQUEST
).where(jobs.c.id == bindparam("job"))


@dataclass(frozen=True, eq=False)
class JobRow:
    """A job, as read from the database.

    Instances compare by identity. Reading an unchanged row again returns the same object while the row is cached.
    """

    id: str
    project: str
    spec: JobSpec
    budget: Budget
    budget_version: int
    offer: Offer  #: The most expensive offer that trials may use.
    concurrency: int  #: How many trials may run at once. It was computed from the machines that existed when it was set.
    max_concurrent_trials: (
        int | None
    )  #: The user's limit on trials that run at once. None if the user set none.
    priority: int
    state: JobState
    stop_reason: StopReason | None
    detail: str
    control_request: ControlAction | None
    created_at: Instant
    started_at: Instant | None
    ended_at: Instant | None
    running_since: Instant | None
    ran_ns: int
    tags: Mapping[str, str]
    others: tuple[Offer, ...] = ()  #: The other offers that trials may use.
    #: Digest of the trainable's code that the trials ran. None if it is unknown or has changed between trials.
    code: str | None = None

    @property
    def offers(self) -> tuple[Offer, ...]:
        return (self.offer, *self.others)

    def running_ns(self, now: Instant) -> int:
        """Return how many nanoseconds the job has been running in total, including the time since it last began to run."""
        return self.ran_ns + (0 if self.running_since is None else max(0, now - self.running_since))


@dataclass(frozen=True)
class NewJob:
    id: str
    project: str
    spec: JobSpec
    offer: Offer
    concurrency: int
    at: Instant
    key: str | None = None  #: The request's Idempotency-Key. A repeat of the request finds the same job.
    #: Digest of the request's body. It distinguishes a repeat of the request from another request with the same key.
    body_sha256: str = ""
    others: tuple[Offer, ...] = ()
    priority: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Control:
    """The changes that users have requested of a running job, in the form in which its driver reads them."""

    request: ControlAction | None
    budget: Budget
    budget_version: int
    concurrency: int
    newest_request: int  #: Number of the newest request about a trial. 0 if there is none.


def create(db: Connection, new: NewJob) -> str:
    """Create the job and its account, record which earlier jobs it uses, and order the launch of its driver. Return the job's id.

    If `new.key` is set, call `made_before` first in the same transaction, and create the job only if it returns None. Otherwise the row of
    an expired key, or of a request at the same time, makes this fail.
    """
    db.execute(
        insert(jobs),
        {
            "id": new.id,
            "project": new.project,
            "name": new.spec.name,
            "trainable": new.spec.trainable,
            "spec": encode(new.spec),
            "budget": encode(new.spec.budget),
            "budget_version": 0,
            "offer": _offers((new.offer, *new.others)),
            "concurrency": new.concurrency,
            "max_concurrent_trials": new.spec.resources.max_concurrent_trials,
            "priority": new.priority,
            "state": "queued",
            "detail": new.detail,
            "created_at": new.at,
            "ran_ns": 0,
        },
    )
    set_tags(db, new.id, new.project, new.spec.tags)
    ledger.open_account(db, new.id, new.project, new.spec.budget.limit)
    warm_starts.note(db, new.id, new.project, new.spec.warm_start_jobs)
    stored_files.note_teacher(db, new.id, new.project, new.spec.teacher)
    launches.want(db, new.id, new.project, new.at, window=new.spec.window)
    if new.key is not None:
        row = {"project": new.project, "key": new.key, "job": new.id, "created_at": new.at}
        db.execute(insert(idempotency), {**row, "body_sha256": new.body_sha256})
    return new.id


def made_by(db: Connection, project: str, key: str, body_sha256: str, *, at: Instant) -> str | None:
    """Return the job that a request with this Idempotency-Key created in the last 24 hours, or None.

    Raises:
        IdempotencyConflict: That request had another body.
    """
    row = db.execute(_OF_KEY, {"project": project, "key": key}).first()
    if row is None or at - row.created_at > IDEMPOTENCY_NS:
        return None
    if row.body_sha256 != body_sha256:
        raise IdempotencyConflict("this Idempotency-Key was used for another request; use a new key")
    return str(row.job)


def made_before(db: Connection, new: NewJob) -> str | None:
    """Return the job that an earlier request with the same Idempotency-Key created, or None.

    Other requests with the key wait until the transaction ends. An expired key is deleted, so that it can be used
    again.

    Raises:
        IdempotencyConflict: The earlier request had another body.
    """
    if new.key is None:
        return None
    _lock(db, f"{new.project} {new.key}")
    if (known := made_by(db, new.project, new.key, new.body_sha256, at=new.at)) is None:
        i = idempotency.c
        db.execute(delete(idempotency).where(i.project == new.project, i.key == new.key))
    return known


def lock_pilots(db: Connection, project: str, key: str) -> None:
    """Block other submissions of pilots with this key until the transaction ends. Call it before looking for a pilot with the key."""
    _lock(db, f"{project} pilot {key}")


def get(db: Connection, job: str, project: str | None = None) -> JobRow:
    """Return the job.

    Raises:
        NotFound: The job does not exist, or `project` is given and the job belongs to another project.
    """
    row = db.execute(_GET, {"job": job}).first()
    if row is None or (project is not None and row.project != project):
        raise NotFound(f"the job {job!r} does not exist")
    return _job(row)


def newest_event(db: Connection, job: str) -> int:
    """Return the number of the job's newest event, or 0 if it has none."""
    return int(db.execute(_NEWEST_EVENT, {"job": job}).scalar_one())


def page(
    db: Connection,
    project: str,
    *,
    state: JobState | None,
    tag: tuple[str, str] | None,
    before: tuple[int, str] | None,
    limit: int,
) -> list[JobRow]:
    """Return one page of a project's jobs, newest first.

    Args:
        state: Return only jobs in this state. None means any state.
        tag: Return only jobs with this tag, as (key, value). None means any tags.
        before: `(created_at, id)` of the last job of the previous page.
    """
    j = jobs.c
    query = _WITH_TAGS.where(j.project == project)
    if state is not None:
        query = query.where(j.state == state)
    if tag is not None:
        tagged = select(job_tags.c.job).where(
            job_tags.c.project == project, job_tags.c.key == tag[0], job_tags.c.value == tag[1]
        )
        query = query.where(j.id.in_(tagged))
    if before is not None:
        query = query.where(tuple_(j.created_at, j.id) < before)
    query = query.order_by(j.created_at.desc(), j.id.desc())
    return [_job(row) for row in db.execute(query.limit(limit))]


def of_trainable(db: Connection, project: str, trainable: str) -> list[JobRow]:
    """Return all jobs of the project that tune this trainable, newest first, without their tags."""
    mine = (jobs.c.project == project) & (jobs.c.trainable == trainable)
    query = select(jobs).where(mine).order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
    return [_job(row) for row in db.execute(query)]


def with_tag(db: Connection, project: str, key: str, value: str, limit: int) -> list[JobRow]:
    """Return the newest jobs of the project that have a tag which few jobs have, newest first.

    `page` searches the list of all jobs for the tag, which is faster for a tag that many jobs have.
    """
    t = job_tags.c
    tagged = select(t.job).where(t.project == project, t.key == key, t.value == value)
    query = _WITH_TAGS.where(jobs.c.id.in_(tagged)).order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
    return [_job(row) for row in db.execute(query.limit(limit))]


def started_of_trainable(db: Connection, project: str, trainable: str, limit: int) -> list[JobRow]:
    """Return the jobs of the project that tune this trainable and started last, the last one first."""
    j = jobs.c
    started = (j.project == project) & (j.trainable == trainable) & j.started_at.is_not(None)
    # sorted like the index ix_jobs_trainable, so that a long queue of jobs that have not started is not read
    query = _WITH_TAGS.where(started).order_by(j.started_at.desc(), j.id.desc())
    return [_job(row) for row in db.execute(query.limit(limit))]


def trainables(db: Connection, project: str) -> list[str]:
    """Return the trainables that the project's jobs tune, sorted by name."""
    query = select(jobs.c.trainable).where(jobs.c.project == project).distinct().order_by(jobs.c.trainable)
    return [row.trainable for row in db.execute(query)]


def ended_between(db: Connection, project: str, since: Instant, until: Instant) -> list[JobRow]:
    """Return the jobs of the project that ended at or after `since` and before `until`, without their tags."""
    j = jobs.c
    query = select(jobs).where(j.project == project, j.ended_at >= since, j.ended_at < until)
    return [_job(row) for row in db.execute(query.order_by(j.ended_at, j.id))]


def selected(db: Connection, which: Select[tuple[str]]) -> list[JobRow]:
    """Return the jobs whose ids the query `which` selects, without their tags."""
    return [_job(row) for row in db.execute(select(jobs).where(jobs.c.id.in_(which)))]


def set_tags(db: Connection, job: str, project: str, tags: Mapping[str, str]) -> None:
    db.execute(delete(job_tags).where(job_tags.c.job == job))
    if tags:
        rows = [{"job": job, "project": project, "key": key, "value": value} for key, value in tags.items()]
        db.execute(insert(job_tags), rows)


def change_alone(db: Connection, job: str) -> None:
    """Block all other requests that would change the job, and the turns of its driver, until the transaction ends.

    Call this before reading the job's row. Otherwise the driver could pause or end the job between the reading and the change, or
    overwrite the change.
    """
    # This is not a lock on the job's row. The driver locks the launch first, then the account's row and then the job's row, so a request that
    # locked the job's row first could deadlock with the driver.
    launches.lock(db, job)


def lock_concurrency(db: Connection, project: str) -> None:
    """Block other requests that change how many trials the project's jobs may run at once, until the transaction ends.

    Call `change_alone` before this and all other locks after it. All requests then take the locks in the same order and cannot
    deadlock.
    """
    _lock(db, project)


def _lock(db: Connection, what: str) -> None:
    """Take the lock named `what` until the transaction ends. SQLite needs no lock, because it runs one write transaction at a time."""
    if db.dialect.name == "postgresql":
        db.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(what, 0))))


def set_priority(db: Connection, job: str, priority: int) -> None:
    db.execute(update(jobs).where(jobs.c.id == job).values(priority=priority))


def set_control_request(db: Connection, job: str, action: ControlAction | None) -> None:
    db.execute(update(jobs).where(jobs.c.id == job).values(wish=action))


def set_offers(db: Connection, job: str, offers: tuple[Offer, ...]) -> None:
    """Replace the offers that the job's trials may use. The first must be the most expensive, because it becomes `JobRow.offer`."""
    db.execute(update(jobs).where(jobs.c.id == job).values(offer=_offers(offers)))


def _offers(offers: tuple[Offer, ...]) -> str:
    return encode(offers if len(offers) > 1 else offers[0])


def set_budget(db: Connection, job: str, budget: Budget) -> None:
    """Replace the job's budget and the limits of its account.

    Raises:
        Conflict: The new limit is below what is already spent and held.
    """
    ledger.set_limit(db, job, budget.limit)
    changed = {"budget": encode(budget), "budget_version": jobs.c.budget_version + 1}
    db.execute(update(jobs).where(jobs.c.id == job).values(changed))


def control(db: Connection, job: str) -> Control:
    row = db.execute(_CONTROL, {"job": job}).one()
    return Control(row.wish, decode(row.budget), row.budget_version, row.concurrency, row.newest_request)


def set_concurrency(db: Connection, job: str, concurrency: int, limit: int) -> None:
    """Set how many trials of the job may run at once.

    Args:
        concurrency: How many trials may run at once on the present machines and under the project's quota.
        limit: How many trials the user allows to run at once (`JobRow.max_concurrent_trials`).
    """
    changed = {"concurrency": concurrency, "max_concurrent_trials": limit}
    db.execute(update(jobs).where(jobs.c.id == job).values(changed))


def request_trial(
    db: Connection, job: str, project: str, at: Instant, request: Callable[[int], TrialRequest]
) -> None:
    """Record a request about a trial for the job's driver. Call `change_alone` first.

    Args:
        request: A function that builds the request from its number.
    """
    r = trial_requests.c
    newest = db.execute(select(func.coalesce(func.max(r.number), 0)).where(r.job == job)).scalar_one()
    row = {"job": job, "project": project, "at": at, "number": newest + 1}
    db.execute(insert(trial_requests).values(**row, body=encode(request(newest + 1))))


def trial_requests_of(db: Connection, job: str, *, after: int = 0) -> list[TrialRequest]:
    """Return the requests about the job's trials whose number is above `after`, oldest first."""
    r = trial_requests.c
    query = select(r.body).where(r.job == job, r.number > after).order_by(r.number)
    return [decode(body) for body in db.execute(query).scalars()]


def move(
    db: Connection, job: str, state: JobState, reason: StopReason | None, *, at: Instant, detail: str = ""
) -> None:
    """Change the job's state. If the job stops running, add the time since it last began to run to its running time.

    If a user has cancelled the job while it was pausing, it becomes cancelled instead of paused.

    Args:
        detail: Why the state changes. It may contain text of user code, so characters that databases reject are replaced.

    Raises:
        Conflict: A job in its current state cannot move to `state`.
    """
    j = jobs.c
    row = db.execute(
        select(j.state, j.running_since, j.started_at, j.ran_ns, j.wish).where(j.id == job)
    ).one()
    if state == "paused" and row.wish == "cancel":
        state, reason = "cancelled", "cancelled"
    if row.state != state:
        check_move(row.state, state)
    runs = state == "running"
    was = row.running_since if row.state == "running" else None
    final = state in FINAL
    db.execute(
        update(jobs)
        .where(j.id == job)
        .values(
            state=state,
            stop_reason=reason,
            detail=storable(detail),
            running_since=(was or at) if runs else None,
            ran_ns=row.ran_ns + max(0, at - was) if was is not None and not runs else row.ran_ns,
            started_at=row.started_at or (at if runs else None),
            ended_at=at if final else None,
            wish=None if not runs else j.wish,
        )
    )


def has_attempts(db: Connection, job: str) -> bool:
    """Return True if any attempt of the job was ever recorded."""
    return bool(db.execute(select(exists().where(attempts.c.job == job))).scalar_one())


def begin_running(db: Connection, job: str, *, at: Instant) -> None:
    """Move the job to the state running, because its driver has started. Its running time counts from `at`."""
    move(db, job, "running", None, at=at)


def trials_begun(db: Connection, job: str) -> int:
    return int(db.execute(select(func.count()).where(trials.c.job == job)).scalar_one())


def note_code(db: Connection, job: str, code: str | None) -> None:
    """Record the digest of the code that the job's trials run from now on.

    If earlier attempts of the job ran other code, record None instead: then no single digest describes all trials.
    """
    known = db.execute(select(jobs.c.code).where(jobs.c.id == job)).scalar()
    if known != code:
        same = not has_attempts(db, job)
        db.execute(update(jobs).where(jobs.c.id == job).values(code=code if same else None))


def revive(db: Connection, job: str) -> None:
    """Set a paused or succeeded job back to the state running, or a job that was paused before it began to queued.

    Its running time counts again once it has a driver.

    Raises:
        Conflict: The job is in a state from which it cannot run.
    """
    row = db.execute(select(jobs.c.state, jobs.c.started_at).where(jobs.c.id == job)).one()
    state: JobState = "queued" if row.state == "paused" and row.started_at is None else "running"
    check_move(row.state, state)
    gone = dict.fromkeys(("stop_reason", "ended_at", "running_since", "wish"))
    fresh = {"state": state, "detail": "", **gone}
    db.execute(update(jobs).where(jobs.c.id == job).values(fresh))


def _job(row: Row[Any]) -> JobRow:
    """Convert a row of `_WITH_TAGS`, or a row of `jobs` without tags."""
    return _made(tuple(row))


@lru_cache(maxsize=2048)
def _made(values: tuple[Any, ...]) -> JobRow:
    """Convert a row to a `JobRow`. Equal rows are converted once and cached.

    Clients request the same pages repeatedly, and most of the time of such a request is spent on converting rows.
    """
    columns = jobs.c.keys()
    fields: dict[str, Any] = dict(zip(columns, values[: len(columns)], strict=True))
    tags = json.loads(values[len(columns)] or "{}") if len(values) > len(columns) else {}
    del fields["name"], fields["trainable"]
    fields["control_request"] = fields.pop("wish")
    for coded in ("spec", "budget", "offer"):
        fields[coded] = _decoded(str(fields[coded]))
    if isinstance(fields["offer"], tuple):
        fields["offer"], *others = fields["offer"]
        fields["others"] = tuple(others)
    return JobRow(**fields, tags=dict(sorted(tags.items())))  # databases may return the keys in any order


@lru_cache(maxsize=2048)
def _decoded(text: str) -> Any:
    return decode(text)  # safe to share: domain values are never modified
