"""What a project may spend and have at once, as who runs the service sets it and all of the project see it.

Its dollars and GPU-hours are a budget above all of the project's jobs, and as hard as one: each hold counts in it. Jobs beyond what may be
at work wait in line.
"""

from dataclasses import dataclass, replace

from tuner.domain.above import AboveBudget
from tuner.domain.errors import Invalid
from tuner.domain.quota import BUDGET, Quota
from tuner.service import audit_log
from tuner.service.wiring import Service
from tuner.store import above, above_changes, quotas
from tuner.store.above import Standing
from tuner.store.database import Connection


@dataclass(frozen=True)
class QuotaView:
    """`budget` and how it stands are None where neither dollars nor GPU-hours are limited. `at_work`: of each job at work, how many
    trials it may run at once."""

    quota: Quota
    budget: AboveBudget | None
    standing: Standing | None
    at_work: list[int]


def show(service: Service) -> QuotaView:
    with service.database.read() as db:
        return _view(db, service)


def put(service: Service, quota: Quota, money: AboveBudget | None) -> QuotaView:
    """All of it in the place of what was before; `money` None: no limit of dollars and GPU-hours. What runs goes on. Raises
    Invalid, or Conflict where the project has spent or holds more already."""
    faults = [*quota.faults(), *(() if money is None else money.faults())]
    if faults:
        raise Invalid(*faults)
    now = service.now()
    with service.database.write("quota.put") as db:
        above.shut_out(db)
        before = _view(db, service)
        quotas.put(db, service.project, quota, now)
        if money is not None:
            above_changes.put(db, service.project, replace(money, name=BUDGET), secret="", at=now)
        elif before.budget is not None:
            above_changes.remove(db, service.project, BUDGET, at=now)
        after = _view(db, service)
        was, is_now = (audit_log.of_quota(one.quota, one.budget) for one in (before, after))
        audit_log.note(db, service, "quota.put", service.project, before=was, after=is_now)
        return after


def _view(db: Connection, service: Service) -> QuotaView:
    kept = [one.budget for one in above.kept(db, service.project) if one.budget.name == BUDGET]
    standing = above.standing(db, service.project, kept[0], service.now()) if kept else None
    return QuotaView(
        quotas.get(db, service.project),
        kept[0] if kept else None,
        standing,
        quotas.at_work(db, service.project),
    )
