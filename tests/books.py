"""Compare accounts with their holds and ledger entries, as most tests of money do at their end."""

from sqlalchemy import Connection, select

from tuner.database.ledger_tables import accounts
from tuner.domain.time import Instant
from tuner.ledger import ledger, shared_budget_changes, shared_budgets


def faults(db: Connection) -> list[str]:
    """Check every account against its entries and holds. Return one line for each fault."""
    faults_by_job = ledger.faults_of(db, db.execute(select(accounts.c.job)).scalars().all())
    return [f"{job}: {fault}" for job, of_job in faults_by_job.items() for fault in of_job]


def shared_faults(db: Connection, project: str, at: Instant) -> list[str]:
    """Return one line for each shared budget whose current account exceeds its limit or differs from the ledger.

    The accounts are recalculated in a nested transaction, which is rolled back after the comparison.
    """
    before = {
        kept_budget.budget.name: shared_budgets.period_at(db, project, kept_budget.budget, at).account
        for kept_budget in shared_budgets.kept(db, project)
    }
    faults = [
        f"{name}: the posted and held amounts exceed its limit"
        for name, a in before.items()
        if not (a.posted + a.held).fits(a.limit)
    ]
    with db.begin_nested() as trial:
        shared_budget_changes.recount(db, project, at)
        for shared_budget in shared_budgets.kept(db, project):
            after = shared_budgets.period_at(db, project, shared_budget.budget, at).account
            if after != before[shared_budget.budget.name]:
                faults.append(
                    f"{shared_budget.budget.name}: the account has {before[shared_budget.budget.name]}, but its entries add up to {after}"
                )
        trial.rollback()
    return faults
