"""Limits on requests. A request beyond a limit is answered with a problem that names the limit."""

import asyncio
import hmac
import math
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.api.access import OPEN
from tuner.api.problems import answer, joined
from tuner.domain.errors import Invalid
from tuner.schemas.base import NUL, FieldProblem
from tuner.service.packages import most_bytes

MAX_BODY_BYTES = 1 << 20
PACKAGES = "/v1/packages"
MAX_TARGET_BYTES = 8 << 10
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10
BODY_S = 25.0
# Beyond 500 waiting requests, which are two or three seconds of work, a client is asked to retry after BUSY_S seconds.
MOST_WAITING, BUSY_S = 500, 2
# The bodies that may arrive at the same time: of one client, of all clients with a key, and of all clients without one. Each of them may take
# 25 s and the memory of the largest body, which is 1 MiB, or TUNER_PACKAGE_MIB for a package.
MOST_ARRIVING_OF_CLIENT, MOST_ARRIVING = 100, 500
# The event streams of one client, and of all clients, that may be open at the same time.
MOST_STREAMS_OF_CLIENT, MOST_STREAMS = 200, 1000
# The token buckets of this many most recent clients are kept. A client whose bucket was dropped starts again with a full one.
REMEMBERED = 10_000
CLOCK_S = 1e-6  # seconds; a shorter wait may be a rounding error, so the request is let through
TITLES = {
    400: "The body's length is given twice",
    413: "The body is too large",
    414: "The path and query are too long",
    431: "The headers are too large",
}


class RequestLimits:
    """ASGI middleware that refuses requests that are too large.

    - 400: both Content-Length and Transfer-Encoding are given.
    - 414, 431: the target or the headers are too large.
    - 413, 408: the body is too large or too slow.

    The limit for an uploaded package is the one in the service's settings.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_package = scope["method"] == "POST" and scope["path"] == PACKAGES
        most = most_bytes(scope["app"].state.service.settings) if is_package else MAX_BODY_BYTES
        if (refused := _refusal(scope, most)) is not None:
            status, detail = refused
            response = answer(status, TITLES[status], detail)
            if status == 400:
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
        elif (unstorable := _nul_response(scope)) is not None:
            await unstorable(scope, receive, send)
        else:
            await self._app(scope, _Body(receive, most), send)


def _refusal(scope: Scope, most: int) -> tuple[int, str] | None:
    headers = scope["headers"]
    names = dict(headers)
    if b"content-length" in names and b"transfer-encoding" in names:
        # If a proxy used one of the two headers and the service the other, part of the body could be read as a further request (RFC 9112, 6.1).
        return 400, "send Content-Length or Transfer-Encoding, not both"
    length = names.get(b"content-length", b"0")
    if length.isdigit() and int(length) > most:
        return 413, f"send a body of at most {most} bytes"
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET_BYTES:
        return 414, f"send a path and query of at most {MAX_TARGET_BYTES} bytes"
    if len(headers) > MAX_HEADERS or sum(len(k) + len(v) for k, v in headers) > MAX_HEADER_BYTES:
        return 431, f"send at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together"
    return None


def _nul_response(scope: Scope) -> JSONResponse | None:
    """Return the response to a request with a NUL character in its path or query, which PostgreSQL refuses, or None without one."""
    if "\0" in scope["path"]:
        detail = "the path contains a NUL character, which no name contains"
        return answer(404, "This path does not exist", detail, kind="no-such-path")
    if b"%00" not in scope["query_string"]:
        return None
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    names = dict.fromkeys(name for name, value in pairs if "\0" in name + value)
    fields = [FieldProblem(pointer=name, detail=NUL) for name in names]
    return answer(422, Invalid.title(), joined(fields), fields=fields)


class _Body:
    """The ASGI `receive` of a request. It checks the whole body and then returns it in one message.

    If the body is refused, it raises HTTPException, which FastAPI turns into an answer.
    """

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._most, self._is_read = receive, most, False

    async def __call__(self) -> Message:
        if self._is_read:
            return await self._receive()
        self._is_read = True
        try:
            async with asyncio.timeout(BODY_S):
                return await self._whole()
        except TimeoutError as error:
            raise HTTPException(
                408, f"the body was not complete after {BODY_S:.0f} s; send it faster"
            ) from error

    async def _whole(self) -> Message:
        parts, seen = [], 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
            seen += len(parts[-1])
            if seen > self._most:
                raise HTTPException(413, f"send a body of at most {self._most} bytes")
            if not message.get("more_body", False):
                break
        return {"type": "http.request", "body": b"".join(parts), "more_body": False}


class Buckets:
    """A token bucket for each client. A bucket gains `rate` tokens a second, and holds at most the tokens of two seconds.

    A bucket is stored as one number: the time at which it is full again (GCRA, ATM Forum TM 4.0).
    """

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._each_s, self._burst_s, self._now = 1 / rate, 2.0, now
        self._until: dict[str, float] = {}

    def take(self, client: str) -> float:
        """Take a token from the client's bucket. Return 0 if one was available, otherwise the seconds until one is."""
        now = self._now()
        until = max(self._until.pop(client, 0.0), now)
        wait_s = until + self._each_s - now - self._burst_s
        if wait_s < CLOCK_S:
            wait_s, until = 0.0, until + self._each_s
        self._until[client] = until
        if len(self._until) > REMEMBERED:
            del self._until[next(iter(self._until))]
        return wait_s


