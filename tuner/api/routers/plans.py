"""What a job would cost, before anything runs."""

from fastapi import APIRouter

from tuner.api import present_plan, translate, translate_plan
from tuner.api.deps import Svc
from tuner.schemas.plan import Plan, PlanRequest
from tuner.service.plans import plan

router = APIRouter(tags=["plans"])


@router.post("/plans")
def make_plan(body: PlanRequest, service: Svc) -> Plan:
    """The plan of a job: runs nothing but simulations. The body is that of a job; what is known beside it is under `planning`."""
    spec = translate.spec_of(body)
    return present_plan.plan_of(plan(service, spec, translate_plan.given_of(body.planning)), spec)
