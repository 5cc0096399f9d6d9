"""The route that starts pilots, from which a plan learns if no earlier job exists."""

from fastapi import APIRouter, Response

from tuner.api import serialize_jobs, translate
from tuner.api.deps import Svc
from tuner.api.routers.jobs import Key
from tuner.schemas.job import Job
from tuner.schemas.plan import PilotRequest
from tuner.service import pilots

router = APIRouter(tags=["plans"])


@router.post("/pilots", status_code=201, responses={200: {"model": Job}})
def create_pilot(body: PilotRequest, response: Response, service: Svc, key: Key = None) -> Job:
    """Run a few steps of a few configurations of this job under a budget of their own, so that plans can learn from them.

    If a pilot with the same code, search space and resources exists, the answer is 200 with that pilot.
    """
    asked = body.without_defaults()
    limits = translate.pilot_limits_of(body.planning.pilot)
    view, new = pilots.start(service, translate.spec_of(body), limits, body=asked, idempotency_key=key)
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"/v1/jobs/{view.row.id}"
    return serialize_jobs.job_of(view)
