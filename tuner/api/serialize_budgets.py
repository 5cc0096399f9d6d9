"""Requests and answers about shared budgets."""

from decimal import Decimal

from tuner.api.translate import Reader, gpu_ms_of
from tuner.domain.money import MS_PER_HOUR, Money
from tuner.domain.shared_budget import PPM, Alert, SharedBudget
from tuner.domain.time import Instant, rfc3339
from tuner.schemas import budgets as wire
from tuner.service.shared_budgets import BudgetView, Delivery, Forecast


def budget_from(name: str, request: wire.BudgetAboveRequest) -> SharedBudget:
    """Convert a request to the shared budget `name`. Raise Invalid if an amount cannot be read."""
    read = Reader()
    shares = [read.take(f"/alerts/{n}/at", _ppm, alert.at) for n, alert in enumerate(request.alerts)]
    budget = SharedBudget(
        name,
        usd=read.take("/usd", Money.from_usd, request.usd),
        gpu_ms=read.take("/gpu_hours", gpu_ms_of, request.gpu_hours),
        match=request.match,
        period=request.period,
        timezone=request.timezone,
        parent=request.parent,
        alerts=tuple(Alert(ppm or 0, a.url) for ppm, a in zip(shares, request.alerts, strict=True)),
    )
    read.check()
    return budget


def budget_of(view: BudgetView) -> wire.BudgetAbove:
    budget, now = view.kept.budget, view.standing
    account = now.account
    left = account.left
    return wire.BudgetAbove(
        name=budget.name,
        usd=None if budget.usd is None else budget.usd.usd,
        gpu_hours=None if budget.gpu_ms is None else _hours(budget.gpu_ms),
        match=dict(budget.match),
        period=budget.period,
        timezone=budget.timezone,
        parent=budget.parent,
        alerts=[wire.AlertShown(at=alert.at_ppm / PPM, url=alert.url) for alert in budget.alerts],
        period_start=None if budget.period is None else rfc3339(now.began_at),
        period_end=_time(now.ends_at),
        spend=wire.BudgetSpend(
            usd=account.posted.usd.usd,
            gpu_hours=_hours(account.posted.gpu_ms),
            held_usd=account.held.usd.usd,
            held_gpu_hours=_hours(account.held.gpu_ms),
            left_usd=None if budget.usd is None else left.usd.usd,
            left_gpu_hours=None if budget.gpu_ms is None else _hours(left.gpu_ms),
        ),
        forecast=_forecast(view.forecast),
        waiting_jobs=view.waiting,
        deliveries=[_delivery(one) for one in view.deliveries],
        webhook_secret=view.secret,
        created_at=rfc3339(view.kept.created_at),
        updated_at=rfc3339(view.kept.updated_at),
    )


def _forecast(found: Forecast) -> wire.BudgetForecast:
    return wire.BudgetForecast(
        usd_per_hour=found.usd_per_hour.usd,
        gpu_hours_per_hour=_hours(found.gpu_ms_per_hour),
        runs_out_at=_time(found.runs_out_at),
        earliest_at=_time(found.earliest_at),
        latest_at=_time(found.latest_at),
    )


def _delivery(one: Delivery) -> wire.DeliveryShown:
    return wire.DeliveryShown(
        id=one.id,
        url=one.url,
        state=one.state,
        created_at=rfc3339(one.created_at),
        tries=one.tries,
        next_try_at=rfc3339(one.next_at) if one.state == "pending" else None,
        answer=one.answer,
    )


def _ppm(share: float) -> int:
    """Return a share of a budget in parts per million. Raise ValueError if it has more than six decimals."""
    exact = Decimal(str(share)) * PPM
    if not exact.is_finite() or exact != exact.to_integral_value():
        raise ValueError("is the share of the budget, such as 0.8, with at most six decimals")
    return int(exact)


def _hours(gpu_ms: int) -> float:
    return round(gpu_ms / MS_PER_HOUR, 9)


def _time(at: Instant | None) -> str | None:
    return None if at is None else rfc3339(at)
