"""The routes for decisions about money: advice on a job that ran, pilots, cost estimates, plans, and prices."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response

from tuner.api import serialize_estimates, serialize_jobs, translate
from tuner.api.deps import Svc
from tuner.api.routers.jobs import Key
from tuner.api.serialize_prices import catalogue_age
from tuner.api.translate import facts_of
from tuner.api.translate_estimates import questions_of
from tuner.domain.time import NS
from tuner.schemas.answers import Advice
from tuner.schemas.estimate_answers import Estimate
from tuner.schemas.estimates import EstimateRequest
from tuner.schemas.job import Job
from tuner.schemas.plan import PilotRequest, Plan, PlanRequest
from tuner.schemas.prices import Prices
from tuner.service import estimates, pilots, plans
from tuner.service.advice import advice
from tuner.service.catalogue import Market, prices
from tuner.service.exports import served_model

router = APIRouter()


@router.get("/jobs/{job}/advice", tags=["answers"])
def get_advice(job: str, service: Svc) -> Advice:
    """Return advice on how the job could have been cheaper.

    Findings come from the job's measurements and its ledger. Each has its evidence, the change to make, the dollars that the change
    would have saved, and how to verify that quality did not regress. The answer also lists what could not be judged.
    """
    return Advice.model_validate(advice(service, job))


@router.post("/pilots", status_code=201, responses={200: {"model": Job}}, tags=["plans"])
def create_pilot(body: PilotRequest, response: Response, service: Svc, key: Key = None) -> Job:
    """Run a few steps of a few configurations of the described job, as a small job with its own budget. Plans then use its measurements.

    If a pilot with the same code, search space and resources exists, the answer is 200 with that pilot.
    """
    asked = body.without_defaults()
    limits = translate.pilot_limits_of(body.planning.pilot)
    view, new = pilots.start_pilot(service, translate.spec_of(body), limits, body=asked, idempotency_key=key)
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"/v1/jobs/{view.row.id}"
    return serialize_jobs.job_of(view)


@router.post("/estimates", tags=["estimates"])
def post_estimate(request: EstimateRequest, service: Svc) -> Estimate:
    """Estimate the cost of a described run on every machine of the catalogue. Nothing runs.

    The answer has time, dollars and memory for each machine, and the cheapest machine that meets a deadline. A request can
    also ask for other estimates, with or without this one: a comparison of the `choices` in the request, scaling to more GPUs,
    compute-optimal sizes, a year of repeated runs, hardware of your own, and what a million predictions of a model cost.
    """
    now = service.now()
    asked = questions_of(
        request,
        now,
        lambda each: served_model(service, each.job, each.export, each.variant),
        lambda job: estimates.measured_scaling(service, job),
    )
    return serialize_estimates.estimate_of(request, asked, estimates.estimate(service.settings, asked, now))


@router.post("/plans", tags=["plans"])
def make_plan(body: PlanRequest, service: Svc) -> Plan:
    """Plan a job. Only simulations run. The body is a job as for `POST /v1/jobs`, with an additional section `planning`."""
    spec = translate.spec_of(body)
    return serialize_jobs.plan_of(plans.plan(service, spec, facts_of(body.planning)), spec)


@router.get("/prices", tags=["prices"])
def list_prices(
    service: Svc,
    *,
    cloud: str | None = None,
    region: str | None = None,
    zone: str | None = None,
    instance_type: str | None = None,
    accelerator: str | None = None,
    market: Market | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Prices:
    """List machines and their prices with dates and sources, cheapest first.

    With `market`, machines without a known price on that market are left out, and the list is sorted by that price.
    """
    today = datetime.fromtimestamp(service.now() // NS, UTC).date()
    words = {
        "cloud": cloud,
        "region": region,
        "zone": zone,
        "instance_type": instance_type,
        "accelerator": accelerator,
    }
    view = prices(service.settings, today, words, market)
    return Prices.model_validate(
        {
            "items": view.listings[:limit],
            "total": len(view.listings),
            "catalogue": catalogue_age(view.catalogue, view.today),
            "warning": view.warning,
            "data_rates": view.rates,
        }
    )
