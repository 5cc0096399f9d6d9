"""Create, change and remove shared budgets, and recalculate their accounts from holds and ledger entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    if not (posted + held).fits(budget.limit):
        used = posted + held
        raise Conflict(
            f"{used.usd} and {used.gpu_hours:.6f} GPU-hours are already spent or held under the budget "
            f"{budget.name!r} in its {which} period; allow at least these amounts"
        )
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


def _posted(db: Connection, project: str, began_at: int, ends_at: int | None) -> dict[str, Cost]:
    """Return, by job, the cost that was posted for holds that were placed in the period.

    `ends_at` is None if the period has no end.

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
    return {job: Cost(Money(int(usd)), int(gpu_ms)) for job, usd, gpu_ms in db.execute(query)}


def _open_holds(
    db: Connection, project: str, began_at: int, ends_at: int | None
) -> list[tuple[str, str, Cost]]:
    h = holds.c
    query = select(h.id, h.job, h.usd, h.gpu_ms).where(
        h.project == project, h.state == "open", h.placed_at >= began_at
    )
    if ends_at is not None:
        query = query.where(h.placed_at < ends_at)
    return [(name, job, Cost(Money(usd), gpu_ms)) for name, job, usd, gpu_ms in db.execute(query)]
