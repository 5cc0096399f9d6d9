"""What would it cost?"""

from fastapi import APIRouter

from tuner.api.deps import Svc
from tuner.api.present_estimates import estimate_of
from tuner.api.translate_estimates import asked_of
from tuner.schemas.estimate_answers import Estimate
from tuner.schemas.estimates import EstimateRequest
from tuner.service import estimates

router = APIRouter(tags=["estimates"])


@router.post("/estimates")
def post_estimate(request: EstimateRequest, service: Svc) -> Estimate:
    """A described run on every machine of the catalogue: time, dollars, memory, and the cheapest that meets a deadline. Beside it, or
    alone: choices, scaling, the compute-optimal size, a year of runs, and hardware of one's own. Nothing runs."""
    now = service.now()
    asked = asked_of(request, now)
    return estimate_of(request, asked, estimates.estimate(service.settings, asked, now))
