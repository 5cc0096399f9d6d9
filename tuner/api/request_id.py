"""The `X-Request-Id` of each answer, by which the caller and the audit log can identify the request."""

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
# Only characters that are safe in logs, because the id is recorded as it was sent.
_TAKEN = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestId:
    """ASGI middleware that sets `X-Request-Id` in the answer and `request.state.request_id`. It uses the id of the request, or makes a
    new one.
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
