"""How a job could have been cheaper."""

from fastapi import APIRouter

from tuner.api import present_advice
from tuner.api.deps import Svc
from tuner.schemas.advice import Advice
from tuner.service.advice import advice

router = APIRouter(tags=["answers"])


@router.get("/jobs/{job}/advice")
def get_advice(job: str, service: Svc) -> Advice:
    """Findings from what was measured of the job and from its ledger, each with its evidence, the change to make, the dollars that
    it would have saved and how to verify that quality did not regress; and what could not be judged."""
    return present_advice.advice_of(advice(service, job))
