"""Access to the dashboards at `/optuna` and `/ray`. A request needs a key or a session cookie, and its method must be GET or HEAD.

A dashboard shows the jobs of all projects. If there are several projects, only the operator may see it.
"""

from functools import partial

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tuner.api import auth
from tuner.api.problems import answer
from tuner.domain.access import Actor
from tuner.domain.errors import Forbidden, Unauthorized, Unavailable
from tuner.service import access
from tuner.service.bootstrap import Service

READING = ("GET", "HEAD")
POLICY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none';"
    " style-src 'self' data: 'unsafe-inline'; script-src 'self' 'unsafe-eval'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PLAIN = {**POLICY, "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
LOCKED = """<!doctype html><html lang="en"><title>The key is missing</title><h1>The key is missing</h1>
<p>Open this dashboard from a job on <a href="/">the page</a>, which has the key: it lets this browser in for eight hours.
Scripts send the header <code>Authorization: Bearer KEY</code>.</p></html>"""


async def refusal(app: FastAPI, request: Request, not_reading: str) -> Response | None:
    """Return the answer that refuses a request to a dashboard, or None if the caller may read it.

    `not_reading` is the detail of the answer to methods other than GET and HEAD.
    """
    if request.method not in READING:
        return answer(405, "Not here", not_reading)
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
            "POST /v1/session lets a browser in; scripts send the header Authorization: Bearer KEY"
        )
    return access.operator(service, None) if not key else await run_in_threadpool(access.known, service, key)
