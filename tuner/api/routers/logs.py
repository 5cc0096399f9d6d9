"""The route for the output of trials."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse

from tuner.api.deps import Svc
from tuner.schemas.answers import TrialLog
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
    """Return the output of the trial's own code in an attempt.

    Without `attempt`, the newest attempt that has a log is used. The answer has the last `tail` bytes of the output that follows its
    first `after` bytes. Output is stored every few seconds and when the attempt ends. `Accept: text/plain` returns the text alone.
    """
    view = log(service, job, trial, attempt, tail=tail, after=after)
    return PlainTextResponse(view.text) if "text/plain" in accept else TrialLog.model_validate(view)
