"""Requests and answers about quotas."""

from tuner.api.translate import Reader, gpu_ms_of
from tuner.domain.money import MS_PER_HOUR, Money
from tuner.domain.quota import BUDGET, Quota
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import rfc3339
from tuner.schemas import quota as wire
from tuner.service.quotas import QuotaView


def quota_from(request: wire.QuotaRequest) -> tuple[Quota, SharedBudget | None]:
    """Convert the request. Return the limits on concurrency, and the budget, or None if money is not limited. Raise Invalid if an
    amount cannot be read.
    """
    read = Reader()
    usd = read.take("/usd", Money.from_usd, request.usd)
    gpu_ms = read.take("/gpu_hours", gpu_ms_of, request.gpu_hours)
    read.check()
    money = SharedBudget(BUDGET, usd=usd, gpu_ms=gpu_ms, period=request.period, timezone=request.timezone)
    return Quota(request.concurrent_jobs, request.concurrent_trials), (
        None if usd is None and gpu_ms is None else money
    )


def quota_of(view: QuotaView) -> wire.Quota:
    money, now = view.budget, view.standing
    usd = None if money is None else money.usd
    gpu_ms = None if money is None else money.gpu_ms
    used = wire.QuotaUse(
        usd=None if now is None or usd is None else now.account.posted.usd.usd,
        held_usd=None if now is None or usd is None else now.account.held.usd.usd,
        gpu_hours=None if now is None or gpu_ms is None else _hours(now.account.posted.gpu_ms),
        held_gpu_hours=None if now is None or gpu_ms is None else _hours(now.account.held.gpu_ms),
        concurrent_jobs=len(view.at_work),
        concurrent_trials=sum(map(view.quota.width, view.at_work)),
    )
    return wire.Quota(
        usd=None if usd is None else usd.usd,
        gpu_hours=None if gpu_ms is None else _hours(gpu_ms),
        period=None if money is None else money.period,
        timezone="UTC" if money is None else money.timezone,
        period_end=None if now is None or now.ends_at is None else rfc3339(now.ends_at),
        concurrent_jobs=view.quota.concurrent_jobs,
        concurrent_trials=view.quota.concurrent_trials,
        used=used,
    )


def _hours(gpu_ms: int) -> float:
    return round(gpu_ms / MS_PER_HOUR, 9)
