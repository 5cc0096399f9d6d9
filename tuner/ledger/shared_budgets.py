"""Shared budgets in SQL: limits on the spend of all jobs with certain tags.

When a hold (money reserved for a job's work) is placed, the same transaction counts it in every shared budget that covers
the job. If one of them does not have enough left, the hold is refused.

Each shared budget has an account for each of its periods. As for a job's account, a CHECK on the row ensures that
`posted + held <= limit`. Money counts in the period in which its hold was placed.

Locks: a transaction that reads or changes these accounts first locks all budgets of the project, ordered by name
(`lock_budgets`). A transaction that changes the budgets themselves locks the whole table (`lock_exclusive`), because a hold that is
placed meanwhile would be missing from a budget that is being created.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, insert, select, text, update

from tuner.database.codec import decode
from tuner.database.ledger_tables import budget_accounts, budget_holds, budgets
from tuner.database.prepared import PreparedStatement
from tuner.database.tables import job_tags
from tuner.domain.budget import BUDGET
from tuner.domain.errors import NotFound
from tuner.domain.ledger import Account, Allowance
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import OpenHold
from tuner.domain.shared_budget import SharedBudget, applying
from tuner.domain.time import Instant

PERIODS_MAX = 40  # covers a month of daily periods, for which webhooks may be due

_PROJECTS = select(budgets.c.project).distinct().order_by(budgets.c.project)
_LOCK_BUDGETS = PreparedStatement(
    select(budgets.c.spec)
    .where(budgets.c.project == bindparam("of_project"))
    .order_by(budgets.c.name)
    .with_for_update()
)
# The key in `Connection.info` under which a connection keeps the budgets that its transaction has locked.
_LOCKED = "locked shared budgets"
_COUNTED_IN = PreparedStatement(
    select(budget_holds.c.name, budget_holds.c.began_at)
    .where(budget_holds.c.hold == bindparam("of_hold"))
    .order_by(budget_holds.c.name)
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A shared budget as the database stores it."""

    budget: SharedBudget
    secret: str  #: The key that signs the webhooks of the budget.
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class BudgetPeriod:
    """The account of one period of a shared budget."""

    began_at: Instant
    ends_at: Instant | None  #: None if the period has no end.
    account: Account


def projects(db: Connection) -> list[str]:
    """Return the projects that have shared budgets."""
    return list(db.execute(_PROJECTS).scalars())


def projects_with_alerts(db: Connection) -> list[str]:
    """Return the projects whose shared budgets may have alerts. A project's quota has none."""
    return list(db.execute(_PROJECTS.where(budgets.c.name != BUDGET)).scalars())


def kept(db: Connection, project: str) -> list[Kept]:
    """Return the project's shared budgets, ordered by name."""
    rows = db.execute(select(budgets).where(budgets.c.project == project).order_by(budgets.c.name))
    return [Kept(decode(r.spec), r.secret, Instant(r.created_at), Instant(r.updated_at)) for r in rows]


def get(db: Connection, project: str, name: str) -> Kept:
    """Return the shared budget, or raise NotFound."""
    budgets_named = [row for row in kept(db, project) if row.budget.name == name]
    if not budgets_named:
        raise NotFound(f"the budget {name[:100]!r} does not exist")
    return budgets_named[0]


def lock_budgets(db: Connection, project: str) -> list[SharedBudget]:
    """Lock and return all shared budgets of the project. Until this transaction ends, no other transaction can lock them.

    Further calls in the same transaction return the budgets that the first call has read, because no budget can change before the transaction ends.
    """
    transaction = db.get_transaction()
    locked = db.info.get(_LOCKED)
    if locked is None or locked[:2] != (transaction, project):
        specs = _LOCK_BUDGETS.all(db, {"of_project": project})
        locked = db.info[_LOCKED] = (transaction, project, [decode(spec) for (spec,) in specs])
    budgets_locked: list[SharedBudget] = locked[2]
    return budgets_locked


