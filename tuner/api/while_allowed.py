"""Streams that end when the caller loses access."""

import asyncio
from collections.abc import AsyncIterator, Callable

LOOK_S = 1.0


async def while_allowed(
    stream: AsyncIterator[bytes], may: Callable[[], bool], every_s: float = LOOK_S
) -> AsyncIterator[bytes]:
    """Yield the data of the stream until the stream ends or `may` returns False.

    `may` returns True while the caller has access. It is called in a thread every `every_s` seconds.
    """
    clock = asyncio.get_running_loop().time
    ahead: asyncio.Task[bytes] | None = None
    look_at = clock() + every_s
    try:
        while True:
            ahead = ahead or asyncio.create_task(_next(stream))
            done, _ = await asyncio.wait({ahead}, timeout=max(0.0, look_at - clock()))
            if clock() >= look_at:
                if not await asyncio.to_thread(may):
                    return
                look_at = clock() + every_s
            if done:
                data, ahead = ahead.result(), None
                if not data:
                    return
                yield data
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait({ahead})
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


async def _next(stream: AsyncIterator[bytes]) -> bytes:
    """Return the next data of the stream, or b"" at its end. The stream must not yield empty data itself."""
    return await anext(stream, b"")
