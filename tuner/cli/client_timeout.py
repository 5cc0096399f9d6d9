"""An HTTP protocol for uvicorn that closes a connection if no complete request arrives in time.

Uvicorn itself waits for the rest of a request without a limit, so slow clients could occupy connections indefinitely.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

ARRIVE_S = 30.0  # How long a request may take to arrive.
READ_S = 0.1
# More than the limit of `tuner.api.limits`, so that the app can answer with its own error if headers are only slightly too long.
MOST_HEAD_BYTES = 64 << 10


class PatientProtocol(HttpToolsProtocol):
    """An HTTP protocol that closes a connection if a request does not arrive completely within `ARRIVE_S` seconds.

    It also closes a connection on which no request begins. If the headers exceed `MOST_HEAD_BYTES`, the answer is status 431.
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
        """Close an idle connection `READ_S` seconds late.

        uvloop runs timers before it reads sockets. The delay lets it read a request that arrived while the loop was busy.
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