def lock_exclusive(db: Connection) -> None:
    """Block the placing of holds in all projects until the transaction ends.

    Call it before changing shared budgets. To change the tags that decide which jobs they cover, `lock_budgets` is enough.
    """
    db.info.pop(_LOCKED, None)
    if db.dialect.name == "postgresql":
        db.execute(text("LOCK TABLE budgets IN EXCLUSIVE MODE"))


def tags_of(db: Connection, job: str) -> dict[str, str]:
    t = job_tags.c
    return {key: value for key, value in db.execute(select(t.key, t.value).where(t.job == job))}


def period_at(db: Connection, project: str, budget: SharedBudget, at: Instant) -> BudgetPeriod:
    """Return the budget's period that contains `at`, with its account. If the account is not stored yet, it is empty."""
    began_at, ends_at = budget.span(at)
    row = db.execute(select(budget_accounts).where(period(project, budget.name, began_at))).first()
    return BudgetPeriod(began_at, ends_at, Account(budget.limit)) if row is None else _budget_period(row)


def periods(db: Connection, project: str, name: str, *, since: Instant) -> list[BudgetPeriod]:
    """Return the budget's periods that have an account and end after `since`, oldest first.

    Return at most the newest PERIODS_MAX periods.
    """
    a = budget_accounts.c
    mine = (a.project == project) & (a.name == name) & (a.ends_at.is_(None) | (a.ends_at > since))
    rows = db.execute(select(budget_accounts).where(mine).order_by(a.began_at.desc()).limit(PERIODS_MAX))
    return [_budget_period(row) for row in rows][::-1]


def _budget_period(row: Row[Any]) -> BudgetPeriod:
    account = Account(
        Cost(Money(row.limit_usd), row.limit_gpu_ms),
        Cost(Money(row.posted_usd), row.posted_gpu_ms),
        Cost(Money(row.held_usd), row.held_gpu_ms),
    )
    ends_at = None if row.ends_at is None else Instant(row.ends_at)
    return BudgetPeriod(Instant(row.began_at), ends_at, account)


def allowance(
    db: Connection, project: str, job: str, at: Instant, own: Cost, *, freeing: str = "", freed: Cost = FREE
) -> Allowance:
    """Return how much more the job may hold: the least of `own` and the amounts that the job's shared budgets have left.

    The least amount is determined for dollars and for GPU time separately. If it is below `own`, the result also names the shared budget
    that has only this amount left.

    Args:
        own: What the job's own budget has left. It already includes `freed`.
        freeing: Id of a hold that will be settled before the allowance is used. Empty if there is none.
        freed: The cost that settling this hold will release.
    """
    allowed = Allowance(own)
    budgets = lock_budgets(db, project)
    for budget in applying(budgets, tags_of(db, job)) if budgets else []:
        now = period_at(db, project, budget, at)
        left = now.account.left
        if freeing and _counts(db, freeing, budget.name, now.began_at):
            left += freed
        if left.usd < allowed.left.usd:
            allowed = replace(allowed, left=Cost(left.usd, allowed.left.gpu_ms), usd_limited_by=budget.name)
        if left.gpu_ms < allowed.left.gpu_ms:
            allowed = replace(allowed, left=Cost(allowed.left.usd, left.gpu_ms), gpus_limited_by=budget.name)
    return allowed


def _counts(db: Connection, hold: str, name: str, began_at: Instant) -> bool:
    """Return True if the hold was counted in the account of this budget period."""
    b = budget_holds.c
    mine = (b.hold == hold) & (b.name == name) & (b.began_at == began_at)
    return db.execute(select(b.hold).where(mine)).first() is not None


