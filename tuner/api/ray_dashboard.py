"""Ray's dashboard at `/ray`, read-only and behind the key. The service adds Ray's token to the forwarded requests and never sends it to
the browser.
"""

import logging

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from tuner.api import behind_key
from tuner.api.problems import answer
from tuner.domain.errors import NotFound, Unavailable
from tuner.service import ray_dashboard
from tuner.service.bootstrap import Service
from tuner.service.ray_dashboard import RAY

log = logging.getLogger("tuner.api")

# The dashboard's own page also needs fonts, and the workers of its editor.
PAGE = {
    **behind_key.POLICY,
    "Content-Security-Policy": behind_key.POLICY["Content-Security-Policy"]
    + "; font-src 'self' data:; worker-src 'self' blob:; frame-src 'self'",
}
# Logs and tables contain text that jobs wrote, which a browser must not render as a page.
DATA = {
    **behind_key.PLAIN,
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
}


def install(app: FastAPI) -> None:
    app.mount(RAY, Proxied(app))


class Proxied:
    """ASGI application that forwards requests to Ray's dashboard, if `tuner.service.ray_dashboard` allows them.

    Cookies, keys and connection headers are forwarded in neither direction.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        reading = "Ray's dashboard is shown for reading alone"
        refused = await behind_key.refusal(self._app, request, reading)
        if refused is not None:
            await refused(scope, receive, send)
            return
        began = False

        async def begun(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        service: Service = self._app.state.service
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        query = request.scope["query_string"].decode("latin-1")
        try:
            async with ray_dashboard.open_page(
                service.cluster, request.method, path, query, request.headers
            ) as answered:
                headers = {**answered.headers, **(PAGE if ray_dashboard.is_page(path) else DATA)}
                await StreamingResponse(answered.body, answered.status, headers)(scope, receive, begun)
        except NotFound as error:
            await answer(404, error.title(), error.detail)(scope, receive, send)
        except Unavailable as error:
            log.warning("Ray's dashboard is not available: %s", error.detail)
            # the connection then breaks, so that no client mistakes the partial answer for a whole one
            if began:
                return
            await answer(503, error.title(), error.detail)(scope, receive, send)
