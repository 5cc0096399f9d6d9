"""Change shared budgets, show what is left of them and when it runs out, and refuse jobs for which too little is left."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.database.database import Connection
from tuner.domain.access import DEFAULT_PROJECT
from tuner.domain.budget import BUDGET, UNLIMITED_GPU_MS, UNLIMITED_MICRO_USD
from tuner.domain.errors import BudgetRefused, Conflict, Fault, Invalid
from tuner.domain.money import Money, Rate
from tuner.domain.shared_budget import SharedBudget, applying, name_fault, parent_fault, tag_faults
from tuner.domain.time import Instant, rfc3339
from tuner.ledger import budget_waits, shared_budget_changes, shared_budgets
from tuner.ledger.shared_budgets import BudgetPeriod, Kept
from tuner.planning.burn import SLOT_NS, WINDOW_NS, Burn, burn
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.service.webhooks import may_be_private, url_fault
from tuner.store import deliveries, spend
from tuner.store.deliveries import Delivery as Delivery
from tuner.tuning.guard import UNKNOWN_NEED_NS

SHOWN_DELIVERIES = 20


@dataclass(frozen=True)
class RunOutForecast:
    """A forecast of when a budget runs out at the spending rate of the last day."""

    usd_per_hour: Money
    gpu_ms_per_hour: int
    runs_out_at: Instant | None  #: None if it does not run out at this rate, or not before the period ends.
    earliest_at: Instant | None
    latest_at: Instant | None


@dataclass(frozen=True)
class BudgetView:
    """A shared budget as it is shown to users."""

    kept: Kept
    period: BudgetPeriod
    forecast: RunOutForecast
    waiting: list[str]  #: Jobs that wait until this budget has money left.
    deliveries: list[Delivery]
    #: The key that signs the budget's webhooks. Set only in the answer to the request that created the key.
    secret: str | None = None


def full_name(project: str, budget: str) -> str:
    """Return a name for the budget that is unique across all projects: `PROJECT/BUDGET`, or `BUDGET` in the default project."""
    return budget if project == DEFAULT_PROJECT else f"{project}/{budget}"


def put(service: Service, budget: SharedBudget, *, new_secret: bool = False) -> tuple[BudgetView, bool]:
    """Create or replace a shared budget. Return it and whether it is new.

    Args:
        new_secret: Whether to replace the key that signs the webhooks of an existing budget.

    Raises:
        Invalid: The budget is wrong.
        Conflict: A limit is below the amount that is already spent and held.
    """
    with service.database.write("budget.put") as db:
        shared_budgets.lock_exclusive(db)
        known = {kept.budget.name: kept for kept in shared_budgets.kept(db, service.project)}
        parents = {name: kept.budget for name, kept in known.items() if name != BUDGET}
        tags = [Fault(f"/match{f.pointer.removeprefix('/tags')}", f.detail) for f in tag_faults(budget.match)]
        faults = [*tags, name_fault(budget.name), parent_fault(budget, parents)]
        urls = (
            url_fault(f"/alerts/{number}/url", alert.url, private=may_be_private(service.settings, alert.url))
            for number, alert in enumerate(budget.alerts)
        )
        all_faults = [*budget.faults(), *(fault for fault in (*faults, *urls) if fault is not None)]
        if all_faults:
            raise Invalid(*all_faults)
        before = known.get(budget.name)
        fresh = f"whsec_{secrets.token_urlsafe(32)}" if before is None or new_secret else None
        secret = fresh or (before.secret if before is not None else "")
        shared_budget_changes.put(db, service.project, budget, secret=secret, at=service.now())
        was = None if before is None else audit_log.of_shared_budget(before.budget)
        audit_log.note(
            db, service, "budget.put", budget.name, before=was, after=audit_log.of_shared_budget(budget)
        )
    # The view is read after the commit, so that no hold waits for the spend of a day that it shows.
    with service.database.read() as db:
        views = _views(db, service, [shared_budgets.get(db, service.project, budget.name)], secret=fresh)
    return views[0], before is None


def remove(service: Service, name: str) -> None:
    """Remove a shared budget.

    Raises:
        NotFound: The budget does not exist.
        Conflict: The budget is the parent of other budgets, or the project's quota.
    """
    if name == BUDGET:
        raise Conflict(
            f"{BUDGET!r} is the project's quota, not a shared budget; the operator of the service changes it with PUT /v1/quota"
        )
    with service.database.write("budget.remove") as db:
        shared_budgets.lock_exclusive(db)
        was = audit_log.of_shared_budget(shared_budgets.get(db, service.project, name).budget)
        shared_budget_changes.remove(db, service.project, name, at=service.now())
        deliveries.forget(db, service.project, name)
        audit_log.note(db, service, "budget.remove", name, before=was)


def get(service: Service, name: str) -> BudgetView:
    """Return a shared budget.

    Raises:
        NotFound: The budget does not exist.
    """
    with service.database.read() as db:
        return _views(db, service, [shared_budgets.get(db, service.project, name)])[0]


def all_of(service: Service) -> list[BudgetView]:
    """Return all shared budgets of the project, ordered by name."""
    with service.database.read() as db:
        return _views(db, service, shared_budgets.kept(db, service.project))


def refuse_without_room(db: Connection, service: Service, tags: Mapping[str, str], rate: Rate) -> None:
    """Raise BudgetRefused if a shared budget that applies to these tags cannot pay for one second of a trial at this rate."""
    exhausted = without_room(db, service, tags, rate)
    if exhausted is None:
        return
    budget, now = exhausted
    left = now.account.left
    gpus = "" if budget.gpu_ms is None else f" and {left.gpu_hours:.6f} GPU-hours"
    usd = "no limit in dollars" if budget.usd is None else f"{left.usd}"
    later = (
        "" if now.ends_at is None else f", or wait until {rfc3339(now.ends_at)}, when its next period begins"
    )
    name, fix = f"shared budget {budget.name!r}", f"raise it with PUT /v1/budgets/{budget.name}"
    if budget.name == BUDGET:
        name, fix = "quota of this project", "the operator of the service can raise it with PUT /v1/quota"
    raise BudgetRefused(
        f"the {name} has {usd}{gpus} left, which pays for less than one second of a trial: {fix}{later}"
    )


def without_room(
    db: Connection, service: Service, tags: Mapping[str, str], rate: Rate
) -> tuple[SharedBudget, BudgetPeriod] | None:
    """Return the first shared budget for these tags that cannot pay for one second of a trial, with its current period.

    Return None if all of them can.
    """
    budgets = [shared_budget.budget for shared_budget in shared_budgets.kept(db, service.project)]
    for budget in applying(budgets, tags):
        now = shared_budgets.period_at(db, service.project, budget, service.now())
        if rate.affords_ns(now.account.left) < UNKNOWN_NEED_NS:
            return budget, now
    return None


def _views(
    db: Connection, service: Service, budgets: list[Kept], *, secret: str | None = None
) -> list[BudgetView]:
    now, project = service.now(), service.project
    slots = spend.slots(db, project, Instant(now - WINDOW_NS), SLOT_NS)
    counted = shared_budget_changes.covered(db, project)
    waits = budget_waits.waiting(db, project)
    views = []
    for kept in budgets:
        name = kept.budget.name
        period = shared_budgets.period_at(db, project, kept.budget, now)
        mine = {job: spent for job, spent in slots.items() if job in counted[name]}
        waiting = [wait.job for wait in waits if wait.name == name]
        sent = deliveries.of_budget(db, project, name, limit=SHOWN_DELIVERIES)
        views.append(BudgetView(kept, period, _forecast(period, mine, now), waiting, sent, secret))
    return views


def _forecast(
    period: BudgetPeriod, slots: Mapping[str, Mapping[int, tuple[int, int]]], now: Instant
) -> RunOutForecast:
    """Forecast when the budget runs out of dollars or GPU-hours, the earlier of the two, at the spending rate of the last day.

    Args:
        slots: The spend in each time slot of the last day, as (micro-dollars, GPU-milliseconds), by job and number of the slot.
    """
    sums: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for spent in slots.values():
        for number, amounts in spent.items():
            for unit, amount in zip(sums, amounts, strict=True):
                unit[number] = unit.get(number, 0) + amount
    account = period.account
    usd = burn(sums[0], account.left.usd.micro_usd)
    gpus = burn(sums[1], account.left.gpu_ms)
    bounded = [
        unit_burn
        for unit_burn, limit, unlimited in (
            (usd, account.limit.usd.micro_usd, UNLIMITED_MICRO_USD),
            (gpus, account.limit.gpu_ms, UNLIMITED_GPU_MS),
        )
        if limit < unlimited and unit_burn.in_ns is not None
    ]
    first = min(bounded, key=lambda bounded_burn: bounded_burn.in_ns or 0, default=Burn(0, None, None, None))
    times = (_at(period, now, ns) for ns in (first.in_ns, first.earliest_ns, first.latest_ns))
    return RunOutForecast(Money(usd.per_hour), gpus.per_hour, *times)


def _at(period: BudgetPeriod, now: Instant, ns: int | None) -> Instant | None:
    if ns is None or (period.ends_at is not None and now + ns >= period.ends_at):
        return None
    return Instant(now + ns)
