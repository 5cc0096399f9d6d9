"""Correct the accounts of a restored database, which lacks everything that happened after the backup.

Jobs that had not ended are paused, and none of them resumes by itself. Their open holds are posted as spent, and all earlier
drivers are fenced. If the accounts of the replaced database are known, each job's spend since the backup is posted. Otherwise a job may
have spent all that was left of its budget, so the rest of its budget is subtracted. This applies to jobs that had ended or were being
cancelled, too, because they may have been resumed or exported. A tighter bound is not possible: after the backup, a user may have let more
trials run at once, and attempts pay the price of the machines that they are given, which may exceed that of every offer of the job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, func, insert, select, text, update

from tuner.database.tables import checkpoints, launches, leadership, trials
from tuner.database.tables import jobs as jobs_table
from tuner.domain.budget import UNLIMITED_GPU_MS, UNLIMITED_MICRO_USD
from tuner.domain.ids import RESTORED, hold_id
from tuner.domain.job import FINAL
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost, Money, amounts
from tuner.domain.records import EntryPlace
from tuner.domain.time import NS, Instant, rfc3339
from tuner.ledger import budget_waits, ledger
from tuner.ledger.readable import accounts
from tuner.store import exports, jobs
from tuner.store.jobs import JobRow
from tuner.store.journal import end_open

RECORDS = ("jobs", "budgets")  # a database in which these tables are empty counts as empty
# On PostgreSQL, the table `launches` has this comment from the restore until the accounts are corrected.
RESTORING = "being restored"
WHY = "the database was restored from a backup"
# The start of 2020. In a restored database, epochs are seconds since this time, so that they exceed the epochs of all earlier drivers.
_EPOCHS_FROM = 1_577_836_800 * NS


@dataclass(frozen=True, slots=True)
class PausedJob:
    """A job that had not ended when the backup was made. The restore pauses it."""

    id: str
    name: str
    state_before: str
    settled_usd: float  #: Dollars that were held in the ledger when the backup was made. The restore posts them as spent.
    #: Dollars spent after the backup. If `exact`, they are posted as lost. Otherwise these are the dollars that were left, of which any part
    #: may have been spent, and they are subtracted from the budget.
    since_usd: float
    since_gpu_hours: float  #: The same in GPU-hours.
    #: Whether `since_usd` and `since_gpu_hours` are known, from the replaced database or from the operator.
    exact: bool


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """A checkpoint that the restored database lists. Its files may no longer exist."""

    project: str
    job: str
    trial: str
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RestoredRows:
    """The jobs and checkpoints that a restored database contains, and the jobs that the restore changed."""

    jobs: frozenset[str]
    paused: tuple[PausedJob, ...]
    #: Jobs that had ended or were being cancelled, and whose spend after the backup is not known. The rest of their budgets was subtracted.
    lowered: tuple[str, ...]
    checkpoints: tuple[CheckpointKey, ...]


def forget(db: Connection, gone: Sequence[CheckpointKey]) -> None:
    """Delete the records of checkpoints whose files are gone. Their trials resume from older checkpoints or start from the beginning."""
    c = checkpoints.c
    for key in gone:
        db.execute(delete(checkpoints).where(c.job == key.job, c.trial == key.trial, c.step == key.step))


def closing_epoch(at: Instant) -> int:
    """Return an epoch that is higher than the epoch of any earlier driver, including drivers that were started after the backup.

    It is the number of seconds since 2020. Epochs of drivers are lower, because they count the launches of a job, which are more than a
    second apart. The result fits into 31 bits until 2088.
    """
    return (at - _EPOCHS_FROM) // NS


def close(
    db: Connection,
    *,
    taken_at: Instant,
    at: Instant,
    role: str,
    replaced: Mapping[str, Account],
    nothing_spent: bool,
) -> RestoredRows:
    """Pause all jobs that have not ended, fence earlier drivers and leaders, and correct the accounts.

    Args:
        taken_at: When the backup was made.
        at: The current time.
        role: The leadership role whose term ends.
        replaced: The accounts of the replaced database, by job. Empty if they are not known.
        nothing_spent: Whether a job that is not in `replaced` spent nothing after the backup.
    """
    greatest = func.max if db.dialect.name == "sqlite" else func.greatest
    epoch = greatest(launches.c.epoch + 1, closing_epoch(at))
    db.execute(update(launches).values(epoch=epoch, state="ended", quick_deaths=0, not_before=0))
    _end_terms(db, role, at)
    _end_exports(db, at)
    j, c = jobs_table.c, checkpoints.c
    paused, lowered = list[PausedJob](), list[str]()
    for job in db.execute(select(j.id).order_by(j.created_at, j.id)).scalars().all():
        row, known = jobs.get(db, job), replaced.get(job)
        if known is None and nothing_spent:
            known = ledger.account(db, job)
        limit = row.budget.limit - _rest(row, ledger.account(db, job)) if known is None else known.limit
        has_ended = row.state in FINAL
        if not has_ended:
            paused_job = _pause(db, row, taken_at, known)
            has_ended = row.control_request == "cancel"  # it is cancelled instead
            if not has_ended:
                paused.append(paused_job)
        if _lower(db, row, limit) and has_ended and known is None:
            lowered.append(job)
    _note_all(db, replaced, at)
    if db.dialect.name == "postgresql":
        db.execute(text("COMMENT ON TABLE launches IS NULL"))
    keys = select(c.project, c.job, c.trial, c.step, c.attempt).order_by(c.job, c.trial, c.step)
    return RestoredRows(
        frozenset(db.execute(select(j.id)).scalars()),
        tuple(paused),
        tuple(lowered),
        tuple(CheckpointKey(*key) for key in db.execute(keys)),
    )


def _end_exports(db: Connection, at: Instant) -> None:
    """Fail all exports that have not ended. Their whole holds count as lost, because their processes may have run after the backup."""
    for row in exports.live(db):
        hold = ledger.open_hold(db, row.hold)
        if hold is not None:
            ledger.settle(db, row.project, row.job, hold.id, {"lost": hold.cost}, at)
        exports.end(db, row, "failed", at, code="export_lost", detail=f"{WHY}; export again")


def _end_terms(db: Connection, role: str, at: Instant) -> None:
    """End the current leadership term, and make the next fencing token higher than any earlier one.

    Otherwise a service that became leader after the backup and was suspended during the restore could write again.
    """
    t = leadership.c
    before = db.execute(select(t.token).where(t.role == role)).scalars()
    token = max([closing_epoch(at), *(earlier_token + 1 for earlier_token in before)])
    if db.execute(update(leadership).where(t.role == role).values(token=token, expires_at=0)).rowcount == 0:
        over = {"holder": WHY, "version": "", "since": at, "expires_at": 0}
        db.execute(insert(leadership).values(role=role, token=token, **over))


def _pause(db: Connection, row: JobRow, taken_at: Instant, known: Account | None) -> PausedJob:
    before = ledger.account(db, row.id)
    # A whole hold counts as lost, because its worker may have continued after the backup.
    settled = ledger.settle_open(
        db, row.project, row.id, lambda hold: {} if hold.cost.nothing else {"lost": hold.cost}, taken_at
    )
    since = (
        _rest(row, before) if known is None else _within(known.posted + known.held - before.posted - settled)
    )
    next_steps = "resume the job with `tuner resume`"
    if known is not None:
        spent = f"the job spent {amounts(since.usd.usd or None, since.gpu_hours or None)} after the backup"
        spent += "" if since.nothing else ", which counts as lost"
    elif since.nothing:
        spent = "nothing of the job's budget was left when the backup was made"
    else:
        spent = "the job may have spent the rest of its budget after the backup, so the rest is subtracted"
        next_steps = f"if it spent less, raise its budget; {next_steps}"
    detail = f"restored from the backup of {rfc3339(taken_at)}; {spent}"
    if row.control_request != "cancel":  # a cancelled job cannot be resumed
        detail += f"; {next_steps}"
    jobs.move(db, row.id, "paused", row.stop_reason, at=taken_at, detail=detail)
    budget_waits.end(db, row.id)
    if row.control_request == "cancel":
        end_open(db, row.id, taken_at)
    t = trials.c
    ran = update(trials).where(t.job == row.id, t.state == "running")
    db.execute(ran.values(state="paused", reason=WHY, updated_at=taken_at))
    return PausedJob(
        row.id,
        row.spec.name,
        row.state,
        settled_usd=settled.usd.usd,
        since_usd=since.usd.usd,
        since_gpu_hours=since.gpu_hours,
        exact=known is not None,
    )


def _note_all(db: Connection, known: Mapping[str, Account], at: Instant) -> None:
    """Post as `lost` what the jobs spent since the backup, according to the accounts of the replaced database.

    This includes jobs that had ended when the backup was made and were resumed later. If the budget of a job was raised after the
    backup, it is raised again as far as that spend needs it, because otherwise a part of the spend would be missing from the shared
    budgets. In shared budgets, the amount counts in the current period, because nothing can be posted to an earlier period any more.
    """
    a, epoch = accounts.c, closing_epoch(at)
    query = select(a.job, a.project, a.posted_usd, a.posted_gpu_ms)
    for job, project, usd, gpu_ms in db.execute(query).all():
        account = known.get(job, Account(FREE))
        posted = Cost(Money(usd), gpu_ms)
        short = _within(account.posted + account.held - posted)
        if not short.nothing:
            _raise(db, jobs.get(db, job), (posted + short).at_most(account.limit))
            where = EntryPlace(hold_id(job, RESTORED, epoch, 1), RESTORED, epoch, 1)
            ledger.note_spent(db, project, job, where, short, at)


def _lower(db: Connection, row: JobRow, limit: Cost) -> bool:
    """Lower the job's budget to `limit`, and return whether it was lowered. A budget that is already lower is not changed.

    The new budget is at least the posted amount, and more than zero, because a budget cannot be zero. Dollars or GPU time that the budget
    does not limit stay unlimited.
    """
    most, posted = limit.at_most(row.budget.limit), ledger.account(db, row.id).posted
    usd, gpu_ms = max(most.usd, posted.usd, Money(1)), max(most.gpu_ms, posted.gpu_ms, 1)
    less = replace(
        row.budget,
        usd=None if usd.micro_usd > UNLIMITED_MICRO_USD // 2 else usd,
        gpu_ms=None if gpu_ms > UNLIMITED_GPU_MS // 2 else gpu_ms,
    )
    if less != row.budget:
        jobs.set_budget(db, row.id, less)
    return less != row.budget


def _raise(db: Connection, row: JobRow, limit: Cost) -> None:
    """Raise the job's budget to `limit`. A budget that is already higher is not changed."""
    budget = row.budget
    more = replace(
        budget,
        usd=None if budget.usd is None else max(budget.usd, limit.usd),
        gpu_ms=None if budget.gpu_ms is None else max(budget.gpu_ms, limit.gpu_ms),
    )
    if more != budget:
        jobs.set_budget(db, row.id, more)


def _rest(row: JobRow, account: Account) -> Cost:
    """Return how much of the dollars and the GPU time that the job's budget limits is left. An unlimited amount counts as 0."""
    usd = FREE.usd if row.budget.usd is None else account.left.usd
    return Cost(usd, 0 if row.budget.gpu_ms is None else account.left.gpu_ms)


def _within(cost: Cost) -> Cost:
    return Cost(max(cost.usd, FREE.usd), max(cost.gpu_ms, 0))
