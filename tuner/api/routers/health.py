"""Whether the service lives and is ready, and its figures for Prometheus. Without a key."""

from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from tuner.api.deps import Svc
from tuner.api.document import problems
from tuner.domain.errors import Unauthorized, Unavailable
from tuner.service import access, figures
from tuner.service.wiring import Service

router = APIRouter(tags=["health"])


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses=problems(503))
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


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"application/openmetrics-text": {}}}, **problems(401, 403)},
)
def metrics(request: Request, service: Svc) -> Response:
    """Prometheus' text format, or OpenMetrics where that is accepted. Of a service with several projects, whose sums they tell, the
    operator alone is shown them: they ask for the service's own key."""
    if _has_several_projects(service):
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise Unauthorized("with several projects, figures are shown to who sends the service's own key")
        if not access.is_operators(given, request.app.state.api_key):
            access.user_of(service, given).need("operator")
    text, kind = request.app.state.metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})


def _has_several_projects(service: Service) -> bool:
    """Once there are, there always are: a database that does not answer, which is told of here, opens nothing."""
    if not service.vitals.several_projects:
        with suppress(Unavailable):
            service.vitals.several_projects = access.has_several_projects(service)
    return service.vitals.several_projects
