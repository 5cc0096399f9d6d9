"""Create, change and remove shared budgets, and recalculate their accounts from holds and ledger entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, String, cast, delete, func, insert, select, update

from tuner.database.codec import decode, encode
from tuner.database.ledger_tables import budget_accounts, budget_holds, budgets, entries, holds
from tuner.database.tables import job_tags, jobs
from tuner.domain.errors import Conflict
from tuner.domain.ledger import Account
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.shared_budget import SharedBudget, applying
from tuner.domain.time import Instant
from tuner.ledger import budget_waits, shared_budgets


def put(db: Connection, project: str, new: SharedBudget, *, secret: str, at: Instant) -> None:
    """Create or replace the shared budget, and recalculate the accounts of all shared budgets of the project (see `recount`).

    Call `shared_budgets.lock_exclusive` first in the same transaction, so that no hold is placed meanwhile.

    Args:
        secret: The key that signs the budget's webhooks.
        at: The current time, which determines the budgets' current periods.

    Raises:
        Conflict: The jobs under one of the budgets have already spent and held more than its limit in this period or in a later one.
    """
    b = budgets.c
    mine = (b.project == project) & (b.name == new.name)
    before = db.execute(select(b.spec).where(mine)).scalar()
    values = {"spec": encode(new), "secret": secret, "updated_at": at}
    if before is None:
        db.execute(insert(budgets).values(project=project, name=new.name, created_at=at, **values))
    else:
        db.execute(update(budgets).where(mine).values(values))
        old: SharedBudget = decode(before)
        if (old.period, old.timezone) != (new.period, new.timezone):
            _forget(db, project, new.name)
        budget_waits.reset_backoff(db, project, new.name)
    recount(db, project, at)


def remove(db: Connection, project: str, name: str, *, at: Instant) -> None:
    """Remove the shared budget, its accounts and the records of the holds in them. The ledger is not changed.

    Call `shared_budgets.lock_exclusive` first in the same transaction.

    Raises:
        NotFound: The budget does not exist.
        Conflict: It is the parent of other budgets.
    """
    shared_budgets.get(db, project, name)
    children = [row.budget.name for row in shared_budgets.kept(db, project) if row.budget.parent == name]
    if children:
        raise Conflict(
            f"{name!r} is the parent of {', '.join(children)}; remove these budgets first, or give them another parent"
        )
    _forget(db, project, name)
    db.execute(delete(budgets).where(budgets.c.project == project, budgets.c.name == name))
    recount(db, project, at)


def _forget(db: Connection, project: str, name: str) -> None:
    for table in (budget_holds, budget_accounts):
        db.execute(delete(table).where(table.c.project == project, table.c.name == name))


@dataclass(frozen=True, slots=True)
class PeriodCosts:
    """What all jobs of a project have spent and held in one period."""

    posted: Mapping[str, Cost]  #: By job.
    open_holds: Sequence[tuple[str, str, Cost]]  #: The id, the job and the cost of each hold.


def recount(db: Connection, project: str, at: Instant) -> None:
    """Recalculate the accounts of the current and later periods of each shared budget from what its jobs spent and held then.

    The jobs of a budget are those that it covers by their current tags.

    Raises:
        Conflict: The spend and the holds under one of the budgets exceed its limit.
    """
    counted = covered(db, project)
    read: dict[tuple[Instant, Instant | None], PeriodCosts] = {}  # by the start and the end of the period
    for shared_budget in shared_budgets.kept(db, project):
        budget = shared_budget.budget
        present = budget.span(at)
        # A machine whose clock is ahead may have opened later periods.
        opened = shared_budgets.periods(db, project, budget.name, since=at)
        for span in dict.fromkeys([present, *((period.began_at, period.ends_at) for period in opened)]):
            if span not in read:
                read[span] = PeriodCosts(_posted(db, project, *span), _open_holds(db, project, *span))
            which = "current" if span == present else "next"
            _recount(db, project, budget, counted[budget.name], read[span], span, which)


def move(
    db: Connection, project: str, job: str, before: Mapping[str, str], after: Mapping[str, str], at: Instant
) -> None:
    """Move what a job spent and held to the shared budgets that its changed tags match.

    Only the current and later periods of budgets that began or ceased to cover the job are changed, by the amounts of this one job.
    Call `shared_budgets.lock_budgets` first in the same transaction, before the tags are changed.

    Args:
        before: The tags before the change.
        after: The tags after it.
        at: The current time, which determines the budgets' current periods.

    Raises:
        Conflict: One of the budgets has no room for the spend and the holds of the job.
    """
    present = shared_budgets.lock_budgets(db, project)
    left, joined = ({budget.name for budget in applying(present, tags)} for tags in (before, after))
    for budget in present:
        if budget.name in left ^ joined:
            for period, which in _changeable(db, project, budget, at):
                costs = PeriodCosts(
                    _posted(db, project, period.began_at, period.ends_at, job),
                    _open_holds(db, project, period.began_at, period.ends_at, job),
                )
                _move(db, project, budget, job, costs, period, which, joins=budget.name in joined)


def _changeable(
    db: Connection, project: str, budget: SharedBudget, at: Instant
) -> list[tuple[shared_budgets.BudgetPeriod, str]]:
    """Return the current period of the budget and the later ones that are open, each with its name in errors.

    A machine whose clock is ahead may have opened later periods.
    """
    present = shared_budgets.period_at(db, project, budget, at)
    opened = shared_budgets.periods(db, project, budget.name, since=at)
    later = [period for period in opened if period.began_at != present.began_at]
    return [(present, "current"), *((period, "next") for period in later)]


def _move(
    db: Connection,
    project: str,
    budget: SharedBudget,
    job: str,
    costs: PeriodCosts,
    period: shared_budgets.BudgetPeriod,
    which: str,
    *,
    joins: bool,
) -> None:
    account, posted, held = period.account, costs.posted.get(job, FREE), FREE
    for _, _, cost in costs.open_holds:
        held += cost
    if joins:
        account = replace(account, posted=account.posted + posted, held=account.held + held)
        _refuse_beyond(budget, account.posted + account.held, which)
    else:
        account = replace(account, posted=account.posted - posted, held=account.held - held)
    shared_budgets.set_account(db, project, budget, replace(period, account=account))
    for name, _, _ in costs.open_holds:
        if joins:
            shared_budgets.note(db, project, name, [(budget.name, period.began_at)])
        else:
            b = budget_holds.c
            here = (b.hold == name) & (b.name == budget.name) & (b.began_at == period.began_at)
            db.execute(delete(budget_holds).where(here))


def _refuse_beyond(budget: SharedBudget, used: Cost, which: str) -> None:
    """Raise Conflict if the amounts used in a period of the budget exceed its limit."""
    if not used.fits(budget.limit):
        raise Conflict(
            f"{used.usd} and {used.gpu_hours:.6f} GPU-hours are already spent or held under the budget "
            f"{budget.name!r} in its {which} period; allow at least these amounts"
        )


def covered(db: Connection, project: str) -> dict[str, set[str]]:
    """Return the ids of the jobs that each shared budget covers by their current tags. The key is the name of the budget."""
    present = [shared_budget.budget for shared_budget in shared_budgets.kept(db, project)]
    if not present:
        return {}
    ids = select(jobs.c.id).where(jobs.c.project == project)
    tags: dict[str, dict[str, str]] = {job: {} for job in db.execute(ids).scalars()}
    t = job_tags.c
    for job, key, value in db.execute(select(t.job, t.key, t.value).where(t.project == project)):
        tags[job][key] = value
    counted: dict[str, set[str]] = {budget.name: set() for budget in present}
    for job, has in tags.items():
        for budget in applying(present, has):
            counted[budget.name].add(job)
    return counted


def _recount(
    db: Connection,
    project: str,
    budget: SharedBudget,
    mine: set[str],
    costs: PeriodCosts,
    span: tuple[Instant, Instant | None],
    which: str,
) -> None:
    began_at, ends_at = span
    posted = _sum(costs.posted, mine)
    open_ones = [row for row in costs.open_holds if row[1] in mine]
    held = FREE
    for _, _, cost in open_ones:
        held += cost
    _refuse_beyond(budget, posted + held, which)
    shared_budgets.set_account(
        db,
        project,
        budget,
        shared_budgets.BudgetPeriod(began_at, ends_at, Account(budget.limit, posted, held)),
    )
    b = budget_holds.c
    here = (b.project == project) & (b.name == budget.name) & (b.began_at == began_at)
    db.execute(delete(budget_holds).where(here))
    for name, _, _ in open_ones:
        shared_budgets.note(db, project, name, [(budget.name, began_at)])


def _sum(costs: Mapping[str, Cost], mine: set[str]) -> Cost:
    total = FREE
    for job in mine & costs.keys():
        total += costs[job]
    return total


def _posted(
    db: Connection, project: str, began_at: int, ends_at: int | None, job: str | None = None
) -> dict[str, Cost]:
    """Return, by job, the cost that was posted for holds that were placed in the period.

    `ends_at` is None if the period has no end. If `job` is given, only this job is read.

    The hold of an entry is found by its id, in the form of `tuner.domain.ids.hold_id`. A join on the columns of the entry would compare
    each hold of an attempt with each entry of the attempt on SQLite, because no index contains all these columns.
    """
    e, h = entries.c, holds.c
    hold = e.job + "/" + e.trial + "/a" + cast(e.attempt, String) + "/s" + cast(e.slice, String)
    query = (
        select(h.job, func.sum(e.usd), func.sum(e.gpu_ms))
        .select_from(entries.join(holds, h.id == hold))
        .where(e.project == project, e.entry == "post", h.placed_at >= began_at)
        .group_by(h.job)
    )
    if ends_at is not None:
        query = query.where(h.placed_at < ends_at)
    if job is not None:
        query = query.where(e.job == job, h.job == job)
    return {name: Cost(Money(int(usd)), int(gpu_ms)) for name, usd, gpu_ms in db.execute(query)}


def _open_holds(
    db: Connection, project: str, began_at: int, ends_at: int | None, only: str | None = None
) -> list[tuple[str, str, Cost]]:
    h = holds.c
    query = select(h.id, h.job, h.usd, h.gpu_ms).where(
        h.project == project, h.state == "open", h.placed_at >= began_at
    )
    if ends_at is not None:
        query = query.where(h.placed_at < ends_at)
    if only is not None:
        query = query.where(h.job == only)
    return [(name, job, Cost(Money(usd), gpu_ms)) for name, job, usd, gpu_ms in db.execute(query)]
