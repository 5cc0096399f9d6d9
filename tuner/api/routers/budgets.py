"""Routes for shared budgets and the project's quota."""

from decimal import Decimal
from urllib.parse import urlsplit

from fastapi import APIRouter, Response

from tuner.api.deps import Svc
from tuner.api.serialize_jobs import time_of
from tuner.api.translate import RequestReader, gpu_ms_of
from tuner.domain.access import Actor
from tuner.domain.budget import BUDGET, Quota
from tuner.domain.money import MS_PER_HOUR, Money
from tuner.domain.shared_budget import PPM, Alert, SharedBudget
from tuner.domain.time import rfc3339
from tuner.schemas import budgets as wire
from tuner.service import queue, shared_budgets
from tuner.service.queue import QuotaView
from tuner.service.shared_budgets import BudgetView, Delivery

router = APIRouter(tags=["spend"])


@router.get("/budgets")
def list_budgets(service: Svc) -> wire.BudgetList:
    """List all shared budgets by name, with the amounts spent, held and left in the present period, and when each runs out."""
    return wire.BudgetList(items=[_shown(view, service.actor) for view in shared_budgets.all_of(service)])


@router.get("/budgets/{name}")
def get_budget(name: str, service: Svc) -> wire.SharedBudgetAnswer:
    """Return a shared budget with its spend and forecast."""
    return _shown(shared_budgets.get(service, name), service.actor)


@router.put("/budgets/{name}", status_code=200, responses={201: {"model": wire.SharedBudgetAnswer}})
def put_budget(
    name: str, body: wire.SharedBudgetRequest, response: Response, service: Svc
) -> wire.SharedBudgetAnswer:
    """Create a shared budget (201), or replace it (200).

    What the covered jobs have already spent in the current period, and what they hold, counts towards the budget. The answer is 409 if
    the new limit is below this amount.
    """
    view, is_new = shared_budgets.put(service, _read(name, body), new_secret=body.new_secret)
    response.status_code = 201 if is_new else 200
    return _shown(view, service.actor)


@router.delete("/budgets/{name}", status_code=204)
def delete_budget(name: str, service: Svc) -> None:
    """Delete a shared budget. Jobs that waited for it continue. The answer is 409 if it is the parent of other budgets."""
    shared_budgets.remove(service, name)


def _read(name: str, request: wire.SharedBudgetRequest) -> SharedBudget:
    """Convert a request to the shared budget `name`. Raise Invalid if an amount cannot be read."""
    read = RequestReader()
    shares = [read.convert(f"/alerts/{n}/at", _ppm, alert.at) for n, alert in enumerate(request.alerts)]
    budget = SharedBudget(
        name,
        usd=read.convert("/usd", Money.from_usd, request.usd),
        gpu_ms=read.convert("/gpu_hours", gpu_ms_of, request.gpu_hours),
        match=request.match,
        period=request.period,
        timezone=request.timezone,
        parent=request.parent,
        alerts=tuple(Alert(ppm or 0, a.url) for ppm, a in zip(shares, request.alerts, strict=True)),
    )
    read.check()
    return budget


def _ppm(share: float) -> int:
    """Return a share of a budget in parts per million. Raise ValueError if it has more than six decimals."""
    exact = Decimal(str(share)) * PPM
    if not exact.is_finite() or exact != exact.to_integral_value():
        raise ValueError("must be a share of the budget, such as 0.8, with at most six decimals")
    return int(exact)


