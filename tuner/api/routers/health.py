"""Routes that need no key: liveness, readiness, and metrics for Prometheus."""

from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from tuner.api.deps import Svc
from tuner.api.document import problems
from tuner.domain.errors import Unauthorized, Unavailable
from tuner.service import access, metrics_snapshot
from tuner.service.bootstrap import Service

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Return 200 if the process answers."""
    # A plain function would wait for a thread, and all threads may wait for a database that does not answer.
    return {"status": "ok"}


@router.get("/readyz", responses=problems(503))
def readyz(request: Request, service: Svc) -> dict[str, Any]:
    """Return 200 if the service is ready: the database answers, and the Ray cluster has answered at least once since the service started.

    `mirrors` is the state of each mirror, such as Optuna's. The service is ready without them. A replica that is not the leader is
    ready too. A service that is shutting down is not.
    """
    if request.app.state.shutting_down.is_set():
        raise Unavailable("this service is shutting down")
    metrics_snapshot.check_database(service)
    if not request.app.state.is_ready():
        raise Unavailable("the Ray cluster is starting, or does not answer")
    mirrors = request.app.state.mirrors()
    return {"status": "ready", **({"mirrors": mirrors} if mirrors else {})}


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"application/openmetrics-text": {}}}, **problems(401, 403)},
)
def metrics(request: Request, service: Svc) -> Response:
    """Return metrics in Prometheus' text format, or in OpenMetrics if the client accepts it.

    If the service has several projects, only the operator may read them, because they are sums over all projects. The request then
    needs the service's own key.
    """
    if _has_several_projects(service):
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise Unauthorized("with several projects, the metrics require the service's own key")
        if not access.is_operators(given, request.app.state.api_key):
            access.user_of(service, given).need("operator")
    text, kind = request.app.state.metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})


def _has_several_projects(service: Service) -> bool:
    """Return True if the service has, or once had, several projects.

    If the database does not answer, return the last known answer. That is safe because the metrics then contain no figures from the
    database.
    """
    if not service.health.several_projects:
        with suppress(Unavailable):
            service.health.several_projects = access.has_several_projects(service)
    return service.health.several_projects
