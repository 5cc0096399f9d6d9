"""Routes for the project's quota."""

from fastapi import APIRouter

from tuner.api import serialize
from tuner.api.deps import Svc
from tuner.schemas import budgets as wire
from tuner.service import queue

router = APIRouter(prefix="/quota", tags=["spend"])


@router.get("")
def get_quota(service: Svc) -> wire.Quota:
    """Return what the project may spend and run at once, and how much of that is used."""
    return serialize.quota_of(queue.show(service))


@router.put("")
def put_quota(body: wire.QuotaRequest, service: Svc) -> wire.Quota:
    """Set the project's quota. It replaces all limits; a limit that is not given is removed.

    Dollars and GPU-hours are hard limits, like a job's budget: the answer is 409 if the project has already spent or holds more. Jobs
    beyond `concurrent_jobs` and `concurrent_trials` wait in the queue. Active jobs continue.
    """
    return serialize.quota_of(queue.put(service, *serialize.quota_from(body)))
