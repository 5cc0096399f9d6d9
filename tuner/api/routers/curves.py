"""All learning curves of a job at once."""

import gzip
from typing import Annotated

from fastapi import APIRouter, Header, Response

from tuner.api.deps import Svc
from tuner.api.present_curves import curves_json
from tuner.schemas.curves import Curves
from tuner.service.curves import job_curves, newest

router = APIRouter(tags=["answers"])
GZIP_LEVEL = 6
GZIP_FROM_BYTES = 1000


@router.get("/jobs/{job}/curves", response_model=Curves)
def get_curves(
    job: str,
    service: Svc,
    accept_encoding: Annotated[str, Header()] = "",
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The learning curves of all trials in one compact answer, with promotions and preemptions. It holds up to event `seq`, from which
    `events?after=` goes on without a gap; its `ETag` changes with that, and `If-None-Match` answers 304. Compressed where the reader
    takes gzip."""
    tag = 'W/"{}-{}"'.format(*newest(service, job))
    if if_none_match is not None and tag in [one.strip() for one in if_none_match.split(",")]:
        return Response(status_code=304, headers={"ETag": tag})
    view = job_curves(service, job)
    text = curves_json(view)
    headers = {
        "ETag": f'W/"{view.seq}-{view.job.state}"',
        "Vary": "Accept-Encoding",
        "Cache-Control": "private, no-cache",
    }
    if "gzip" in accept_encoding and len(text) >= GZIP_FROM_BYTES:
        text = gzip.compress(text, GZIP_LEVEL)
        headers["Content-Encoding"] = "gzip"
    return Response(text, media_type="application/json", headers=headers)
