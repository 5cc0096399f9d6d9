"""Whether the service lives and is ready, and its figures for Prometheus. Without a key."""

from typing import Any

from fastapi import APIRouter, Request, Response

from tuner.api.deps import Svc
from tuner.domain.errors import Unavailable
from tuner.service import figures

router = APIRouter(tags=["health"])


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(request: Request, service: Svc) -> dict[str, Any]:
    """The database answers, and the Ray cluster did when the controller last looked. `mirrors` says how the copies for other tools
    do; the service is ready without them. One of several that does not lead is ready, too; one that is about to end is not."""
    if request.app.state.leaving.is_set():
        raise Unavailable("this service is about to end")
    figures.check_database(service)
    if not request.app.state.is_ready():
        raise Unavailable("the Ray cluster is starting, or does not answer")
    standing = request.app.state.mirrors()
    return {"status": "ready", **({"mirrors": standing} if standing else {})}


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus' text format, or OpenMetrics where that is accepted."""
    text, kind = request.app.state.metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})
