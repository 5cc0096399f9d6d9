"""Calls are coroutines: the blocking client completes them without an event loop, and the async client can cancel them."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from tuner.client import AsyncClient, AsyncJob, Client, Job
from tuner.client.bridge import run


class Stream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A stream with one event that never ends by itself."""

    is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield b'event: report\ndata: {"step": 1}\n\n'

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'event: report\ndata: {"step": 1}\n\n'
        await asyncio.Event().wait()

    def close(self) -> None:
        self.is_closed = True

    async def aclose(self) -> None:
        self.is_closed = True


def transport_of(stream: Stream) -> httpx2.MockTransport:
    return httpx2.MockTransport(lambda _: httpx2.Response(200, stream=stream))


def test_abandoned_series_closes_its_stream_even_inside_an_event_loop() -> None:
    async def notebook() -> bool:
        stream = Stream()
        with Client("http://tuner", "key", transport=transport_of(stream)) as client:
            events = client.events("job_1")
            assert next(events).data == {"step": 1}
            del events
        return stream.is_closed

    assert asyncio.run(notebook())


def test_cancelled_task_closes_its_stream() -> None:
    async def follow(stream: Stream, arrived: asyncio.Event) -> None:
        async with AsyncClient("http://tuner", "key", transport=transport_of(stream)) as client:
            async for _ in client.events("job_1"):
                arrived.set()

    async def main() -> bool:
        stream, arrived = Stream(), asyncio.Event()
        task = asyncio.create_task(follow(stream, arrived))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream.is_closed

    assert asyncio.run(main())


def test_call_that_would_suspend_is_refused_instead_of_left_unfinished() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        run(asyncio.sleep(0))


def test_methods_have_signatures_and_docstrings() -> None:
    submit: Any = Client.submit
    curves: Any = Job.curves
    assert "idempotency_key" in inspect.signature(submit).parameters
    assert not inspect.iscoroutinefunction(submit)
    assert inspect.iscoroutinefunction(AsyncClient.submit)
    assert list(inspect.signature(curves).parameters) == ["self", "metric"]
    assert inspect.iscoroutinefunction(AsyncJob.curves)
    assert "learning curves" in str(Job.curves.__doc__)
    assert "job:" not in str(Job.curves.__doc__)
