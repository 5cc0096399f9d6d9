"""Routes for stored files: artifacts and checkpoints of trials, the size and cost of each job's files, and their deletion."""

import base64
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi import status as http
from fastapi.responses import StreamingResponse

from tuner.api.deps import Svc
from tuner.api.ranges import Ranged, ranged
from tuner.domain.retention import Retain
from tuner.schemas import answers as show
from tuner.service import storage_lifecycle
from tuner.service.artifacts import IMAGES, OTHER, artifacts_of
from tuner.service.artifacts import artifact as read
from tuner.service.checkpoints import file_of, open_checkpoint

router = APIRouter(tags=["answers"])
# User code chose the content of these files. When a browser opens a file, the file must not run or load anything.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}


@router.get("/jobs/{job}/trials/{trial}/artifacts")
def list_artifacts(job: str, trial: str, service: Svc) -> show.ArtifactList:
    """List the files that a trial reported with its metrics, by name. If a name was reported several times, its newest file is listed."""
    return show.ArtifactList.model_validate({"items": artifacts_of(service, job, trial)})


@router.get(
    "/jobs/{job}/trials/{trial}/artifacts/{artifact}",
    response_class=Response,
    responses={
        200: {
            "content": {kind: {} for kind in (OTHER, *sorted(set(IMAGES.values())))},
            "description": "The file.",
        }
    },
)
def get_artifact(job: str, trial: str, artifact: str, service: Svc) -> Response:
    """Download a file that a trial reported.

    PNG, JPEG, GIF and WebP files are sent as images. All others are sent as `application/octet-stream`, regardless of their content. The
    header `Repr-Digest` (RFC 9530) is the file's SHA-256.
    """
    view, content = read(service, job, trial, artifact)
    kind = "inline" if view.is_image else "attachment"
    headers = {
        **HEADERS,
        "Content-Disposition": f'{kind}; filename="{view.name}"',
        "ETag": f'"{view.sha256}"',
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(view.sha256)).decode()}:",
        "Tuner-Step": str(view.step),
    }
    return Response(content, headers=headers, media_type=view.content_type)


@router.delete("/jobs/{job}/artifacts", status_code=http.HTTP_202_ACCEPTED)
def delete_artifacts(job: str, service: Svc, retain: Retain = "none") -> show.DeletedArtifacts:
    """Delete the checkpoints and artifacts of a job that has ended, except those of the trials that `retain` names.

    The deleted files are not listed from then on, and are removed from the storage within a few minutes. Metrics, bills and logs are
    kept. A job that is resumed later trains its trials from the beginning. The request is refused with 409 while the job, or a warm
    start of another job, needs the files.
    """
    return show.DeletedArtifacts.model_validate(storage_lifecycle.delete_artifacts(service, job, retain))


@router.get("/storage")
def get_storage(service: Svc, job: str | None = None) -> show.StoredFiles:
    """Return, for each job of the project, the size of its files as last measured, their cost, and the time when they will be deleted.

    `job` restricts the answer to one job, even if all of its files were deleted. Files of a running job are measured every 15 minutes.
    """
    return show.StoredFiles.model_validate(storage_lifecycle.storage(service, job))


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
