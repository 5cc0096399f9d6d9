"""Bodies have a limit, told or not."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.problems import answer

MAX_BODY_BYTES = 1 << 20


class BodyTooLarge(HTTPException):
    """More came than is read. An HTTPException, which FastAPI passes on from the reading of a body."""

    def __init__(self) -> None:
        super().__init__(413, f"send at most {MAX_BODY_BYTES} bytes")


class BodyLimit:
    """ASGI middleware: 413 for a body that says it is, or turns out, larger than a MiB."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > MAX_BODY_BYTES:
            refusal = answer(413, "The body is too large", BodyTooLarge().detail)
            await refusal(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MAX_BODY_BYTES:
                raise BodyTooLarge
            return message

        await self._app(scope, counted, send)