class Clients:
    """Names the client of a request, for the limits that apply to each client separately.

    Requests with the same key are those of one client. The client of a request without a known key is its address. `callers` contains the
    users' keys that were valid when they were last used, and `key` is the service's own key.
    """

    def __init__(self, key: str, callers: Container[str] = ()) -> None:
        self._credentials, self._callers = f"bearer {key}".encode(), callers

    def name(self, scope: Scope) -> str:
        return _address(scope) if (key := self.key(scope)) is None else key

    def key(self, scope: Scope) -> str | None:
        """Return the user's key, "" for the service's own key, or None if the request has no known key."""
        values: Iterable[bytes] = (value for name, value in scope["headers"] if name == b"authorization")
        for value in values:
            if hmac.compare_digest(value[:7].lower() + value[7:], self._credentials):
                return ""
            if (given := value[7:].decode("latin-1")) in self._callers:
                return given
        return None


class ClientSlots:
    """Counts what each client has at the same time, and limits it."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def total(self) -> int:
        """Return the number of slots that all clients have."""
        return sum(self._taken.values())

    def take(self, client: str, most: int) -> bool:
        """Take a slot. Return False if the client has `most` slots already."""
        taken = self._taken.get(client, 0)
        if taken >= most:
            return False
        self._taken[client] = taken + 1
        return True

    def release(self, client: str) -> None:
        self._taken[client] -= 1
        if self._taken[client] == 0:
            del self._taken[client]


class RateLimit:
    """ASGI middleware that answers 429 to clients that send too many requests. Each client has a token bucket."""

    def __init__(
        self, app: ASGIApp, *, clients: Clients, rate: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._app, self._clients, self._rate, self._buckets = app, clients, rate, Buckets(rate, now)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        wait_s = self._buckets.take(self._clients.name(scope))
        if wait_s == 0:
            await self._app(scope, receive, send)
            return
        seconds = math.ceil(wait_s)
        detail = (
            f"at most {self._rate} requests a second are answered (TUNER_RATE_LIMIT): retry in {seconds} s"
        )
        await _later(429, "Too many requests", detail, seconds)(scope, receive, send)


class ConcurrencyLimit:
    """ASGI middleware that limits how many requests wait for an answer, and how many bodies arrive at the same time.

    - 503: `MOST_WAITING` answers have not begun. Without a limit, requests would wait longer and longer under overload, until clients give up
      before their answer.
    - 429: `MOST_ARRIVING_OF_CLIENT` bodies of the client are arriving.
    - 503: `MOST_ARRIVING` bodies of all clients with a known key are arriving, or as many of all clients without one. A body arrives before its
      key is checked, so with one limit for both, clients without a key could make the service refuse the bodies of all others.

    A request does not wait for its answer while the service waits for its body. Otherwise a client that sends headers without the bodies could
    make the service refuse all requests.
    """

    def __init__(self, app: ASGIApp, *, clients: Clients) -> None:
        self._app, self._clients = app, clients
        self._waiting = set[object]()
        self._arriving_with_key, self._arriving_without_key = ClientSlots(), ClientSlots()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
        elif len(self._waiting) >= MOST_WAITING:
            await _later(503, "Too busy", _busy(), BUSY_S)(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        this, client = object(), self._clients.name(scope)
        has_key = self._clients.key(scope) is not None
        arriving = self._arriving_with_key if has_key else self._arriving_without_key
        is_complete, has_begun = not _has_body(scope), False

        async def receive_body() -> Message:
            """Receive a part of the body. If the request is refused, raise HTTPException, which FastAPI turns into an answer."""
            nonlocal is_complete
            if is_complete:
                return await receive()
            _take_slot(arriving, client)
            self._waiting.discard(this)
            try:
                message = await receive()
            finally:
                arriving.release(client)
                is_full = len(self._waiting) >= MOST_WAITING
                if not has_begun:
                    self._waiting.add(this)
            is_complete = not message.get("more_body", False)
            if is_complete and is_full and not has_begun:
                raise _refused(503, _busy())
            return message

        async def forward(message: Message) -> None:
            # Once its answer has begun, a request does not count. A stream may last for hours.
            nonlocal has_begun
            has_begun = True
            self._waiting.discard(this)
            await send(message)

        self._waiting.add(this)
        try:
            await self._app(scope, receive_body, forward)
        finally:
            self._waiting.discard(this)


def _take_slot(arriving: ClientSlots, client: str) -> None:
    """Take one of the slots for arriving bodies. Raise HTTPException if none is free."""
    if arriving.total() >= MOST_ARRIVING:
        raise _refused(503, f"{MOST_ARRIVING} requests have incomplete bodies: retry in {BUSY_S} s")
    if not arriving.take(client, MOST_ARRIVING_OF_CLIENT):
        detail = (
            f"{MOST_ARRIVING_OF_CLIENT} requests of this client have incomplete bodies: retry in {BUSY_S} s"
        )
        raise _refused(429, detail)


class LimitedStream(StreamingResponse):
    """A stream that may stay open for hours. `streams` counts the open streams of each client.

    - 429: the client has `MOST_STREAMS_OF_CLIENT` streams.
    - 503: all clients together have `MOST_STREAMS` streams.
    """

    def __init__(
        self, content: AsyncIterator[bytes], *, streams: ClientSlots, client: str, **more: Any
    ) -> None:
        super().__init__(content, **more)
        self._streams, self._client = streams, client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams.total() >= MOST_STREAMS:
            detail = f"{MOST_STREAMS} streams are already open: retry in {BUSY_S} s"
            await _later(503, "Too busy", detail, BUSY_S)(scope, receive, send)
        elif not self._streams.take(self._client, MOST_STREAMS_OF_CLIENT):
            detail = f"{MOST_STREAMS_OF_CLIENT} streams of this client are already open: close one, or retry in {BUSY_S} s"
            await _later(429, "Too many requests", detail, BUSY_S)(scope, receive, send)
        else:
            try:
                await super().__call__(scope, receive, send)
            finally:
                self._streams.release(self._client)


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _busy() -> str:
    return f"{MOST_WAITING} requests are already waiting for their answers: retry in {BUSY_S} s"


def _refused(status: int, detail: str) -> HTTPException:
    return HTTPException(status, detail, headers={"Retry-After": str(BUSY_S)})


def _later(status: int, title: str, detail: str, seconds: int) -> Response:
    response = answer(status, title, detail)
    response.headers["Retry-After"] = str(seconds)
    return response


def _address(scope: Scope) -> str:
    """Return the client's address. For IPv6, return the /64 network, because one client can usually use all addresses in it."""
    host = str((scope.get("client") or ("unknown",))[0])
    return ":".join(host.split(":")[:4]) if host.count(":") > 3 else host
