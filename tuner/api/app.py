"""The FastAPI application: routes, errors, metrics and middleware. It makes no decisions."""

import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from fastapi import Depends, FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner import __version__
from tuner.api import access, auth, dashboards, document, page, problems
from tuner.api.auth import AccessChecks, Callers
from tuner.api.event_stream import EventBroadcaster
from tuner.api.limits import Clients, ClientSlots, ConcurrencyLimit, RateLimit, RequestLimits
from tuner.api.metrics import LatencyMiddleware, Metrics
from tuner.api.response_cache import AnswerCache
from tuner.api.routers import (
    answers,
    artifacts,
    best,
    budgets,
    curves,
    events,
    exports,
    health,
    jobs,
    packages,
    people,
    planning,
    spend,
)
from tuner.api.routers.curves import CurvesText
from tuner.api.strict_json import unambiguous
from tuner.service.bootstrap import Service
from tuner.service.metrics_snapshot import MetricsReader
from tuner.service.ray_dashboard import optuna_dashboard

# The header of each answer by which the caller and the audit log identify the request.
HEADER = b"x-request-id"
# The ids that are accepted from callers. All characters are safe in logs, because an accepted id is recorded unchanged.
_TAKEN = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestId:
    """ASGI middleware that sets `X-Request-Id` in the answer and `request.state.request_id`.

    The id is the request's own `X-Request-Id` if that is safe to log, otherwise a new random id.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id_ = _asked_with(scope) or secrets.token_hex(8).encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, id_)]}
            await send(message)

        state = {**scope.get("state", {}), "request_id": id_.decode()}
        await self._app({**scope, "state": state}, receive, send_with_id)


def _asked_with(scope: Scope) -> bytes | None:
    sent = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return sent if _TAKEN.fullmatch(sent) else None


class _HeadersSent(Exception):
    """The answer to a HEAD request is complete, so the rest of the answer is not needed."""


class HeadLikeGet:
    """ASGI middleware that answers HEAD as GET, without the body. FastAPI's own routes for GET answer HEAD with 405.

    The routes and all checks see a GET. They are stopped when their answer begins, so that no file is read and no stream stays open. The
    dashboards answer HEAD themselves.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(auth.PATHS):
            await self._app(scope, receive, send)
            return

        async def send_headers(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            raise _HeadersSent

        with suppress(_HeadersSent):
            await self._app({**scope, "method": "GET"}, receive, send_headers)


RESPONSES = document.problems(400, 401, 403, 404, 408, 409, 413, 414, 422, 429, 431, 503)


def create_app(
    service: Service,
    *,
    is_ready: Callable[[], bool] = lambda: True,
    mirrors: Callable[[], Mapping[str, str]] = dict,
    page_files: Path | None = None,
) -> FastAPI:
    """Create the application.

    Args:
        service: The use cases that the routes call.
        is_ready: Returns True if the Ray cluster has answered at least once since the service started.
        mirrors: Returns the state of each mirror by name.
        page_files: The folder of the page at `/`, or None to serve no page.

    Returns:
        The application. Set the event `app.state.shutting_down` when the service begins to shut down. `/readyz` then answers 503.
    """
    app = FastAPI(
        title="tuner",
        version=__version__,
        summary="Hyperparameter tuning under hard budgets in dollars and GPU-hours",
        redoc_url=None,
    )
    app.state.service = service
    app.state.api_key = service.settings.api_key()
    app.state.callers = Callers()
    app.state.clients = Clients(app.state.api_key, app.state.callers)
    app.state.streams, app.state.access_checks = ClientSlots(), AccessChecks()
    app.state.is_ready, app.state.shutting_down = is_ready, threading.Event()
    app.state.broadcaster = EventBroadcaster()
    app.state.responses, app.state.curves = AnswerCache[bytes](len), AnswerCache(CurvesText.size)
    app.state.metrics_reader = MetricsReader(service)
    app.state.metrics = Metrics(app.state.metrics_reader.read, service.health)
    app.state.mirrors = mirrors
    problems.install(app)
    document.install(app)
    rules = [Depends(access.allow), Depends(unambiguous)]
    # Routes are matched in this order, so the ones that pages poll come first.
    for part in (
        best,
        answers,
        events,
        jobs,
        curves,
        artifacts,
        exports,
        planning,
        spend,
        budgets,
        packages,
        people,
        auth,
    ):
        # Each router is included in the app itself, because nested routers would match the path again at each level.
        app.include_router(part.router, prefix="/v1", dependencies=rules, responses=RESPONSES)
    app.include_router(health.router)
    dashboards.install(app, optuna_dashboard(service.settings))
    if page_files is not None:
        page.install(app, page_files)
    app.add_middleware(RequestLimits)
    app.add_middleware(ConcurrencyLimit, clients=app.state.clients)
    app.add_middleware(RateLimit, clients=app.state.clients, rate=service.settings.rate_limit)
    app.add_middleware(LatencyMiddleware, metrics=app.state.metrics)
    app.add_middleware(RequestId)
    app.add_middleware(HeadLikeGet)
    return app
