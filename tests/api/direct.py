"""Send requests to the app byte by byte as a server would, without a client that normalises paths."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

Headers = Iterable[tuple[str, str]]
ENDLESS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    content: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


class Direct:
    """Send requests one after another. Return after the first part of an event stream.

    Args:
        app: The app.
        loop: The event loop to use. If it is None, one is created.
    """

    def __init__(self, app: ASGIApp, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._app, self._loop = app, loop or asyncio.new_event_loop()

    def send(
        self, method: str, target: str, headers: Headers = (), body: bytes = b"", *, raises: bool = True
    ) -> Answer:
        """Send a request.

        Args:
            method: The method.
            target: The path and query exactly as in the request line.
            headers: The headers.
            body: The body.
            raises: Raise what the app raises, instead of returning its answer of status 500.
        """
        return self._loop.run_until_complete(self._send(method, target, headers, body, raises=raises))

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _send(self, method: str, target: str, headers: Headers, body: bytes, *, raises: bool) -> Answer:
        path, _, query = target.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), _bytes(value)) for name, value in headers],
            "client": ("testclient", 50000),  # as Starlette's client, which some tests use in turn with this
            "server": ("127.0.0.1", 80),
        }
        given = [{"type": "http.request", "body": body, "more_body": False}]
        gone, answered = asyncio.Event(), list[Message]()

        async def receive() -> Message:
            if given:
                return given.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            answered.append(message)
            if message.get("body") and ENDLESS in kind():
                gone.set()

        def kind() -> str:
            return dict(answered[0]["headers"]).get(b"content-type", b"").decode()

        try:
            await self._app(scope, receive, send)
        except Exception:
            if raises or not answered:
                raise
        gone.set()
        begin, *rest = answered
        return Answer(
            begin["status"],
            [(name.decode("latin-1"), value.decode("latin-1")) for name, value in begin["headers"]],
            b"".join(asgi_message.get("body", b"") for asgi_message in rest),
        )


def _bytes(value: str) -> bytes:
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()
