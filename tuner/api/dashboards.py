"""Read-only dashboards of Optuna, at `/optuna`, and of Ray, at `/ray`. Both require a key or a session cookie.

A dashboard shows the jobs of all projects. If there are several projects, only the operator may see it.
"""

import logging
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, cast

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api import auth
from tuner.api.problems import answer
from tuner.domain.access import Actor
from tuner.domain.errors import Forbidden, NotFound, Unauthorized, Unavailable
from tuner.service import access, ray_dashboard
from tuner.service.bootstrap import Service
from tuner.service.ray_dashboard import OPTUNA, RAY, OptunaDashboard, optuna_study

log = logging.getLogger("tuner.api")

READING = ("GET", "HEAD")
POLICY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none';"
    " style-src 'self' data: 'unsafe-inline'; script-src 'self' 'unsafe-eval'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PLAIN = {**POLICY, "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
LOCKED = """<!doctype html><html lang="en"><title>The key is missing</title><h1>The key is missing</h1>
<p>Open this dashboard from a job on <a href="/">the web page</a>, which knows the key. This browser then has access for eight hours.
Scripts send the header <code>Authorization: Bearer KEY</code>.</p></html>"""
THREADS = 4


async def refusal(app: FastAPI, request: Request, not_reading: str) -> Response | None:
    """Return the answer that refuses a request to a dashboard, or None if the caller may read it.

    `not_reading` is the error text for requests with a method other than GET and HEAD.
    """
    if request.method not in READING:
        return answer(405, "This method is not allowed here", not_reading)
    service: Service = app.state.service
    try:
        actor = await _who(app, service, request)
        if not actor.is_operator:
            seen = partial(access.refuse_others_than_operator, service, actor, "this dashboard shows")
            await run_in_threadpool(seen)
    except Unauthorized as error:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(LOCKED, 401, headers=PLAIN)
        return answer(401, error.title(), error.detail, kind="unauthorized")
    except Forbidden as error:
        return answer(403, error.title(), error.detail, kind="forbidden")
    except Unavailable as error:
        return answer(503, error.title(), error.detail, kind="unavailable")
    return None


async def _who(app: FastAPI, service: Service, request: Request) -> Actor:
    """Return the actor that the request's bearer key or session cookie belongs to. Raise Unauthorized if neither is valid."""
    secret: str = app.state.api_key
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        if access.is_operators(given, secret):
            return access.operator(service, None)
        return await run_in_threadpool(access.user_of, service, given)
    key = auth.key_of(request.cookies.get(auth.COOKIE, ""), secret, service.now())
    if key is None:
        raise Unauthorized(
            "no key or valid session cookie was sent: a browser gets access with POST /v1/session; "
            "scripts send the header Authorization: Bearer KEY"
        )
    return access.operator(service, None) if not key else await run_in_threadpool(access.known, service, key)


