"""The route that downloads checkpoints."""

import base64
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from tuner.api.deps import Svc
from tuner.api.ranges import Ranged, ranged
from tuner.service.checkpoints import file_of, open_checkpoint

router = APIRouter(tags=["answers"])
TAR = "application/x-tar"
BINARY = "application/octet-stream"


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
    content: Ranged = archive
    name, media = f"{job}-{trial}-step{checkpoint.step}", TAR
    if file is None:
        name += ".tar"
    else:
        content, media = file_of(archive, file), BINARY
        headers["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(content.digest)).decode()}:"
        name += f"-{PurePosixPath(file).name}"
    return ranged(content, range_, if_range, name=name, media_type=media, headers=headers)
