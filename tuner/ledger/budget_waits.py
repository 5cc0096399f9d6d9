"""Record which jobs are paused until a shared budget has money left again."""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from tuner.database.ledger_tables import budget_accounts, budget_waits
from tuner.database.tables import job_tags, jobs
from tuner.domain.errors import NotFound
from tuner.domain.money import ZERO, Cost, Money
from tuner.domain.shared_budget import applying
from tuner.domain.time import NS, Instant
from tuner.ledger import shared_budgets

FIRST_NS = 60 * NS
LONGEST_NS = 3600 * NS


@dataclass(frozen=True, slots=True)
class BudgetWait:
    """A paused job that waits for a shared budget.

    The job may resume when the budget's next period begins. It may resume earlier if the budget has room again, but not before
    `not_before`. Each time the job is resumed and paused again in the same period, the next wait is longer, because the job may need
    much more money than the budget has left.
    """

    job: str
    project: str
    name: str
    began_at: Instant  #: Start of the budget period in which the job was paused.
    #: What the budget had left after the job had paused. It may have had less left when it refused the job's hold, because the unused holds
    #: of the job's trials were released after that.
    left: Cost
    not_before: Instant
    tries: int  #: How often the job was resumed and paused again in this period.

    def is_over(self, now: shared_budgets.BudgetPeriod, at: Instant) -> bool:
        """Return True if the job may be resumed.

        The job may be resumed once a new budget period has begun. Before that, it may be resumed from `not_before` on, if the budget
        has more dollars or more GPU time left than when the job was paused. It is also enough if the budget has any dollars and any GPU
        time left.
        """
        if now.began_at != self.began_at:
            return True
        left = now.account.left
        more = left.usd > self.left.usd or left.gpu_ms > self.left.gpu_ms
        return at >= self.not_before and (more or (left.usd > ZERO and left.gpu_ms > 0))


def note(db: Connection, project: str, job: str, name: str, at: Instant) -> None:
    """Record that the job waits for the shared budget `name` from `at` on.

    If the name is empty or the budget does not exist, remove the record of the job's wait.
    """
    w = budget_waits.c
    before = db.execute(select(budget_waits).where(w.job == job)).first()
    now = _budget_period(db, project, name, at) if name else None
    if now is None:
        end(db, job)
        return
    again = before is not None and before.name == name and before.began_at == now.began_at
    tries = before.tries + 1 if again and before is not None else 0
    left = now.account.left
    values = {
        "name": name,
        "began_at": now.began_at,
        "left_usd": left.usd.micro_usd,
        "left_gpu_ms": left.gpu_ms,
        "not_before": at + min(LONGEST_NS, FIRST_NS * 2 ** min(tries, 10)),
        "tries": tries,
    }
    if before is None:
        db.execute(insert(budget_waits).values(job=job, project=project, **values))
    else:
        db.execute(update(budget_waits).where(w.job == job).values(values))


def claim(db: Connection, wait: BudgetWait) -> bool:
    """Lock the row of `wait` until the transaction ends. Return False if the row was removed or changed since `wait` was read.

    Call this function in the transaction that resumes the job, before resuming it.
    """
    w = budget_waits.c
    same = (w.job == wait.job) & (w.name == wait.name) & (w.began_at == wait.began_at)
    changed = update(budget_waits).where(same, w.tries == wait.tries).values(tries=wait.tries)
    return db.execute(changed).rowcount == 1


def reset_backoff(db: Connection, project: str, name: str) -> None:
    """Remove the backoff of the jobs that wait for this shared budget, so that they may be resumed at once.

    Call this function after changing the budget.
    """
    w = budget_waits.c
    mine = (w.project == project) & (w.name == name)
    db.execute(update(budget_waits).where(mine).values(not_before=0, tries=0))


def end(db: Connection, job: str) -> None:
    """Remove the record of the job's wait, so that the job is not resumed automatically."""
    db.execute(delete(budget_waits).where(budget_waits.c.job == job))


def _budget_period(
    db: Connection, project: str, name: str, at: Instant
) -> shared_budgets.BudgetPeriod | None:
    try:
        return shared_budgets.period_at(db, project, shared_budgets.get(db, project, name).budget, at)
    except NotFound:
        return None


def projects(db: Connection) -> list[str]:
    """Return the projects with at least one job that waits for a shared budget."""
    return list(db.execute(select(budget_waits.c.project).distinct()).scalars())


def waiting(db: Connection, project: str) -> list[BudgetWait]:
    """Return the waits of the project's jobs that are still paused, ordered by job."""
    w = budget_waits.c
    query = select(budget_waits).join(jobs, jobs.c.id == w.job)
    rows = db.execute(query.where(w.project == project, jobs.c.state == "paused").order_by(w.job))
    return [
        BudgetWait(
            r.job,
            r.project,
            r.name,
            Instant(r.began_at),
            Cost(Money(r.left_usd), r.left_gpu_ms),
            Instant(r.not_before),
            r.tries,
        )
        for r in rows
    ]


def used_up(db: Connection, project: str) -> set[tuple[str, Instant]]:
    """Return the project's used-up shared budgets, each with the start of the period in which it is used up.

    A budget is used up if a paused job waits for it, nothing of it is held, and it has at most as much left as
    when the job was paused. If it has more left, another job has released money since then. This money may pay
    for more work.
    """
    w, a = budget_waits.c, budget_accounts.c
    same_period = (a.project == w.project) & (a.name == w.name) & (a.began_at == w.began_at)
    query = select(w.name, w.began_at).distinct().join(jobs, jobs.c.id == w.job)
    query = query.join(budget_accounts, same_period).where(
        w.project == project,
        jobs.c.state == "paused",
        a.held_usd == 0,
        a.held_gpu_ms == 0,
        a.limit_usd - a.posted_usd <= w.left_usd,
        a.limit_gpu_ms - a.posted_gpu_ms <= w.left_gpu_ms,
    )
    return {(name, Instant(began_at)) for name, began_at in db.execute(query)}


def over(db: Connection, project: str, at: Instant) -> list[BudgetWait]:
    """Return the waits of the project's jobs that may be resumed now.

    A job may also be resumed if its budget was removed, or does not cover the job any more.
    """
    waits = waiting(db, project)
    budgets = {row.budget.name: row.budget for row in shared_budgets.kept(db, project)} if waits else {}
    periods = {
        name: shared_budgets.period_at(db, project, budgets[name], at)
        for name in {budget_wait.name for budget_wait in waits} & budgets.keys()
    }
    # The tags of all waiting jobs are read at once, because thousands of jobs may wait for the rest of a month.
    tags = _tags_of_waiting(db, project) if waits else {}

    def is_covered(wait: BudgetWait) -> bool:
        return any(budget.name == wait.name for budget in applying(budgets.values(), tags.get(wait.job, {})))

    ended_waits = []
    for wait in waits:
        now = periods.get(wait.name)
        if now is None or wait.is_over(now, at) or not is_covered(wait):
            ended_waits.append(wait)
    return ended_waits


def _tags_of_waiting(db: Connection, project: str) -> dict[str, dict[str, str]]:
    """Return the tags of the project's jobs that wait for a shared budget, by job. Jobs without tags are left out."""
    w, t = budget_waits.c, job_tags.c
    query = select(t.job, t.key, t.value).join(budget_waits, w.job == t.job).where(w.project == project)
    tags: dict[str, dict[str, str]] = {}
    for job, key, value in db.execute(query):
        tags.setdefault(job, {})[key] = value
    return tags
