"""The route that plans a job before anything runs."""

from fastapi import APIRouter

from tuner.api import serialize_plan, translate, translate_plan
from tuner.api.deps import Svc
from tuner.schemas.plan import Plan, PlanRequest
from tuner.service.plans import plan

router = APIRouter(tags=["plans"])


@router.post("/plans")
def make_plan(body: PlanRequest, service: Svc) -> Plan:
    """Plan a job. Only simulations run. The body is that of a job, and `planning` contains what else is known about it."""
    spec = translate.spec_of(body)
    return serialize_plan.plan_of(plan(service, spec, translate_plan.facts_of(body.planning)), spec)
