"""A test client that answers most requests in the thread of the test, without a server's event loop and threads.

Starlette's client creates a loop and threads for each request, which takes longer than most answers. Switching to them several
times takes as long as the answer itself, even if they are kept.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import anyio.to_thread
import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from tests.api.direct import Direct

_real_run_sync = anyio.to_thread.run_sync


class OneLoopClient(TestClient):
    """A TestClient without a loop of its own. As with any TestClient, the app's lifespan runs only if the client
    is used as a context manager.
    """

    def __init__(self, app: ASGIApp, *, raise_server_exceptions: bool = True, **more: Any) -> None:
        super().__init__(app, raise_server_exceptions=raise_server_exceptions, **more)
        self.portal = _loop(os.getpid()).portal
        self._transport = _InThisThread(app, self._transport, raises=raise_server_exceptions)


class _InThisThread(httpx2.BaseTransport):
    """Answer requests of the API in this thread. Streams of events, other paths, and requests of other threads or from inside of an
    event loop go to Starlette's transport, with an event loop that all tests share, as on a real server.
    """

    def __init__(self, app: ASGIApp, others: httpx2.BaseTransport, *, raises: bool) -> None:
        self._app, self._others, self._raises = app, others, raises

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        is_main = threading.current_thread() is threading.main_thread()
        if not path.startswith("/v1/") or path.endswith("/events") or not is_main or _is_in_a_loop():
            return self._others.handle_request(request)
        answer = _direct(os.getpid())(self._app).send(
            request.method,
            request.url.raw_path.decode(),
            request.headers.multi_items(),
            request.read(),
            raises=self._raises,
        )
        content = b"" if request.method == "HEAD" else answer.content
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=httpx2.ByteStream(content), request=request
        )

    def close(self) -> None:
        self._others.close()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@cache
def _direct(process: int) -> Callable[[ASGIApp], Direct]:
    """Return a function that sends to an app on the loop of this process. Work for a thread is done at once on this loop."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)

    async def run_sync(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if asyncio.get_running_loop() is loop:
            return work(*args)
        return await _real_run_sync(work, *args, **options)

    anyio.to_thread.run_sync = run_sync
    return lambda app: Direct(app, loop)


class _Loop:
    """An event loop in a thread that ends with the process."""

    def __init__(self) -> None:
        # Keep a reference: if the context manager were collected, it would stop the loop.
        self._begun: AbstractContextManager[BlockingPortal] = start_blocking_portal()
        self._process = os.getpid()
        self.portal = self._begun.__enter__()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._process:
            self.portal.call(self.portal.stop, True)


@cache
def _loop(process: int) -> _Loop:
    """Return the loop of this process. A forked process does not inherit the threads of its parent, so it needs
    its own loop.
    """
    return _Loop()
