"""What the project may spend and have at once."""

from fastapi import APIRouter

from tuner.api import present_quota
from tuner.api.deps import Svc
from tuner.schemas import quota as wire
from tuner.service import quotas

router = APIRouter(prefix="/quota", tags=["spend"])


@router.get("")
def get_quota(service: Svc) -> wire.Quota:
    """What the project may spend and have at once, and what of it is used."""
    return present_quota.quota_of(quotas.show(service))


@router.put("")
def put_quota(body: wire.QuotaRequest, service: Svc) -> wire.Quota:
    """Sets all of it anew; what is not given is not limited. Dollars and GPU-hours are hard, as a job's budget is: 409 where the
    project has spent or holds more already. Jobs beyond `concurrent_jobs` and `concurrent_trials` wait in line, and those at
    work go on."""
    return present_quota.quota_of(quotas.put(service, *present_quota.quota_from(body)))
