"""What trials print."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse

from tuner.api import present_logs
from tuner.api.deps import Svc
from tuner.schemas.logs import TrialLog
from tuner.service.logs import log

router = APIRouter(tags=["answers"])
TAIL_BYTES = 64 << 10
MOST_BYTES = 512 << 10


@router.get(
    "/jobs/{job}/trials/{trial}/logs",
    response_model=TrialLog,
    responses={200: {"content": {"text/plain": {}}}},
)
def get_log(
    job: str,
    trial: str,
    service: Svc,
    attempt: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    tail: Annotated[int, Query(ge=1, le=MOST_BYTES)] = TAIL_BYTES,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    accept: Annotated[str, Header()] = "",
) -> Response | TrialLog:
    """What the trial's own code printed in an attempt, the newest that has a log where none is named: the last `tail` bytes, of those
    behind the first `after` bytes. Written down every few seconds and when the attempt ends. `Accept: text/plain` gives the text."""
    found = present_logs.log_of(log(service, job, trial, attempt, tail=tail, after=after))
    return PlainTextResponse(found.text) if "text/plain" in accept else found
