"""The books of a database that was restored. What happened after the backup is not in them, so nothing goes on by itself:

jobs that were not over are paused, what was held then counts as spent, and every driver of before is fenced.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update

from tuner.domain.job import FINAL
from tuner.domain.money import FREE, Cost
from tuner.domain.time import NS, Instant, rfc3339
from tuner.store import budget_waits, jobs, ledger
from tuner.store.jobs import JobRow
from tuner.store.journal import end_open
from tuner.store.tables import checkpoints, launches, leadership, trials
from tuner.store.tables import jobs as jobs_table

RECORDS = ("jobs", "budgets")  # a database without any of these holds nothing of anybody's
WHY = "the database was restored from a backup"
_EPOCHS_FROM = 1_577_836_800 * NS  # 2020


@dataclass(frozen=True, slots=True)
class Paused:
    """A job that was not over when the backup was made. `settled`: what it held then, posted as spent. `since`: what it spent
    afterwards and its books know nothing of, at most, or `exactly` by the database that was replaced."""

    id: str
    project: str
    name: str
    state: str
    settled: Cost
    since: Cost
    exactly: bool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that the database knows of."""

    project: str
    job: str
    trial: str
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Books:
    """What a restored database has, and what was paused."""

    jobs: frozenset[str]
    paused: tuple[Paused, ...]
    checkpoints: tuple[Checkpoint, ...]


def closing_epoch(at: Instant) -> int:
    """Later than that of any driver so far, also of those that the backup knows nothing of: launches of a job are more than a second
    apart. Fits into 31 bits until 2088."""
    return (at - _EPOCHS_FROM) // NS


def close(
    db: Connection, *, taken_at: Instant, at: Instant, role: str, posted: Mapping[str, Cost] | None = None
) -> Books:
    """`posted`: what the replaced database says was spent of each job; None where that cannot be known. `role`: of the service that
    acts. Doing it twice changes
    nothing but the epochs."""
    greatest = func.max if db.dialect.name == "sqlite" else func.greatest
    epoch = greatest(launches.c.epoch + 1, closing_epoch(at))
    db.execute(update(launches).values(epoch=epoch, state="ended", quick_deaths=0, not_before=0))
    _end_terms(db, role, at)
    query = (
        select(jobs_table.c.id)
        .where(jobs_table.c.state.not_in(FINAL))
        .order_by(jobs_table.c.created_at, jobs_table.c.id)
    )
    found = [jobs.get(db, job) for job in db.execute(query).scalars().all()]
    paused = [_pause(db, row, taken_at, at, posted) for row in found]
    going = tuple(one for row, one in zip(found, paused, strict=True) if row.wish != "cancel")
    every = frozenset(db.execute(select(jobs_table.c.id)).scalars())
    return Books(every, going, _checkpoints(db))


def _end_terms(db: Connection, role: str, at: Instant) -> None:
    """A service that stood still in the middle of a term may go on: the next term comes after any that it can have."""
    t = leadership.c
    before = db.execute(select(t.token).where(t.role == role)).scalars()
    token = max([closing_epoch(at), *(one + 1 for one in before)])
    if db.execute(update(leadership).where(t.role == role).values(token=token, expires_at=0)).rowcount == 0:
        over = {"holder": WHY, "version": "", "since": at, "expires_at": 0}
        db.execute(insert(leadership).values(role=role, token=token, **over))


def _pause(
    db: Connection, row: JobRow, taken_at: Instant, at: Instant, posted: Mapping[str, Cost] | None
) -> Paused:
    settled, before = FREE, ledger.account(db, row.id)
    for hold in ledger.open_holds(db, row.id):
        ledger.settle(
            db, row.project, row.id, hold.id, {} if hold.cost.nothing else {"lost": hold.cost}, taken_at
        )
        settled += hold.cost
    known = None if posted is None else posted.get(row.id)
    left = before.left
    since = _at_most(row, at - taken_at, left) if known is None else _within(known - before.posted - settled)
    paused = Paused(row.id, row.project, row.spec.name, row.state, settled, since, known is not None)
    jobs.move(db, row.id, "paused", row.stop_reason, at=taken_at, detail=_detail(paused, taken_at))
    budget_waits.end(db, row.id)
    if row.wish == "cancel":
        end_open(db, row.id, taken_at)
    t = trials.c
    ran = update(trials).where(t.job == row.id, t.state == "running")
    db.execute(ran.values(state="paused", reason=WHY, updated_at=taken_at))
    return paused


def _detail(paused: Paused, taken_at: Instant) -> str:
    known = "" if paused.exactly else "at most "
    missing = "nothing" if paused.since.nothing else f"{known}{paused.since.usd}"
    return (
        f"restored from the backup of {rfc3339(taken_at)}; of what it spent since then {missing} is missing in its books; "
        "`tuner resume` lets it go on"
    )


def _at_most(row: JobRow, elapsed_ns: int, left: Cost) -> Cost:
    """All its trials at once on the dearest machines ever since, within its budget."""
    size = row.spec.resources
    one = row.offer.rate(cpus=size.cpus, gpus=size.gpus).cost(max(0, elapsed_ns) * row.concurrency)
    return Cost(min(one.usd, left.usd), min(one.gpu_ms, left.gpu_ms))


def _within(cost: Cost) -> Cost:
    return Cost(max(cost.usd, FREE.usd), max(cost.gpu_ms, 0))


def _checkpoints(db: Connection) -> tuple[Checkpoint, ...]:
    c = checkpoints.c
    query = select(c.project, c.job, c.trial, c.step, c.attempt).order_by(c.job, c.trial, c.step)
    return tuple(Checkpoint(*row) for row in db.execute(query))
