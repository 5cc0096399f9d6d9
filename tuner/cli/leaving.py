"""How `tuner serve` ends: not ready any more, then deaf, then, with all answers given, over."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

ANSWER_S = 10


class LeavingServer(uvicorn.Server):
    """`app.state.leaving` is set by the first SIGTERM or SIGINT. After a SIGTERM it listens on for `drain_s`, so that whoever sends
    requests here has seen that it is not ready; a second signal ends that. Streams are ended, and other answers finished, for
    `ANSWER_S`; then `run` returns, with the signal handled."""

    def __init__(self, app: FastAPI, *, drain_s: float) -> None:
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=ANSWER_S, server_header=False
        )
        super().__init__(config)
        self._state, self._drain_s = app.state, drain_s
        self._leaves_at = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        leaving: threading.Event = self._state.leaving
        if leaving.is_set():
            self.force_exit = self.should_exit
            self.should_exit = True
            return
        leaving.set()
        self._leaves_at = time.monotonic() + (self._drain_s if sig == signal.SIGTERM else 0)

    async def on_tick(self, counter: int) -> bool:
        leaving: threading.Event = self._state.leaving
        if leaving.is_set() and time.monotonic() >= self._leaves_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.hub.end()
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
