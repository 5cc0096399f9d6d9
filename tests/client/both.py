"""One interface for both clients, so that the same tests run on each. It awaits the calls of the async client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from tuner.client import AsyncClient, AsyncJob, AsyncTrial, Client

Both = Any  # `Client`, or a wrapper with the same methods


def both(*address: str, transport: Any, is_awaited: bool) -> Both:
    if is_awaited:
        return Awaited(AsyncClient(*address, transport=transport))
    return Client(*address, transport=transport)


class Awaited:
    """Synchronous wrapper of an `AsyncClient`, `AsyncJob` or `AsyncTrial`."""

    def __init__(self, inner: AsyncClient | AsyncJob | AsyncTrial) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute
        return lambda *args, **options: _now(attribute(*args, **options))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Awaited) and self._inner == other._inner


def _now(result: Any) -> Any:
    if isinstance(result, AsyncIterator):
        return iter([_shown(item) for item in asyncio.run(_all(result))])
    return _shown(asyncio.run(_one(result))) if asyncio.iscoroutine(result) else _shown(result)


async def _all(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def _one(answer: Any) -> Any:
    return await answer


def _shown(answer: Any) -> Any:
    return Awaited(answer) if isinstance(answer, AsyncJob | AsyncTrial) else answer


class Application(httpx2.AsyncBaseTransport):
    """Async transport on top of a synchronous one."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self._inner.handle_request(request)
        content = b"".join(answer.iter_raw())  # undecoded, because it may be compressed
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)
