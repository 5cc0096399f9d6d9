"""The HTTP server of `tuner serve`: uvicorn with limits on slow clients, and a shutdown in steps."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

ARRIVE_S = 30.0  # How many seconds a request may take to arrive.
READ_S = 0.1
LOOPBACK = ("127.0.0.1", "::1")
# More than the limit of `tuner.api.limits`, so that the app can answer with its own error if headers are only slightly too long.
MOST_HEAD_BYTES = 64 << 10


class TimeoutProtocol(HttpToolsProtocol):
    """An HTTP protocol that closes a connection if a request does not arrive completely within `ARRIVE_S` seconds.

    It also closes a connection on which no request begins within that time. If the headers exceed `MOST_HEAD_BYTES`, the answer is status 431.
    """

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self._refuse_head()
        self._look()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection `READ_S` seconds after its time limit.

        uvloop runs timers before it reads sockets. Without this delay, it could close a connection on which a request has already arrived, while
        the loop was busy.
        """
        close = super().timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(READ_S, close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _refuse_head(self) -> None:
        self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def _look(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        if not waits:
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(ARRIVE_S, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class ForwardedScheme:
    """ASGI middleware that takes the scheme of a request from a proxy on this machine (`X-Forwarded-Proto`).

    Redirects and the session cookie then use https if the client does. `X-Forwarded-For` is not used, unlike in uvicorn: many proxies pass
    on the header of their client, which could then choose the address by which its requests are limited.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope.get("client") or ("",))[0] in LOOPBACK:
            forwarded = dict(scope["headers"]).get(b"x-forwarded-proto", b"")
            if forwarded in (b"http", b"https"):
                scope = {**scope, "scheme": forwarded.decode()}
        await self._app(scope, receive, send)


ANSWER_S = 10  # How many seconds open responses may take after the server has stopped listening.
# How many seconds an idle connection stays open. A client that polls every few seconds then reuses its connection. With a shorter limit, a request
# would sometimes be sent just as the connection is closed, and fail.
KEEP_ALIVE_S = 20


class GracefulServer(uvicorn.Server):
    """An HTTP server that shuts down in steps.

    1. The first SIGTERM or SIGINT sets `shutting_down`. After a SIGTERM the server listens for another `drain_s` seconds, so that load
       balancers notice that it is not ready. Another signal skips this wait. A signal after the wait forces the exit.
    2. `end_streams` ends the event streams. Other responses get `ANSWER_S` seconds to finish.
    3. `run` returns. Unlike in uvicorn, the signal is not raised again, because it would kill the process while its threads still work.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        shutting_down: threading.Event,
        end_streams: Callable[[], None],
        drain_s: float,
    ) -> None:
        config = uvicorn.Config(
            ForwardedScheme(app),
            proxy_headers=False,
            http=TimeoutProtocol,
            loop="uvloop",
            timeout_keep_alive=KEEP_ALIVE_S,
            ws="none",
            log_level="warning",
            timeout_graceful_shutdown=ANSWER_S,
            server_header=False,
        )
        super().__init__(config)
        self._shutting_down, self._end_streams, self._drain_s = shutting_down, end_streams, drain_s
        self._leaves_at = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._shutting_down.is_set():
            self.force_exit = self.should_exit
            self.should_exit = True
            return
        self._shutting_down.set()
        self._leaves_at = time.monotonic() + (self._drain_s if sig == signal.SIGTERM else 0)

    async def on_tick(self, counter: int) -> bool:
        if self._shutting_down.is_set() and time.monotonic() >= self._leaves_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM until the server ends.

        Uvicorn's own method raises the signal again at the end, which would kill the process while its threads are still working.
        """
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
