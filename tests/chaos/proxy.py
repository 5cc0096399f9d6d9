"""A TCP proxy that can harm the connections that pass through it.

    client ──▶ Proxy ──▶ upstream        harm: cut · refuse · delay · half_open · cut_after · corrupt

It runs one asyncio loop in a thread of its own. `harm` and `heal` may be called from any thread.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

Harm = Literal["none", "cut", "refuse", "delay", "half_open", "cut_after", "corrupt"]
HARMS: tuple[Harm, ...] = ("cut", "refuse", "delay", "half_open", "cut_after", "corrupt")
READ_BYTES = 65536
NO_LINGER = struct.pack("ii", 1, 0)  # a reset instead of an orderly end


@dataclass(eq=False)
class _Link:
    """The two ends of a connection."""

    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    muted: bool = False
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def reset(self) -> None:
        for end in self.ends:
            with suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            end.transport.abort()


class Proxy:
    """A proxy to `upstream_port`.

    `position` returns the index of the byte to corrupt in a piece of the given length. For PostgreSQL it must
    be the first byte, the type of a message, so that the error is noticed; the protocol has no checksums for
    the rest.
    """

    def __init__(self, upstream_port: int, *, position: Callable[[int], int] = lambda _: 0) -> None:
        self.upstream_port, self._position = upstream_port, position
        self._harm: Harm = "none"
        self._delay_s, self._bytes_left = 0.0, 0
        self._links: set[_Link] = set()
        self.corrupted = 0
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    # Control, from any thread

    def harm(self, harm: Harm, *, delay_s: float = 1.0, after_bytes: int = 2000) -> None:
        """Begin a harm.

        `cut` resets all connections once. `half_open` drops the bytes of open connections, and of new ones,
        until they are healed. `cut_after` resets each connection after `after_bytes` more bytes in total.
        `corrupt` changes one byte of the next piece.
        """
        self._call(self._begin(harm, delay_s, after_bytes))

    async def _begin(self, harm: Harm, delay_s: float, after_bytes: int) -> None:
        self._harm, self._delay_s, self._bytes_left = harm, delay_s, after_bytes
        if harm in ("cut", "refuse"):
            self._reset_all()
        for link in self._links:
            link.muted = harm == "half_open"

    def heal(self) -> None:
        """End all harm. Half-open connections are reset, because bytes are missing in them."""
        self._call(self._heal())

    async def _heal(self) -> None:
        self._harm = "none"
        for link in [open_link for open_link in self._links if open_link.muted]:
            link.reset()

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for link in self._links for task in link.tasks]
        self._reset_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Forwarding, in the loop

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._harm in ("refuse", "cut_after") and (self._harm == "refuse" or self._bytes_left <= 0):
            writer.transport.abort()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link((writer, to_writer), muted=self._harm == "half_open")
        self._links.add(link)
        pumps = (self._pump(link, reader, to_writer), self._pump(link, to_reader, writer))
        link.tasks = [asyncio.ensure_future(pump) for pump in pumps]
        try:
            await asyncio.gather(*link.tasks, return_exceptions=True)
        finally:
            self._links.discard(link)
            for end in link.ends:
                end.close()

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(READ_BYTES):
                if self._harm == "delay":
                    await asyncio.sleep(self._delay_s)
                if link.muted:
                    continue
                writer.write(self._harmed(link, piece))
                await writer.drain()
            if writer.can_write_eof() and not link.muted:
                writer.write_eof()
        except OSError:
            link.reset()

    def _harmed(self, link: _Link, piece: bytes) -> bytes:
        if self._harm == "corrupt":
            self._harm = "none"
            self.corrupted += 1
            at = self._position(len(piece))
            return piece[:at] + bytes([piece[at] ^ 0x80]) + piece[at + 1 :]
        if self._harm == "cut_after":
            passing = piece[: max(self._bytes_left, 0)]
            self._bytes_left -= len(piece)
            if self._bytes_left <= 0:
                # Send the bytes that still pass before the reset.
                self._loop.call_later(0.01, link.reset)
            return passing
        return piece

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()
