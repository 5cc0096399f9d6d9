"""optuna-dashboard at `/optuna`, read-only and behind the key."""

import logging
from functools import partial
from typing import Any, cast

from a2wsgi import WSGIMiddleware
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.api.behind_key import PLAIN, POLICY, refusal
from tuner.api.problems import answer
from tuner.domain.errors import NotFound
from tuner.service.bootstrap import Service
from tuner.service.ray_dashboard import OPTUNA, OptunaDashboard, optuna_study

log = logging.getLogger("tuner.api")

THREADS = 4


def install(app: FastAPI, dashboard: OptunaDashboard) -> None:
    app.mount(OPTUNA, Mounted(app, dashboard))


class Mounted:
    """ASGI application that serves optuna-dashboard: its page at all page paths, and its API at all other paths."""

    def __init__(self, app: FastAPI, dashboard: OptunaDashboard) -> None:
        self._app, self._dashboard = app, dashboard
        self._data: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        refused = await refusal(self._app, request, "the Optuna dashboard is a copy, for reading alone")
        if refused is not None:
            await refused(scope, receive, send)
            return
        try:
            answered = await self._answer(request)
        except Exception as error:
            log.warning("the Optuna dashboard does not answer: %s", str(error).partition("\n")[0][:500])
            answered = answer(503, "Unavailable", "the storage of the Optuna dashboard does not answer")
        await answered(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "")).rstrip("/")
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
            self._data = WSGIMiddleware(await run_in_threadpool(self._wsgi), workers=THREADS)
        return cast(ASGIApp, self._data)

    def _wsgi(self) -> Any:
        return self._dashboard.wsgi

    def _to_study(self, job: str) -> Response:
        service: Service = self._app.state.service
        try:
            study = optuna_study(service, self._dashboard, job)
        except NotFound as error:
            return answer(404, error.title(), error.detail)
        if study is None:
            text = "<!doctype html><html lang=en><title>Not yet</title><p>Nothing of this job is mirrored to Optuna yet.</html>"
            return HTMLResponse(text, 404, headers=PLAIN)
        return RedirectResponse(f"{OPTUNA}/dashboard/studies/{study}", headers={"Cache-Control": "no-store"})
