"""Jobs as rows: created whole in one transaction, read, tagged, wished for, topped up."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, delete, exists, func, insert, select, tuple_, update

from tuner.domain.budget import Budget
from tuner.domain.errors import Conflict, IdempotencyConflict, NotFound
from tuner.domain.job import JobSpec, JobState, StopReason, check_move
from tuner.domain.offer import Offer
from tuner.domain.time import NS, Instant
from tuner.store import history, launches, ledger
from tuner.store.codec import decode, encode
from tuner.store.tables import accounts, attempts, idempotency, job_tags, jobs, trials

Wish = Literal["pause", "cancel", "resume"]
"""`resume` is wished for while a job is being paused: it goes on as soon as it is."""
IDEMPOTENCY_NS = 24 * 3600 * NS
# Made once: it takes several times as long to put such a question together as to have it answered.
_GET = select(jobs).where(jobs.c.id == bindparam("job"))
_OF_KEY = select(idempotency).where(
    idempotency.c.project == bindparam("project"), idempotency.c.key == bindparam("key")
)
_TAGS = select(job_tags).where(job_tags.c.job.in_(bindparam("jobs", expanding=True))).order_by(job_tags.c.key)


@dataclass(frozen=True, eq=False)
class JobRow:
    """`offer` is the dearest kind of machine that trials may be given, `others` what else they may. `code`: the digest of the
    trainable's code with which its trials ran; None where that is not known, or changed meanwhile. Compared by which it is: the same
    record is the same row while it is remembered."""

    id: str
    project: str
    spec: JobSpec
    budget: Budget
    budget_version: int
    offer: Offer
    concurrency: int
    priority: int
    state: JobState
    stop_reason: StopReason | None
    detail: str
    wish: Wish | None
    created_at: Instant
    started_at: Instant | None
    ended_at: Instant | None
    running_since: Instant | None
    ran_ns: int
    tags: Mapping[str, str]
    others: tuple[Offer, ...] = ()
    code: str | None = None

    @property
    def offers(self) -> tuple[Offer, ...]:
        return (self.offer, *self.others)

    def running_ns(self, now: Instant) -> int:
        """How long it has been running, its present run included."""
        return self.ran_ns + (0 if self.running_since is None else max(0, now - self.running_since))


@dataclass(frozen=True)
class NewJob:
    """`key` and `body_sha256` make a repeat of the request find the same job."""

    id: str
    project: str
    spec: JobSpec
    offer: Offer
    concurrency: int
    at: Instant
    key: str | None = None
    body_sha256: str = ""
    others: tuple[Offer, ...] = ()
    priority: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Control:
    """What people want of a running job, as its driver reads it."""

    wish: Wish | None
    budget: Budget
    budget_version: int


def create(db: Connection, new: NewJob) -> str:
    """The job, its account, how far the jobs that it learns from count, and the order to launch it. Answers the id of the job that this Idempotency-Key made before, if any."""
    if (known := made_before(db, new)) is not None:
        return known
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
            "priority": new.priority,
            "state": "queued",
            "detail": new.detail,
            "created_at": new.at,
            "ran_ns": 0,
        },
    )
    set_tags(db, new.id, new.project, new.spec.tags)
    ledger.open_account(db, new.id, new.project, new.spec.budget.limit)
    history.note(db, new.id, new.project, new.spec.warm_start_jobs)
    opens_at = new.at if new.spec.window is None else new.spec.window.opening(new.at)
    launches.want(db, new.id, new.project, new.at, not_before=opens_at if opens_at > new.at else 0)
    if new.key is not None:
        row = {"project": new.project, "key": new.key, "job": new.id, "created_at": new.at}
        db.execute(insert(idempotency), {**row, "body_sha256": new.body_sha256})
    return new.id


def made_by(db: Connection, project: str, key: str, body_sha256: str, *, at: Instant) -> str | None:
    """The job that this Idempotency-Key made in the last day, if any. Raises IdempotencyConflict for another body."""
    row = db.execute(_OF_KEY, {"project": project, "key": key}).first()
    if row is None or at - row.created_at > IDEMPOTENCY_NS:
        return None
    if row.body_sha256 != body_sha256:
        raise IdempotencyConflict("this Idempotency-Key was used for another request; use a new key")
    return str(row.job)


def made_before(db: Connection, new: NewJob) -> str | None:
    """Return the job that an earlier request with the same Idempotency-Key made, or None. Other requests with the key wait until the
    transaction ends.

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


