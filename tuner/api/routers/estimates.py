"""The route for cost estimates."""

from fastapi import APIRouter

from tuner.api.deps import Svc
from tuner.api.serialize_estimates import estimate_of
from tuner.api.translate_estimates import asked_of
from tuner.schemas.estimate_answers import Estimate
from tuner.schemas.estimates import EstimateRequest
from tuner.service import estimates

router = APIRouter(tags=["estimates"])


@router.post("/estimates")
def post_estimate(request: EstimateRequest, service: Svc) -> Estimate:
    """Estimate the cost of a described run on every machine of the catalogue. Nothing runs.

    The answer has time, dollars and memory for each machine, and the cheapest machine that meets a deadline. The other parts can be
    requested in addition or alone: a comparison of given choices, scaling to more GPUs, compute-optimal sizes, a year of repeated runs,
    and hardware of your own.
    """
    now = service.now()
    asked = asked_of(request, now)
    return estimate_of(request, asked, estimates.estimate(service.settings, asked, now))
