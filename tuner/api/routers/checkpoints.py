"""The route that downloads checkpoints."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from tuner.api.deps import Svc
from tuner.service.checkpoints import open_checkpoint

router = APIRouter(tags=["answers"])
TAR = "application/x-tar"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@router.get(
    "/jobs/{job}/trials/{trial}/checkpoint",
    response_class=StreamingResponse,
    responses={
        200: {"content": {TAR: {}}, "description": "The checkpoint."},
        206: {"content": {TAR: {}}, "description": "The requested range of bytes."},
        416: {"description": "The range begins after the end."},
    },
)
def get_checkpoint(
    job: str,
    trial: str,
    service: Svc,
    step: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    range_: Annotated[str, Header(alias="Range")] = "",
    if_range: Annotated[str, Header()] = "",
) -> Response:
    """Download a trial's checkpoint as a tar file: the checkpoint of `step`, or without `step` the one with the best metric.

    The header `Tuner-Step` is the checkpoint's step. `MANIFEST.json` in the tar file has the SHA-256 of each file. To continue an
    interrupted download, send a `Range` of bytes, and the `ETag` as `If-Range`.
    """
    checkpoint, archive = open_checkpoint(service, job, trial, step)
    etag = f'"{archive.digest}"'
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{job}-{trial}-step{checkpoint.step}.tar"',
        "ETag": etag,
        "Tuner-Step": str(checkpoint.step),
    }
    wanted = _range(range_, archive.size) if not if_range or if_range == etag else (0, archive.size)
    if wanted is None:
        headers = {"Content-Range": f"bytes */{archive.size}"}
        raise HTTPException(416, f"the checkpoint has {archive.size} bytes", headers)
    start, stop = wanted
    headers["Content-Length"] = str(stop - start)
    status = 200
    if (start, stop) != (0, archive.size):
        status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{archive.size}"
    return StreamingResponse(archive.read(start, stop), status, headers, media_type=TAR)


def _range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte that a Range header requests, and the position after the last one. Return None if no such byte exists.

    A header with several ranges, or with units other than bytes, is ignored, as RFC 9110 allows. The whole file is then returned.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return 0, size
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, size) if length else None
    start, last = int(match[1]), int(match[2] or size - 1)
    if match[2] and last < start:
        return 0, size
    return (start, min(last + 1, size)) if start < size else None
