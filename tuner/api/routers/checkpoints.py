"""The route that downloads checkpoints."""

import base64
import re
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from tuner.api.deps import Svc
from tuner.service.checkpoints import SegmentedFile, file_of, open_checkpoint

router = APIRouter(tags=["answers"])
TAR = "application/x-tar"
BINARY = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@router.get(
    "/jobs/{job}/trials/{trial}/checkpoint",
    response_class=StreamingResponse,
    responses={
        200: {"content": {TAR: {}, BINARY: {}}, "description": "The checkpoint."},
        206: {"content": {TAR: {}, BINARY: {}}, "description": "The requested range of bytes."},
        416: {"description": "The range begins after the end."},
    },
)
def get_checkpoint(
    job: str,
    trial: str,
    service: Svc,
    step: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    file: Annotated[str | None, Query(min_length=1, max_length=4096)] = None,
    range_: Annotated[str, Header(alias="Range")] = "",
    if_range: Annotated[str, Header()] = "",
) -> Response:
    """Download a trial's checkpoint as a tar file: the checkpoint of `step`, or without `step` the one with the best metric.

    With `file`, download only that file of the checkpoint, such as `state.pt`. The header `Repr-Digest` (RFC 9530) is its SHA-256.
    The header `Tuner-Step` is the checkpoint's step. `MANIFEST.json` in the tar file has the SHA-256 of each file. To continue an
    interrupted download, send a `Range` of bytes, and the `ETag` as `If-Range`.
    """
    checkpoint, archive = open_checkpoint(service, job, trial, step)
    headers = {"Tuner-Step": str(checkpoint.step)}
    if file is None:
        headers["ETag"] = f'"{archive.digest}"'
        name = f"{job}-{trial}-step{checkpoint.step}.tar"
        return _send(archive, TAR, headers, name, (range_, if_range))
    one = file_of(archive, file)
    headers["ETag"] = f'"{one.sha256}"'
    headers["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(one.sha256)).decode()}:"
    name = f"{job}-{trial}-step{checkpoint.step}-{PurePosixPath(file).name}"
    return _send(one.content, BINARY, headers, name, (range_, if_range))


def _send(
    content: SegmentedFile, media: str, headers: dict[str, str], name: str, ranges: tuple[str, str]
) -> Response:
    """Return the response that sends a file, or the requested range of it.

    Args:
        headers: The headers of the file. They contain its `ETag`.
        name: The name under which a browser saves it.
        ranges: The request's headers `Range` and `If-Range`.

    Raises:
        HTTPException: With status 416 if the range begins after the end.
    """
    range_, if_range = ranges
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)  # user code chooses the names of its files
    headers |= {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{safe}"',
        "X-Content-Type-Options": "nosniff",
    }
    wanted = (
        _range(range_, content.size) if not if_range or if_range == headers["ETag"] else (0, content.size)
    )
    if wanted is None:
        headers = {"Content-Range": f"bytes */{content.size}"}
        raise HTTPException(416, f"the checkpoint has {content.size} bytes", headers)
    start, stop = wanted
    headers["Content-Length"] = str(stop - start)
    status = 200
    if (start, stop) != (0, content.size):
        status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{content.size}"
    return StreamingResponse(content.read(start, stop), status, headers, media_type=media)


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
