"""Routes for the best configuration under a budget, and for what more money would buy."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from tuner.api import response_cache
from tuner.api.deps import Svc, duration_ns_of
from tuner.api.serialize_jobs import best_of, seconds
from tuner.domain.money import Money, gpu_ms_at_most
from tuner.schemas import best as show
from tuner.service import best
from tuner.service.best import BestView, CostLimits, MachinePricing, MachineQuery, PricedPoint

router = APIRouter(tags=["answers"])
Usd = Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)]
GpuHours = Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)]
Name = Annotated[str | None, Query(max_length=100)]


def _limits(
    max_cost_usd: Usd = None, max_gpu_hours: GpuHours = None, max_duration: str | None = None
) -> CostLimits:
    duration_ns = None if max_duration is None else duration_ns_of("max_duration", max_duration)
    return CostLimits(
        None if max_cost_usd is None else Money.at_most_usd(max_cost_usd),
        None if max_gpu_hours is None else gpu_ms_at_most(max_gpu_hours),
        duration_ns,
    )


def _other_machine(market: Name = None, instance_type: Name = None, region: Name = None) -> MachineQuery:
    """Read the machine for which costs are computed. `market` is `on_demand` or `spot`. If a value is not given, the job's own is used."""
    return MachineQuery(market, instance_type, region)


Within = Annotated[CostLimits, Depends(_limits)]
OtherMachine = Annotated[MachineQuery, Depends(_other_machine)]


@router.get("/jobs/{job}/best", response_model=show.BestAnswer)
def get_best(
    job: str, request: Request, service: Svc, limits: Within, query: OtherMachine, forecast: bool = True
) -> Response | show.BestAnswer:
    """Return the best configuration that can be trained within the limits.

    The answer also has the next better configuration with its cost, and the gain expected from further training. If a market, an instance
    type or a region is given, all costs are those on that machine.
    """

    def make() -> show.BestAnswer:
        view = best.best(service, job, limits, query, with_forecast=forecast)
        better = view.next_better
        return show.BestAnswer(
            **_priced_fields(view.best),
            next_better=None if better is None else show.PricedBest(**_priced_fields(better)),
            pricing=_pricing(view.pricing),
            confirmation=None
            if view.confirmation is None
            else show.Confirmation.model_validate(view.confirmation),
            next_dollar=show.NextDollar(next_point=_next_point(view), forecast=_forecast(view)),
        )

    plain = forecast and limits == CostLimits(None, None, None) and query == MachineQuery(None, None, None)
    return response_cache.answer(request, service, "best", job, make) if plain else make()


@router.get("/jobs/{job}/pareto", response_model=show.Pareto)
def get_pareto(job: str, request: Request, service: Svc, query: OtherMachine) -> Response | show.Pareto:
    """Return the Pareto front of metric against cost. For each point, no other point is better in both.

    If the job has two objectives, no other point is better in both metrics and the cost.
    """

    def make() -> show.Pareto:
        second, points, pricing = best.pareto(service, job, query)
        items = [show.PricedBest(**_priced_fields(point)) for point in points]
        return show.Pareto(
            items=items, pricing=_pricing(pricing), second_metric=None if second is None else second.metric
        )

    plain = query == MachineQuery(None, None, None)
    return response_cache.answer(request, service, "pareto", job, make) if plain else make()


@router.get("/best")
def get_best_of_all(
    service: Svc, trainable: str, metric: str, limits: Within, query: OtherMachine
) -> show.BestOfAll:
    """Return the best configuration that any job found for this trainable and metric within the limits."""
    view = best.best_of_all(service, trainable, metric, limits, query)
    return show.BestOfAll(**_priced_fields(view.best), job=view.job.id, pricing=_pricing(view.pricing))


def _priced_fields(priced: PricedPoint) -> dict[str, Any]:
    point, there = priced.point, priced.elsewhere
    low, high = (priced.cost, priced.cost) if there is None else (there.low, there.high)
    return {
        **best_of(point).model_dump(),
        "cost_usd": priced.cost,
        "cost_to_train_usd": priced.cost,
        "gpu_hours": priced.cost,
        "duration_seconds": seconds(priced.duration_ns),
        "cost_low_usd": low,
        "cost_high_usd": high,
        "as_run_usd": point.cost,
        "as_run_seconds": point.duration_seconds,
    }


def _pricing(pricing: MachinePricing | None) -> show.Pricing | None:
    if pricing is None:
        return None
    machine, repricing = pricing.machine, pricing.repricing
    time = repricing.time
    return show.Pricing(
        instance_type=machine.instance_type,
        market=machine.market,
        region=machine.region,
        usd_per_hour=machine.price.usd_per_hour,
        trial_usd_per_hour=repricing.rate.price.usd_per_hour,
        price_source=machine.source,
        relative_time=float(time.expected),
        relative_time_low=float(time.low),
        relative_time_high=float(time.high),
        speed_source=time.source,
        interruption_overhead=None if repricing.overhead is None else float(repricing.overhead),
        notes=list(pricing.notes),
    )


def _next_point(view: BestView) -> show.NextPoint | None:
    better = view.next_better
    if better is None:
        return None
    extra, gain = better.cost.usd - view.best.cost.usd, view.gain(better.point)
    return show.NextPoint(
        trial=better.point.trial,
        step=better.point.step,
        metric=better.point.value,
        cost_usd=better.cost.usd.usd,
        extra_usd=extra.usd,
        gain=gain,
        gain_per_usd=gain / extra.usd if extra.micro_usd > 0 else None,
    )


def _forecast(view: BestView) -> show.Forecast | None:
    forecast = view.forecast
    if forecast is None:
        return None
    return show.Forecast(
        items=[show.Continuation.model_validate(continuation) for continuation in forecast.trials],
        reason=forecast.reason or None,
        points_per_usd=forecast.points_per_usd,
        interval=0.8,
        as_of_event=forecast.as_of,
    )
