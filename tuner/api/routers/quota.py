"""Routes for the project's quota."""

from fastapi import APIRouter

from tuner.api.deps import Svc
from tuner.api.translate import RequestReader, gpu_ms_of
from tuner.domain.money import Cost, Money
from tuner.domain.quota import BUDGET, Quota
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import rfc3339
from tuner.schemas import budgets as wire
from tuner.service import queue
from tuner.service.queue import QuotaView

router = APIRouter(prefix="/quota", tags=["spend"])


@router.get("")
def get_quota(service: Svc) -> wire.Quota:
    """Return what the project may spend and run at once, and how much of that is used."""
    return _shown(queue.show(service))


@router.put("")
def put_quota(body: wire.QuotaRequest, service: Svc) -> wire.Quota:
    """Set the project's quota. It replaces all limits; a limit that is not given is removed.

    Dollars and GPU-hours are hard limits, like a job's budget: the answer is 409 if the project has already spent or holds more. Jobs
    beyond `concurrent_jobs` and `concurrent_trials` wait in the queue. Active jobs continue.
    """
    return _shown(queue.put(service, *_read(body)))


def _read(request: wire.QuotaRequest) -> tuple[Quota, SharedBudget | None]:
    """Convert the request. Return the limits on concurrency, and the budget, or None if money is not limited. Raise Invalid if an
    amount cannot be read.
    """
    read = RequestReader()
    usd = read.convert("/usd", Money.from_usd, request.usd)
    gpu_ms = read.convert("/gpu_hours", gpu_ms_of, request.gpu_hours)
    read.check()
    money = SharedBudget(BUDGET, usd=usd, gpu_ms=gpu_ms, period=request.period, timezone=request.timezone)
    is_limited = usd is not None or gpu_ms is not None
    return Quota(request.concurrent_jobs, request.concurrent_trials), money if is_limited else None


def _shown(view: QuotaView) -> wire.Quota:
    money, now = view.budget, view.period
    usd = None if money is None else money.usd
    gpu_ms = None if money is None else money.gpu_ms
    account = None if now is None else now.account
    used = wire.QuotaUse(
        usd=None if account is None or usd is None else account.posted.usd.usd,
        held_usd=None if account is None or usd is None else account.held.usd.usd,
        gpu_hours=None if account is None or gpu_ms is None else _hours(account.posted),
        held_gpu_hours=None if account is None or gpu_ms is None else _hours(account.held),
        concurrent_jobs=len(view.at_work),
        concurrent_trials=sum(map(view.quota.width, view.at_work)),
    )
    return wire.Quota(
        usd=None if usd is None else usd.usd,
        gpu_hours=None if gpu_ms is None else _hours(Cost(gpu_ms=gpu_ms)),
        period=None if money is None else money.period,
        timezone="UTC" if money is None else money.timezone,
        period_end=None if now is None or now.ends_at is None else rfc3339(now.ends_at),
        concurrent_jobs=view.quota.concurrent_jobs,
        concurrent_trials=view.quota.concurrent_trials,
        used=used,
    )


def _hours(cost: Cost) -> float:
    return round(cost.gpu_hours, 9)