def get(db: Connection, job: str, project: str | None = None) -> JobRow:
    """Raises NotFound, too for a job of another project."""
    row = db.execute(_GET, {"job": job}).first()
    if row is None or (project is not None and row.project != project):
        raise NotFound(f"there is no job {job!r}")
    return _job(row, _tags(db, [job]).get(job, {}))


def page(
    db: Connection,
    project: str,
    *,
    state: JobState | None,
    tag: tuple[str, str] | None,
    before: tuple[int, str] | None,
    limit: int,
) -> list[JobRow]:
    """Newest first; `before` is (created_at, id) of the last job of the page before."""
    j = jobs.c
    query = select(jobs).where(j.project == project)
    if state is not None:
        query = query.where(j.state == state)
    if tag is not None:
        tagged = select(job_tags.c.job).where(
            job_tags.c.project == project, job_tags.c.key == tag[0], job_tags.c.value == tag[1]
        )
        query = query.where(j.id.in_(tagged))
    if before is not None:
        query = query.where(tuple_(j.created_at, j.id) < before)
    rows = db.execute(query.order_by(j.created_at.desc(), j.id.desc()).limit(limit)).all()
    tags = _tags(db, [row.id for row in rows])
    return [_job(row, tags.get(row.id, {})) for row in rows]


def of_trainable(db: Connection, project: str, trainable: str) -> list[JobRow]:
    """All jobs that tune it, newest first."""
    mine = (jobs.c.project == project) & (jobs.c.trainable == trainable)
    rows = db.execute(select(jobs).where(mine).order_by(jobs.c.created_at.desc(), jobs.c.id.desc())).all()
    return [_job(row, {}) for row in rows]


def trainables(db: Connection, project: str) -> list[str]:
    """All that some job tunes."""
    query = select(jobs.c.trainable).where(jobs.c.project == project).distinct().order_by(jobs.c.trainable)
    return [row.trainable for row in db.execute(query)]


def set_tags(db: Connection, job: str, project: str, tags: Mapping[str, str]) -> None:
    db.execute(delete(job_tags).where(job_tags.c.job == job))
    if tags:
        rows = [{"job": job, "project": project, "key": key, "value": value} for key, value in tags.items()]
        db.execute(insert(job_tags), rows)


def change_alone(db: Connection, job: str) -> None:
    """Nobody else who changes it by request goes on before this transaction has ended. To be asked for before its row is read."""
    _lock(db, job)  # not its row, which its driver locks after that of its account


def _lock(db: Connection, what: str) -> None:
    """Until the transaction ends; SQLite has one that writes at a time."""
    if db.dialect.name == "postgresql":
        db.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(what, 0))))


def set_priority(db: Connection, job: str, priority: int) -> None:
    db.execute(update(jobs).where(jobs.c.id == job).values(priority=priority))


def set_wish(db: Connection, job: str, wish: Wish | None) -> None:
    db.execute(update(jobs).where(jobs.c.id == job).values(wish=wish))


def set_offers(db: Connection, job: str, offers: tuple[Offer, ...]) -> None:
    """The dearest first."""
    db.execute(update(jobs).where(jobs.c.id == job).values(offer=_offers(offers)))


def _offers(offers: tuple[Offer, ...]) -> str:
    return encode(offers if len(offers) > 1 else offers[0])


def set_budget(db: Connection, job: str, budget: Budget) -> None:
    """Raises Conflict where less is allowed than is spent and held."""
    a, limit = accounts.c, budget.limit
    fits = (
        (a.job == job)
        & (a.posted_usd + a.held_usd <= limit.usd.micro_usd)
        & (a.posted_gpu_ms + a.held_gpu_ms <= limit.gpu_ms)
    )
    new = {"limit_usd": limit.usd.micro_usd, "limit_gpu_ms": limit.gpu_ms}
    if db.execute(update(accounts).where(fits).values(new)).rowcount != 1:
        spent = ledger.account(db, job)
        used = spent.posted + spent.held
        raise Conflict(
            f"{used.usd} and {used.gpu_hours:.6f} GPU-hours are already spent or held; allow at least that"
        )
    changed = {"budget": encode(budget), "budget_version": jobs.c.budget_version + 1}
    db.execute(update(jobs).where(jobs.c.id == job).values(changed))


