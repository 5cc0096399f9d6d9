"""Requests of tests are answered on one event loop, as a server's are. Starlette's client else makes one for each, and threads for it:
that takes longer than most answers."""

import atexit
import os
from contextlib import AbstractContextManager
from functools import cache

from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.testclient import TestClient


class OneLoopClient(TestClient):
    """Its app is not told that it starts and ends, unless it is entered, as with any other."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.portal = _loop(os.getpid()).portal


class _Loop:
    """In a thread that ends with the process."""

    def __init__(self) -> None:
        # Kept, since it ends what it began when nobody holds it any more.
        self._begun: AbstractContextManager[BlockingPortal] = start_blocking_portal()
        self._process = os.getpid()
        self.portal = self._begun.__enter__()
        atexit.register(self._end)

    def _end(self) -> None:
        if os.getpid() == self._process:
            self.portal.call(self.portal.stop, True)


@cache
def _loop(process: int) -> _Loop:
    """Threads of a process are not those of what is forked from it."""
    return _Loop()
