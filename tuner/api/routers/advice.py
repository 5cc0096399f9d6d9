"""The route for advice: how a job could have been cheaper."""

from fastapi import APIRouter

from tuner.api.deps import Svc
from tuner.schemas.answers import Advice
from tuner.service.advice import advice

router = APIRouter(tags=["answers"])


@router.get("/jobs/{job}/advice")
def get_advice(job: str, service: Svc) -> Advice:
    """Return advice on how the job could have been cheaper.

    Findings come from the job's measurements and its ledger. Each has its evidence, the change to make, the dollars that the change
    would have saved, and how to verify that quality did not regress. The answer also lists what could not be judged.
    """
    return Advice.model_validate(advice(service, job))
