"""Quotas: limits on a project's spend and on what it runs at once. The operator sets them; members of the project see them.

The limit in dollars and GPU-hours is a shared budget over all jobs of the project, so every hold in the ledger counts
against it. Jobs beyond the number that may run at once wait in the queue.
"""

from dataclasses import dataclass, replace

from tuner.domain.errors import Invalid
from tuner.domain.quota import BUDGET, Quota
from tuner.domain.shared_budget import SharedBudget
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.store import quotas, shared_budget_changes, shared_budgets
from tuner.store.database import Connection
from tuner.store.shared_budgets import BudgetPeriod


@dataclass(frozen=True)
class QuotaView:
    """The quota of a project and the used part of it."""

    quota: Quota
    budget: SharedBudget | None  #: None if neither dollars nor GPU-hours are limited.
    standing: BudgetPeriod | None  #: Spend and holds in the budget's present period.
    at_work: list[
        int
    ]  #: For each job that has a driver or lost it in mid-run, the number of trials that it may run at once.


def show(service: Service) -> QuotaView:
    with service.database.read() as db:
        return _view(db, service)


def put(service: Service, quota: Quota, money: SharedBudget | None) -> QuotaView:
    """Replace the quota of the project. Running jobs continue.

    Args:
        money: The limit in dollars and GPU-hours; None for no limit.

    Raises:
        Invalid: A value is wrong.
        Conflict: A new limit is below what the project has already spent and held.
    """
    faults = [*quota.faults(), *(() if money is None else money.faults())]
    if faults:
        raise Invalid(*faults)
    now = service.now()
    with service.database.write("quota.put") as db:
        shared_budgets.lock_exclusive(db)
        before = _view(db, service)
        quotas.put(db, service.project, quota, now)
        if money is not None:
            shared_budget_changes.put(db, service.project, replace(money, name=BUDGET), secret="", at=now)
        elif before.budget is not None:
            shared_budget_changes.remove(db, service.project, BUDGET, at=now)
        after = _view(db, service)
        was, is_now = (audit_log.of_quota(one.quota, one.budget) for one in (before, after))
        audit_log.note(db, service, "quota.put", service.project, before=was, after=is_now)
        return after


def _view(db: Connection, service: Service) -> QuotaView:
    kept = [one.budget for one in shared_budgets.kept(db, service.project) if one.budget.name == BUDGET]
    standing = shared_budgets.standing(db, service.project, kept[0], service.now()) if kept else None
    return QuotaView(
        quotas.get(db, service.project),
        kept[0] if kept else None,
        standing,
        quotas.at_work(db, service.project),
    )
