"""A test client whose requests all run on one event loop, as on a real server.

Starlette's client creates a loop and threads for each request, which takes longer than most answers.
"""

import atexit
import os
from contextlib import AbstractContextManager
from functools import cache

from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.testclient import TestClient


class OneLoopClient(TestClient):
    """A TestClient on the shared event loop. As with any TestClient, the app's lifespan runs only if the client
    is used as a context manager.
    """

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.portal = _loop(os.getpid()).portal


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