def control(db: Connection, job: str) -> Control:
    j = jobs.c
    row = db.execute(select(j.wish, j.budget, j.budget_version).where(j.id == job)).one()
    return Control(row.wish, decode(row.budget), row.budget_version)


def move(
    db: Connection, job: str, state: JobState, reason: StopReason | None, *, at: Instant, detail: str = ""
) -> None:
    """Changes the state, counting the time that the job was running. Raises Conflict for a move that there is not.

    A job that somebody cancelled while it was being paused is cancelled.
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
    final = state in ("succeeded", "cancelled", "failed")
    db.execute(
        update(jobs)
        .where(j.id == job)
        .values(
            state=state,
            stop_reason=reason,
            detail=detail,
            running_since=(was or at) if runs else None,
            ran_ns=row.ran_ns + max(0, at - was) if was is not None and not runs else row.ran_ns,
            started_at=row.started_at or (at if runs else None),
            ended_at=at if final else None,
            wish=None if not runs else j.wish,
        )
    )


def has_attempts(db: Connection, job: str) -> bool:
    """Whether a trial of it has ever begun."""
    return bool(db.execute(select(exists().where(attempts.c.job == job))).scalar_one())


def begin_running(db: Connection, job: str, *, at: Instant) -> None:
    """A driver begins: from here on the job's running time counts."""
    move(db, job, "running", None, at=at)


def trials_begun(db: Connection, job: str) -> int:
    return int(db.execute(select(func.count()).where(trials.c.job == job)).scalar_one())


def note_code(db: Connection, job: str, code: str | None) -> None:
    """With which code its trials run from now on."""
    known = db.execute(select(jobs.c.code).where(jobs.c.id == job)).scalar()
    if known != code:
        same = not has_attempts(db, job)
        db.execute(update(jobs).where(jobs.c.id == job).values(code=code if same else None))


def revive(db: Connection, job: str) -> None:
    """A job that is paused, or succeeded, runs again; its time counts once it has a driver. Raises Conflict."""
    state = db.execute(select(jobs.c.state).where(jobs.c.id == job)).scalar_one()
    check_move(state, "running")
    gone = dict.fromkeys(("stop_reason", "ended_at", "running_since", "wish"))
    fresh = {"state": "running", "detail": "", **gone}
    db.execute(update(jobs).where(jobs.c.id == job).values(fresh))


def running_ns(db: Connection, job: str, now: Instant) -> int:
    """How long the job has been running, its present run included."""
    j = jobs.c
    row = db.execute(select(j.ran_ns, j.running_since).where(j.id == job)).one()
    return int(row.ran_ns) + (max(0, now - row.running_since) if row.running_since is not None else 0)


def _tags(db: Connection, ids: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for job, key, value, _project in db.execute(_TAGS, {"jobs": ids}).all():
        found.setdefault(job, {})[key] = value
    return found


def _job(row: Row[tuple[object, ...]], tags: Mapping[str, str]) -> JobRow:
    return _made(tuple(row), tuple(tags.items()))


@lru_cache(maxsize=2048)
def _made(values: tuple[object, ...], tags: tuple[tuple[str, str], ...]) -> JobRow:
    """The same for the same row: pages are asked for again and again, and to make their jobs anew takes most of the time."""
    found: dict[str, Any] = dict(zip(jobs.c.keys(), values, strict=True))
    del found["name"], found["trainable"]
    for coded in ("spec", "budget", "offer"):
        found[coded] = _decoded(str(found[coded]))
    if isinstance(found["offer"], tuple):
        found["offer"], *others = found["offer"]
        found["others"] = tuple(others)
    return JobRow(**found, tags=dict(tags))


@lru_cache(maxsize=2048)
def _decoded(text: str) -> Any:
    return decode(text)  # nobody changes a value of the domain