def reserve(db: Connection, project: str, job: str, hold: OpenHold) -> list[tuple[str, Instant]] | None:
    """Count the hold in every shared budget of the job, and return the accounts in which it counts.

    An account is given by the name of the budget and the start of the period. Return None, and leave the amounts unchanged, if one of the
    budgets does not have enough left.
    """
    budgets = lock_budgets(db, project)
    reserved: list[tuple[str, Instant]] = []
    for budget in applying(budgets, tags_of(db, job)) if budgets else []:
        now = period_at(db, project, budget, hold.placed_at)
        _open(db, project, budget, now)
        if not _add(db, project, (budget.name, now.began_at), held=hold.cost, bounded=True):
            unreserve(db, project, hold, reserved)
            return None
        reserved.append((budget.name, now.began_at))
    return reserved


def unreserve(db: Connection, project: str, hold: OpenHold, reserved: Sequence[tuple[str, Instant]]) -> None:
    for budget_period in reserved:
        _add(db, project, budget_period, held=-hold.cost)


def note(db: Connection, project: str, hold: str, reserved: Sequence[tuple[str, Instant]]) -> None:
    """Record in which shared-budget accounts a hold counts, as `reserve` returned them."""
    if reserved:
        rows = [{"hold": hold, "project": project, "name": name, "began_at": at} for name, at in reserved]
        db.execute(insert(budget_holds), rows)


def settle(db: Connection, project: str, hold: str, *, held: Cost, spent: Cost) -> None:
    """Update each shared-budget account in which the hold counts: subtract `held` from it and add `spent`.

    The caller must lock the project's shared budgets with `lock_budgets` before it reads the hold's row.
    """
    # A project without shared budgets has no accounts, because removing a budget removes its accounts.
    if not lock_budgets(db, project):
        return
    for name, began_at in _COUNTED_IN.all(db, {"of_hold": hold}):
        _add(db, project, (name, Instant(began_at)), held=-held, posted=spent)


def _open(db: Connection, project: str, budget: SharedBudget, now: BudgetPeriod) -> None:
    mine = period(project, budget.name, now.began_at)
    if db.execute(select(budget_accounts.c.name).where(mine)).first() is None:
        set_account(db, project, budget, replace(now, account=Account(budget.limit)))


def set_account(db: Connection, project: str, budget: SharedBudget, now: BudgetPeriod) -> None:
    limit, posted, held = now.account.limit, now.account.posted, now.account.held
    values = {
        "ends_at": now.ends_at,
        **{"limit_usd": limit.usd.micro_usd, "limit_gpu_ms": limit.gpu_ms},
        **{"posted_usd": posted.usd.micro_usd, "posted_gpu_ms": posted.gpu_ms},
        **{"held_usd": held.usd.micro_usd, "held_gpu_ms": held.gpu_ms},
    }
    mine = period(project, budget.name, now.began_at)
    if db.execute(update(budget_accounts).where(mine).values(values)).rowcount == 0:
        key = {"project": project, "name": budget.name, "began_at": now.began_at}
        db.execute(insert(budget_accounts).values(**key, **values))


def _add(
    db: Connection,
    project: str,
    where: tuple[str, Instant],
    *,
    held: Cost,
    posted: Cost = FREE,
    bounded: bool = False,
) -> bool:
    """Add the amounts to the account `where`, a pair of the budget's name and the start of the period. Return whether it was changed.

    If `bounded` is True and the account's limit would be exceeded, nothing is changed.
    """
    a, mine = budget_accounts.c, period(project, *where)
    if bounded:
        mine &= a.posted_usd + a.held_usd + held.usd.micro_usd <= a.limit_usd
        mine &= a.posted_gpu_ms + a.held_gpu_ms + held.gpu_ms <= a.limit_gpu_ms
    more = {
        "held_usd": a.held_usd + held.usd.micro_usd,
        "held_gpu_ms": a.held_gpu_ms + held.gpu_ms,
        "posted_usd": a.posted_usd + posted.usd.micro_usd,
        "posted_gpu_ms": a.posted_gpu_ms + posted.gpu_ms,
    }
    return db.execute(update(budget_accounts).where(mine).values(more)).rowcount == 1


def period(project: str, name: str, began_at: Instant) -> ColumnElement[bool]:
    a = budget_accounts.c
    return (a.project == project) & (a.name == name) & (a.began_at == began_at)
