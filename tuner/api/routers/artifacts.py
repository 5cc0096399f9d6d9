"""Routes for the files that trials reported with their metrics."""

import base64

from fastapi import APIRouter, Response

from tuner.api.deps import Svc
from tuner.schemas import answers as show
from tuner.service.artifacts import IMAGES, OTHER, artifacts_of
from tuner.service.artifacts import artifact as read

router = APIRouter(tags=["answers"])
# User code chose the content. Opened in a browser, it must not run anything or load anything.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}


@router.get("/jobs/{job}/trials/{trial}/artifacts")
def list_artifacts(job: str, trial: str, service: Svc) -> show.ArtifactList:
    """List the files that a trial reported with its metrics, by name. A name that was reported again has its newest file."""
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

    PNG, JPEG, GIF and WebP files are sent as images. All others are sent as `application/octet-stream`, whatever they contain. The
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
