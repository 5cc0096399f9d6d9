"""The HTTP server of `tuner serve`, which shuts down in steps.

It first reports that it is not ready, then stops listening, then finishes open responses, and then returns.
"""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from tuner.cli.client_timeout import PatientProtocol

ANSWER_S = 10  # How long open responses may take after the server has stopped listening.
# How long an idle connection stays open. A client that polls every few seconds then reuses its connection. With a shorter limit, a request
# would sometimes be sent just as the connection is closed, and fail.
KEEP_ALIVE_S = 20


class LeavingServer(uvicorn.Server):
    """An HTTP server that shuts down in steps.

    1. The first SIGTERM or SIGINT sets `leaving`. After a SIGTERM the server listens for another `drain_s` seconds, so that load
       balancers notice that it is not ready. Another signal skips this wait. A signal after the wait forces the exit.
    2. `end_streams` ends the event streams. Other responses get `ANSWER_S` seconds to finish.
    3. `run` returns. The signal is not raised again, see `capture_signals`.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        *,
        leaving: threading.Event,
        end_streams: Callable[[], None],
        drain_s: float,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            loop="uvloop",
            timeout_keep_alive=KEEP_ALIVE_S,
            ws="none",
            log_level="warning",
            timeout_graceful_shutdown=ANSWER_S,
            server_header=False,
        )
        super().__init__(config)
        self._leaving, self._end_streams, self._drain_s = leaving, end_streams, drain_s
        self._leaves_at = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._leaving.is_set():
            self.force_exit = self.should_exit
            self.should_exit = True
            return
        self._leaving.set()
        self._leaves_at = time.monotonic() + (self._drain_s if sig == signal.SIGTERM else 0)

    async def on_tick(self, counter: int) -> bool:
        if self._leaving.is_set() and time.monotonic() >= self._leaves_at:
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
