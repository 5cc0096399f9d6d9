"""The ledger in SQL: accounts, holds and entries.

Invariant: for every account, `posted + held <= limit` in every unit. It is enforced twice, by the conditional update in
`place` and by a CHECK on the row. Entries are only added, never changed.

Every function runs in the caller's transaction. Ids of holds and entries derive from job, trial, attempt and lease number,
so that repeating a call changes nothing. The lease number is stored in the column `slice`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    RowMapping,
    Select,
    bindparam,
    case,
    func,
    insert,
    select,
    update,
)

from tuner.database.ledger_tables import accounts, entries, holds
from tuner.database.prepared import PreparedStatement
from tuner.domain.cost import CostKind, total
from tuner.domain.errors import Conflict
from tuner.domain.ids import EXPORT_ID, entry_id
from tuner.domain.ledger import Account, EntryType
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import EntryPlace, OpenHold
from tuner.domain.time import Instant
from tuner.ledger import shared_budgets

UNITS = ("usd", "gpu_ms")
# The amounts of an account follow from three sums over its entries: posted = entered, and held = put - taken. These are the types of the
# entries in each sum.
_PARTS: Mapping[str, tuple[EntryType, ...]] = {
    "entered": ("post", "correct"),
    "put": ("hold",),
    "taken": ("post", "release"),
}

# These statements are prepared, because the driver executes them for each message. Their parameters have other names than columns, such as
# `of_job`, because SQLAlchemy reserves the names of columns for the values that an INSERT or UPDATE sets.
_A, _H = accounts.c, holds.c
_USD: BindParameter[int] = bindparam("of_usd")
_GPU_MS: BindParameter[int] = bindparam("of_gpu_ms")
_SPENT_USD: BindParameter[int] = bindparam("spent_usd")
_SPENT_GPU_MS: BindParameter[int] = bindparam("spent_gpu_ms")
AMOUNTS = ("limit_usd", "limit_gpu_ms", "posted_usd", "posted_gpu_ms", "held_usd", "held_gpu_ms")
_AMOUNTS = [_A[name] for name in AMOUNTS]
_OF_JOB = select(*_AMOUNTS).where(_A.job == bindparam("of_job"))
_ACCOUNT, _LOCK_ACCOUNT = PreparedStatement(_OF_JOB), PreparedStatement(_OF_JOB.with_for_update())
_PLACED = PreparedStatement(select(_H.id).where(_H.id == bindparam("of_hold")))
_RESERVE = PreparedStatement(
    update(accounts)
    .where(
        _A.job == bindparam("of_job"),
        _A.posted_usd + _A.held_usd + _USD <= _A.limit_usd,
        _A.posted_gpu_ms + _A.held_gpu_ms + _GPU_MS <= _A.limit_gpu_ms,
    )
    .values({"held_usd": _A.held_usd + _USD, "held_gpu_ms": _A.held_gpu_ms + _GPU_MS})
    .returning(*_AMOUNTS)
)
_PLACE = PreparedStatement(insert(holds))
_HOLD_FIELDS = (_H.id, _H.trial, _H.attempt, _H.slice, _H.usd, _H.gpu_ms, _H.placed_at, _H.ends_at)
_OPEN_HOLD = PreparedStatement(select(*_HOLD_FIELDS).where(_H.id == bindparam("of_hold"), _H.state == "open"))
_CLOSE_HOLD = PreparedStatement(
    update(holds)
    .where(_H.id == bindparam("of_hold"), _H.state == "open")
    .values(state="settled")
    .returning(*_HOLD_FIELDS)
)
_SPEND = PreparedStatement(
    update(accounts)
    .where(_A.job == bindparam("of_job"))
    .values(
        posted_usd=_A.posted_usd + _SPENT_USD,
        held_usd=_A.held_usd - _USD,
        posted_gpu_ms=_A.posted_gpu_ms + _SPENT_GPU_MS,
        held_gpu_ms=_A.held_gpu_ms - _GPU_MS,
    )
    .returning(*_AMOUNTS)
)
_ENTER = PreparedStatement(insert(entries))


@dataclass(frozen=True, slots=True)
class EntryRow:
    seq: int
    id: str
    entry: EntryType
    kind: CostKind | None
    trial: str
    attempt: int
    slice: int
    cost: Cost
    at: Instant


def open_account(db: Connection, job: str, project: str, limit: Cost) -> None:
    row = {"job": job, "project": project, "limit_usd": limit.usd.micro_usd, "limit_gpu_ms": limit.gpu_ms}
    zero = {"posted_usd": 0, "held_usd": 0, "posted_gpu_ms": 0, "held_gpu_ms": 0}
    db.execute(insert(accounts), {**row, **zero})


def set_limit(db: Connection, job: str, limit: Cost) -> None:
    """Replace the limit of the job's account.

    Raises:
        Conflict: The new limit is below what is already spent and held.
    """
    fits = (
        (_A.job == job)
        & (_A.posted_usd + _A.held_usd <= limit.usd.micro_usd)
        & (_A.posted_gpu_ms + _A.held_gpu_ms <= limit.gpu_ms)
    )
    new = {"limit_usd": limit.usd.micro_usd, "limit_gpu_ms": limit.gpu_ms}
    if db.execute(update(accounts).where(fits).values(new)).rowcount != 1:
        spent = account(db, job)
        used = spent.posted + spent.held
        raise Conflict(
            f"{used.usd} and {used.gpu_hours:.6f} GPU-hours are already spent or held; allow at least these amounts"
        )


def account(db: Connection, job: str) -> Account:
    return account_of(*_ACCOUNT.one(db, {"of_job": job}))


def lock_account(db: Connection, project: str, job: str) -> Account:
    """Lock and return the job's account.

    No other transaction can change the account until this one ends, so a hold that fits into it can still be placed later in this
    transaction. The shared budgets are locked before the account. Placing a hold locks them in the same order, so that two
    transactions cannot deadlock. SQLite needs no locks, because it runs one write transaction at a time.
    """
    shared_budgets.lock_budgets(db, project)
    return account_of(*_LOCK_ACCOUNT.one(db, {"of_job": job}))


def place(db: Connection, project: str, job: str, hold: OpenHold) -> Account | None:
    """Place the hold: reserve its cost in the job's account and in the job's shared budgets.

    Return the changed account, which stays locked until the transaction ends. Return None, and change nothing, if the cost exceeds what
    the job's budget or one of the shared budgets has left. If the hold was placed before, only lock and return the account.
    """
    if _PLACED.first(db, {"of_hold": hold.id}):
        return lock_account(db, project, job)
    usd, gpu_ms = hold.cost.usd.micro_usd, hold.cost.gpu_ms
    taken = shared_budgets.reserve(db, project, job, hold)
    if taken is None:
        return None
    amounts = _RESERVE.first(db, {"of_job": job, "of_usd": usd, "of_gpu_ms": gpu_ms})
    if amounts is None:
        shared_budgets.unreserve(db, project, hold, taken)
        return None
    _PLACE.run(
        db,
        {
            "id": hold.id,
            "job": job,
            "project": project,
            "trial": hold.trial,
            "attempt": hold.attempt,
            "slice": hold.slice,
            "usd": usd,
            "gpu_ms": gpu_ms,
            "placed_at": hold.placed_at,
            "ends_at": hold.ends_at,
            "state": "open",
        },
    )
    shared_budgets.note(db, project, hold.id, taken)
    _enter(db, project, job, [_entry(hold.place, "hold", None, hold.cost, hold.placed_at)])
    return account_of(*amounts)


def settle(
    db: Connection, project: str, job: str, hold_id: str, used: Mapping[CostKind, Cost], at: Instant
) -> Account:
    """Settle the hold: post the costs `used` (by cost kind) as spend, and release the rest.

    Return the changed account, which stays locked until the transaction ends. If the hold was settled before, only lock and return the
    account.

    Raises:
        ValueError: `used` adds up to more than the hold. The hold is already marked as settled, so the caller must roll back.
    """
    shared_budgets.lock_budgets(db, project)
    closed = _CLOSE_HOLD.first(db, {"of_hold": hold_id})
    if closed is None:
        _PLACED.one(db, {"of_hold": hold_id})
        return lock_account(db, project, job)
    hold, spent = _hold(closed), total(used)
    if not spent.fits(hold.cost):
        raise ValueError(f"the costs to post for {hold_id} add up to {spent}, but only {hold.cost} was held")
    amounts = _SPEND.one(
        db,
        {
            "of_job": job,
            "of_usd": hold.cost.usd.micro_usd,
            "of_gpu_ms": hold.cost.gpu_ms,
            "spent_usd": spent.usd.micro_usd,
            "spent_gpu_ms": spent.gpu_ms,
        },
    )
    shared_budgets.settle(db, project, hold_id, held=hold.cost, spent=spent)
    rows = [_entry(hold.place, "post", kind, cost, at) for kind, cost in used.items()]
    rest = hold.cost - spent
    if not rest.nothing:
        rows.append(_entry(hold.place, "release", None, rest, at))
    _enter(db, project, job, rows)
    return account_of(*amounts)


def settle_open(
    db: Connection, project: str, job: str, used: Callable[[OpenHold], Mapping[CostKind, Cost]], at: Instant
) -> Cost:
    """Settle all open holds of a job that has no driver any more, and return the cost that was posted.

    The holds of exports stay open, because exports run in processes of their own.

    Args:
        used: A function that returns the part of a hold that was used, by cost kind.
    """
    posted = FREE
    for hold in open_holds(db, job):
        costs = used(hold)
        settle(db, project, job, hold.id, costs, at)
        posted += total(costs)
    return posted


def note_spent(db: Connection, project: str, job: str, where: EntryPlace, cost: Cost, at: Instant) -> None:
    """Post a cost of the kind `lost` that was spent after the backup from which this database was restored.

    Post at most what the job's own budget has left. If a shared budget of the job has less left, post only that smaller amount to the
    shared budgets. The rest is posted to the job's account alone.

    Args:
        where: What the entries belong to.
        cost: The cost to post.
        at: The time of the entries.
    """
    own = cost.at_most(account(db, job).left)
    shared = shared_budgets.allowance(db, project, job, at, own).left
    hold = OpenHold(where.id, where.trial, where.attempt, where.slice, shared, at, at)
    if not shared.nothing and place(db, project, job, hold):
        settle(db, project, job, hold.id, {"lost": shared}, at)
        own -= shared
    if not own.nothing:
        alone = replace(where, id=f"{where.id}/alone", slice=where.slice + 1)
        _post_alone(db, project, job, alone, own, at)


def _post_alone(db: Connection, project: str, job: str, where: EntryPlace, cost: Cost, at: Instant) -> None:
    """Post a cost to the job's account only.

    No row is added to `holds`. The accounts of shared budgets are recalculated from the rows of `holds`, so with a row the cost would
    later count in the shared budgets, too.
    """
    a = accounts.c
    more = {"posted_usd": a.posted_usd + cost.usd.micro_usd}
    more |= {"posted_gpu_ms": a.posted_gpu_ms + cost.gpu_ms}
    db.execute(update(accounts).where(a.job == job).values(more))
    entered = [_entry(where, "hold", None, cost, at), _entry(where, "post", "lost", cost, at)]
    _enter(db, project, job, entered)


def correct(
    db: Connection, project: str, job: str, where: EntryPlace, costs: Mapping[CostKind, Cost], at: Instant
) -> None:
    """Move posted cost between cost kinds, such as from `train` to `lost`. Repeating a correction with the same id changes nothing.

    Args:
        where: The correction, with its trial and attempt.
        costs: The amount to add to each cost kind. It may be negative.
        at: The time of the entries.

    Raises:
        ValueError: The costs do not add up to zero.
    """
    if not total(costs).nothing:
        raise ValueError(
            f"a correction moves cost between kinds: its costs must add up to zero, not to {total(costs)}"
        )
    rows = [_entry(where, "correct", kind, cost, at) for kind, cost in costs.items()]
    known = db.execute(select(entries.c.id).where(entries.c.id.in_([row["id"] for row in rows]))).first()
    if known is None:
        _enter(db, project, job, [row for row in rows if row["usd"] or row["gpu_ms"]])


def open_holds(db: Connection, job: str) -> list[OpenHold]:
    """Return the open holds of a job, except the holds of its exports."""
    rows = db.execute(select(*_HOLD_FIELDS).where(_H.job == job, _H.state == "open"))
    return [_hold(row) for row in rows if not EXPORT_ID.fullmatch(row.trial)]


def open_hold(db: Connection, hold_id: str) -> OpenHold | None:
    """Return an open hold, or None if it was never placed or is settled."""
    row = _OPEN_HOLD.first(db, {"of_hold": hold_id})
    return None if row is None else _hold(row)


def posted_by_kind(
    db: Connection, job: str, trial: str | None = None, attempt: int | None = None
) -> dict[CostKind, Cost]:
    """Return the cost of a job, a trial or an attempt, by cost kind: the sums of its `post` and `correct` entries."""
    e = entries.c
    query = select(e.kind, func.sum(e.usd), func.sum(e.gpu_ms)).where(e.job == job, e.kind.is_not(None))
    if trial is not None:
        query = query.where(e.trial == trial)
    if attempt is not None:
        query = query.where(e.attempt == attempt)
    return {kind: Cost(Money(int(usd)), int(gpu)) for kind, usd, gpu in db.execute(query.group_by(e.kind))}


def lines(db: Connection, job: str, *, after: int = 0, limit: int = 1000) -> list[EntryRow]:
    """Return the first `limit` ledger entries of a job with a sequence number above `after`, oldest first."""
    e = entries.c
    query = select(entries).where(e.job == job, e.seq > after).order_by(e.seq).limit(limit)
    return [
        EntryRow(
            r.seq,
            r.id,
            r.entry,
            r.kind,
            r.trial,
            r.attempt,
            r.slice,
            Cost(Money(r.usd), r.gpu_ms),
            Instant(r.at),
        )
        for r in db.execute(query)
    ]


def accounts_after(db: Connection, job: str, limit: int) -> list[str]:
    """Return the ids of up to `limit` jobs that have an account, in ascending order, starting after the id `job`."""
    a = accounts.c
    return list(db.execute(select(a.job).where(a.job > job).order_by(a.job).limit(limit)).scalars())


def _added_up() -> Select[Any]:
    """Return a query for the accounts of several jobs, with the sums of each job's entries and of its open holds.

    The query's parameter `of` lists the jobs. The query is one statement, so that all sums are read from the same state of the database.
    """
    jobs: Any = bindparam("of", expanding=True)
    a, e, h = accounts.c, entries.c, holds.c
    opened = (
        select(h.job, *(func.sum(h[unit]).label(f"open_{unit}") for unit in UNITS))
        .where(h.job.in_(jobs), h.state == "open")
        .group_by(h.job)
        .subquery()
    )
    entered = (
        select(
            e.job,
            *(
                func.sum(case((e.entry.in_(posts), e[unit]), else_=0)).label(f"{name}_{unit}")
                for name, posts in _PARTS.items()
                for unit in UNITS
            ),
        )
        .where(e.job.in_(jobs))
        .group_by(e.job)
        .subquery()
    )
    sums = [
        func.coalesce(column, 0).label(column.name)
        for subquery in (entered, opened)
        for column in subquery.c
        if column.name != "job"
    ]
    with_sums = accounts.outerjoin(entered, entered.c.job == a.job).outerjoin(opened, opened.c.job == a.job)
    return select(accounts, *sums).select_from(with_sums).where(a.job.in_(jobs))


_ADDED_UP = _added_up()


def faults_of(db: Connection, jobs: Collection[str]) -> dict[str, list[str]]:
    """Compare the accounts of several jobs with their limits, entries and open holds. Return the faults as texts, by job."""
    rows = db.execute(_ADDED_UP, {"of": list(jobs)})
    return {row["job"]: _wrong(row) for row in rows.mappings()}


def _wrong(row: RowMapping) -> list[str]:
    faults = []
    if any(row[f"posted_{unit}"] != row[f"entered_{unit}"] for unit in UNITS):
        faults.append("the posted amount differs from the sum of its entries")
    if any(row[f"held_{unit}"] != row[f"put_{unit}"] - row[f"taken_{unit}"] for unit in UNITS):
        faults.append("the held amount differs from the sum of its entries")
    if any(row[f"held_{unit}"] != row[f"open_{unit}"] for unit in UNITS):
        faults.append("the held amount differs from the sum of the open holds")
    if any(row[f"posted_{unit}"] + row[f"held_{unit}"] > row[f"limit_{unit}"] for unit in UNITS):
        faults.append("the posted and held amounts exceed the budget")
    return faults


def account_of(
    limit_usd: int, limit_gpu_ms: int, posted_usd: int, posted_gpu_ms: int, held_usd: int, held_gpu_ms: int
) -> Account:
    """Return an account from the columns `AMOUNTS` of a row, which are in micro-dollars and GPU-milliseconds."""
    return Account(
        Cost(Money(limit_usd), limit_gpu_ms),
        Cost(Money(posted_usd), posted_gpu_ms),
        Cost(Money(held_usd), held_gpu_ms),
    )


def _hold(row: Sequence[Any]) -> OpenHold:
    """Return a hold from the columns `_HOLD_FIELDS` of a row."""
    hold, trial, attempt, number, usd, gpu_ms, placed_at, ends_at = row
    return OpenHold(hold, trial, attempt, number, Cost(Money(usd), gpu_ms), placed_at, ends_at)


def _entry(
    where: EntryPlace, entry: EntryType, kind: CostKind | None, cost: Cost, at: Instant
) -> dict[str, object]:
    return {
        "id": entry_id(where.id, entry, kind or ""),
        "entry": entry,
        "kind": kind,
        "trial": where.trial,
        "attempt": where.attempt,
        "slice": where.slice,
        "usd": cost.usd.micro_usd,
        "gpu_ms": cost.gpu_ms,
        "at": at,
    }


def _enter(db: Connection, project: str, job: str, rows: list[dict[str, object]]) -> None:
    _ENTER.run_all(db, [{**row, "job": job, "project": project} for row in rows])