class _Dashboard(ABC):
    """Base of the two dashboards, which are ASGI applications.

    If `refusal` refuses a request, that refusal is the answer. All other requests are answered by `_serve`.
    """

    not_reading: str  #: The detail of the answer to methods other than GET and HEAD.

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        refused = await refusal(self._app, request, self.not_reading)
        if refused is not None:
            await refused(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        await self._serve(request, path, receive, send)

    @abstractmethod
    async def _serve(self, request: Request, path: str, receive: Receive, send: Send) -> None:
        """Answer a request that was not refused."""


class Mounted(_Dashboard):
    """Serves optuna-dashboard: its page under `/dashboard`, the JavaScript of the page, and its API at all other paths.

    `/jobs/JOB` redirects to the job's study.
    """

    not_reading = "the Optuna dashboard shows a copy of the data and is read-only: send GET or HEAD"

    def __init__(self, app: FastAPI, dashboard: OptunaDashboard) -> None:
        super().__init__(app)
        self._dashboard = dashboard
        self._data: Any = None

    async def _serve(self, request: Request, path: str, receive: Receive, send: Send) -> None:
        try:
            answered = await self._answer(path.rstrip("/"))
        except Exception as error:
            log.warning("the Optuna dashboard does not answer: %s", str(error).partition("\n")[0][:500])
            answered = answer(
                503, "Unavailable", "the storage of the Optuna dashboard does not answer; try again"
            )
        await answered(request.scope, receive, send)

    async def _answer(self, path: str) -> ASGIApp:
        if path == "/static/bundle.js":
            script = await run_in_threadpool(lambda: self._dashboard.script)
            headers = {**POLICY, "Content-Encoding": "gzip", "Cache-Control": "private, max-age=86400"}
            return Response(script, media_type="text/javascript", headers=headers)
        if path.startswith("/jobs/"):
            return await run_in_threadpool(partial(self._to_study, path.removeprefix("/jobs/")))
        if path == "/dashboard" or path.startswith("/dashboard/"):
            return HTMLResponse(self._dashboard.index, headers={**POLICY, "Cache-Control": "no-cache"})
        if path == "":
            return RedirectResponse(f"{OPTUNA}/dashboard")
        if self._data is None:
            from a2wsgi import WSGIMiddleware  # an optional dependency

            wsgi: Any = await run_in_threadpool(lambda: self._dashboard.wsgi)
            self._data = WSGIMiddleware(wsgi, workers=THREADS)
        return cast(ASGIApp, self._data)

    def _to_study(self, job: str) -> Response:
        service: Service = self._app.state.service
        try:
            study = optuna_study(service, self._dashboard, job)
        except NotFound as error:
            return answer(404, error.title(), error.detail)
        if study is None:
            text = "<!doctype html><html lang=en><title>Not yet</title><p>This job is not mirrored to Optuna yet. Try again in a few seconds.</html>"
            return HTMLResponse(text, 404, headers=PLAIN)
        return RedirectResponse(f"{OPTUNA}/dashboard/studies/{study}", headers={"Cache-Control": "no-store"})


# Headers of the page of Ray's dashboard. The page also loads fonts, frames, and web workers for its editor.
PAGE = {
    **POLICY,
    "Content-Security-Policy": POLICY["Content-Security-Policy"]
    + "; font-src 'self' data:; worker-src 'self' blob:; frame-src 'self'",
}
# Headers of all other answers of Ray's dashboard. They contain text that jobs wrote, which a browser must not render as a page.
DATA = {
    **PLAIN,
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
}


class Proxied(_Dashboard):
    """Forwards to Ray's dashboard the requests that `tuner.service.ray_dashboard` allows.

    The service adds Ray's token to each request, and never sends the token to the browser. Cookies, keys and connection headers are forwarded in
    neither direction.
    """

    not_reading = "Ray's dashboard is read-only here: send GET or HEAD"

    async def _serve(self, request: Request, path: str, receive: Receive, send: Send) -> None:
        began = False

        async def begun(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        service: Service = self._app.state.service
        query = request.scope["query_string"].decode("latin-1")
        try:
            async with ray_dashboard.open_page(
                service.cluster, request.method, path, query, request.headers
            ) as answered:
                headers = {**answered.headers, **(PAGE if ray_dashboard.is_page(path) else DATA)}
                await StreamingResponse(answered.body, answered.status, headers)(
                    request.scope, receive, begun
                )
        except NotFound as error:
            await answer(404, error.title(), error.detail)(request.scope, receive, send)
        except Unavailable as error:
            log.warning("Ray's dashboard is not available: %s", error.detail)
            # Part of the answer was sent. Break the connection, so that the client does not mistake that part for the whole answer.
            if began:
                return
            await answer(503, error.title(), error.detail)(request.scope, receive, send)


def install(app: FastAPI, optuna: OptunaDashboard | None) -> None:
    """Serve Ray's dashboard, and Optuna's dashboard unless `optuna` is None."""
    if optuna is not None:
        app.mount(OPTUNA, Mounted(app, optuna))
    app.mount(RAY, Proxied(app))
