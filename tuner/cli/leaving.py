"""How `tuner serve` ends: not ready any more, then deaf, then, with all answers given, over."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from tuner.cli.patience import PatientProtocol

ANSWER_S = 10
# Whoever asks now and then does so on the same connection, and not just as it is closed.
KEEP_ALIVE_S = 20


class LeavingServer(uvicorn.Server):
    """`leaving` is set by the first SIGTERM or SIGINT. After a SIGTERM it listens on for `drain_s`, so that whoever sends requests here
    has seen that it is not ready; a second signal ends that. Streams are ended by `end_streams`, and other answers finished, for
    `ANSWER_S`; then `run` returns, with the signal handled."""

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
        """Uvicorn's own raises the signal anew at its end, of which the process would die with its threads at work."""
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