def _shown(view: BudgetView, actor: Actor) -> wire.SharedBudgetAnswer:
    """Return the budget as `actor` may see it.

    Everybody who has the URL of a chat service's webhook can post there, so only admins see whole URLs.
    """

    def visible(url: str) -> str:
        return url if actor.may("admin") else urlsplit(url).hostname or ""

    budget, now, forecast = view.kept.budget, view.period, view.forecast
    account = now.account
    return wire.SharedBudgetAnswer(
        name=budget.name,
        usd=None if budget.usd is None else budget.usd.usd,
        gpu_hours=None if budget.gpu_ms is None else _hours(budget.gpu_ms),
        match=dict(budget.match),
        period=budget.period,
        timezone=budget.timezone,
        parent=budget.parent,
        alerts=[wire.AlertShown(at=alert.at_ppm / PPM, url=visible(alert.url)) for alert in budget.alerts],
        period_start=None if budget.period is None else rfc3339(now.began_at),
        period_end=time_of(now.ends_at),
        spend=wire.BudgetSpend(
            usd=account.posted.usd.usd,
            gpu_hours=_hours(account.posted.gpu_ms),
            held_usd=account.held.usd.usd,
            held_gpu_hours=_hours(account.held.gpu_ms),
            left_usd=None if budget.usd is None else account.left.usd.usd,
            left_gpu_hours=None if budget.gpu_ms is None else _hours(account.left.gpu_ms),
        ),
        forecast=wire.BudgetForecast(
            usd_per_hour=forecast.usd_per_hour.usd,
            gpu_hours_per_hour=_hours(forecast.gpu_ms_per_hour),
            runs_out_at=time_of(forecast.runs_out_at),
            earliest_at=time_of(forecast.earliest_at),
            latest_at=time_of(forecast.latest_at),
        ),
        waiting_jobs=view.waiting,
        deliveries=[_delivery(delivery, visible(delivery.url)) for delivery in view.deliveries],
        webhook_secret=view.secret,
        created_at=rfc3339(view.kept.created_at),
        updated_at=rfc3339(view.kept.updated_at),
    )


def _delivery(delivery: Delivery, url: str) -> wire.DeliveryShown:
    return wire.DeliveryShown(
        id=delivery.id,
        url=url,
        state=delivery.state,
        created_at=rfc3339(delivery.created_at),
        tries=delivery.tries,
        next_try_at=rfc3339(delivery.next_at) if delivery.state == "pending" else None,
        answer=delivery.answer,
    )


def _hours(gpu_ms: int) -> float:
    return round(gpu_ms / MS_PER_HOUR, 9)


@router.get("/quota")
def get_quota(service: Svc) -> wire.Quota:
    """Return what the project may spend and run at once, and how much of that is used."""
    return _shown_quota(queue.show(service))


@router.put("/quota")
def put_quota(body: wire.QuotaRequest, service: Svc) -> wire.Quota:
    """Set the project's quota. It replaces all limits; a limit that is not given is removed.

    Dollars and GPU-hours are hard limits, like a job's budget: the answer is 409 if the project has already spent or holds more. Jobs
    beyond `concurrent_jobs` and `concurrent_trials` wait in the queue. Active jobs continue.
    """
    return _shown_quota(queue.put(service, *_read_quota(body)))


def _read_quota(request: wire.QuotaRequest) -> tuple[Quota, SharedBudget | None]:
    """Return the limits on concurrency and the budget in dollars and GPU-hours that a request sets. The budget is None if the request sets neither.

    Raise Invalid if an amount cannot be read.
    """
    read = RequestReader()
    usd = read.convert("/usd", Money.from_usd, request.usd)
    gpu_ms = read.convert("/gpu_hours", gpu_ms_of, request.gpu_hours)
    read.check()
    money = SharedBudget(BUDGET, usd=usd, gpu_ms=gpu_ms, period=request.period, timezone=request.timezone)
    is_limited = usd is not None or gpu_ms is not None
    return Quota(request.concurrent_jobs, request.concurrent_trials), money if is_limited else None


def _shown_quota(view: QuotaView) -> wire.Quota:
    money, now = view.budget, view.period
    usd = None if money is None else money.usd
    gpu_ms = None if money is None else money.gpu_ms
    account = None if now is None else now.account
    used = wire.QuotaUse(
        usd=None if account is None or usd is None else account.posted.usd.usd,
        held_usd=None if account is None or usd is None else account.held.usd.usd,
        gpu_hours=None if account is None or gpu_ms is None else _hours(account.posted.gpu_ms),
        held_gpu_hours=None if account is None or gpu_ms is None else _hours(account.held.gpu_ms),
        concurrent_jobs=len(view.at_work),
        concurrent_trials=sum(map(view.quota.width, view.at_work)),
    )
    return wire.Quota(
        usd=None if usd is None else usd.usd,
        gpu_hours=None if gpu_ms is None else _hours(gpu_ms),
        period=None if money is None else money.period,
        timezone="UTC" if money is None else money.timezone,
        period_end=None if now is None else time_of(now.ends_at),
        concurrent_jobs=view.quota.concurrent_jobs,
        concurrent_trials=view.quota.concurrent_trials,
        used=used,
    )
