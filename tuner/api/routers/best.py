"""Routes for the best configuration under a budget, and for what more money would buy."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from tuner.api import response_cache, serialize_jobs
from tuner.api.deps import Svc
from tuner.domain.errors import Invalid
from tuner.domain.money import MS_PER_HOUR, Money
from tuner.domain.time import parse_duration_ns
from tuner.schemas import best as show
from tuner.service import best
from tuner.service.best import Asked, CostLimits

router = APIRouter(tags=["answers"])
Usd = Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)]
GpuHours = Annotated[float | None, Query(ge=0, le=1e9, allow_inf_nan=False)]
Name = Annotated[str | None, Query(max_length=100)]


def _limits(
    max_cost_usd: Usd = None, max_gpu_hours: GpuHours = None, max_duration: str | None = None
) -> CostLimits:
    try:
        duration_ns = None if max_duration is None else parse_duration_ns(max_duration)
    except ValueError as error:
        raise Invalid.at("max_duration", str(error)) from error
    return CostLimits(
        None if max_cost_usd is None else Money(int(max_cost_usd * 1_000_000 + 1e-6)),
        None if max_gpu_hours is None else int(max_gpu_hours * MS_PER_HOUR + 1e-6),
        duration_ns,
    )


def _elsewhere(market: Name = None, instance_type: Name = None, region: Name = None) -> Asked:
    """Read the machine to calculate costs for. `market` is `on_demand` or `spot`. Without `region`, the cheapest region is used."""
    return Asked(market, instance_type, region)


Within = Annotated[CostLimits, Depends(_limits)]
Elsewhere = Annotated[Asked, Depends(_elsewhere)]


@router.get("/jobs/{job}/best", response_model=show.BestAnswer)
def get_best(
    job: str, request: Request, service: Svc, limits: Within, asked: Elsewhere, forecast: bool = True
) -> Response | show.BestAnswer:
    """Return the best configuration that can be trained within the limits.

    The answer also has the next better configuration with its cost, and the gain expected from training on. If a market, an instance
    type or a region is given, all costs are those on that machine.
    """

    def make() -> show.BestAnswer:
        found = best.best(service, job, limits, asked, with_forecast=forecast)
        return serialize_jobs.best_answer_of(found)

    plain = forecast and limits == CostLimits(None, None, None) and asked == Asked(None, None, None)
    return response_cache.answer(request, service, "best", job, make) if plain else make()


@router.get("/jobs/{job}/pareto", response_model=show.Pareto)
def get_pareto(job: str, request: Request, service: Svc, asked: Elsewhere) -> Response | show.Pareto:
    """Return the Pareto front of metric against cost. For each point, no other point is better in both."""

    def make() -> show.Pareto:
        return serialize_jobs.pareto_of(*best.pareto(service, job, asked))

    return (
        response_cache.answer(request, service, "pareto", job, make)
        if asked == Asked(None, None, None)
        else make()
    )


@router.get("/best")
def get_best_of_all(
    service: Svc, trainable: str, metric: str, limits: Within, asked: Elsewhere
) -> show.BestOfAll:
    """Return the best configuration that any job found for this trainable and metric within the limits."""
    return serialize_jobs.best_of_all_of(best.best_of_all(service, trainable, metric, limits, asked))
