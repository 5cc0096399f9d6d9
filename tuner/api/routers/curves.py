"""The route for all learning curves of a job."""

import gzip
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from tuner.api.deps import Svc
from tuner.api.response_cache import Shared
from tuner.api.serialize import curves_json
from tuner.schemas.answers import Curves
from tuner.service import answers
from tuner.service.answers import job_curves
from tuner.service.bootstrap import Service

router = APIRouter(tags=["answers"])
GZIP_LEVEL = 6
GZIP_FROM_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Drawn:
    """The learning curves of a job as JSON text, plain and compressed, with their entity tag."""

    tag: str
    text: bytes
    packed: bytes

    def size(self) -> int:
        return len(self.text) + len(self.packed)


@router.get(
    "/jobs/{job}/curves", response_model=Curves, responses={304: {"description": "Nothing has changed"}}
)
def get_curves(
    job: str,
    request: Request,
    service: Svc,
    metric: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    accept_encoding: Annotated[str, Header()] = "",
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the learning curves of all trials in one compact answer, with promotions and preemptions.

    The answer contains all reports up to event `seq`. `events?after=` continues from there without a gap. `metric` is the name of any
    reported metric, by default the objective's; the answer is 422 if no trial has reported it. The `ETag` changes with every event, and
    a request with `If-None-Match` is answered with 304 if nothing has changed. The answer is compressed if the client accepts gzip.
    """
    version = answers.version(service, job)
    key = (service.database, service.project, job, version.state, metric)
    kept: Shared[Drawn] = request.app.state.curves
    found = kept.get(key, version, lambda: _drawn(service, job, metric))
    headers = {"ETag": found.tag, "Vary": "Accept-Encoding", "Cache-Control": "private, no-cache"}
    if if_none_match is not None and found.tag in [one.strip() for one in if_none_match.split(",")]:
        return Response(status_code=304, headers=headers)
    if "gzip" not in accept_encoding or len(found.text) < GZIP_FROM_BYTES:
        return Response(found.text, media_type="application/json", headers=headers)
    return Response(
        found.packed, media_type="application/json", headers={**headers, "Content-Encoding": "gzip"}
    )


def _drawn(service: Service, job: str, metric: str | None) -> Drawn:
    view = job_curves(service, job, metric)
    text = curves_json(view)
    return Drawn(f'W/"{view.seq}-{view.job.state}"', text, gzip.compress(text, GZIP_LEVEL))
