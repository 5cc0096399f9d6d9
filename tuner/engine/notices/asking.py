"""One question to a metadata service: bounded in time and size, straight to its address."""

import asyncio
from collections.abc import Mapping

import httpx2

from tuner.engine.notices.notice import MalformedNotice
from tuner.engine.notices.reading import Answer

BYTES_MAX = 256 * 1024
CONNECT_S = 2.0


def metadata_client() -> httpx2.AsyncClient:
    """Through no proxy and after no redirect: both would lead away from this machine's own metadata. No connection is kept,
    as one that broke while the machine was moved is found out only by waiting."""
    return httpx2.AsyncClient(
        trust_env=False,
        follow_redirects=False,
        limits=httpx2.Limits(max_keepalive_connections=0),
        headers={"accept-encoding": "identity", "user-agent": "tuner"},
    )


async def ask(
    http: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    params: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
) -> Answer:
    """Any answer that is whole. Raises MalformedNotice for one that is too large, TimeoutError or httpx2.HTTPError for none."""
    limits = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
    found = bytearray()
    # The client's limits are for each part of an answer; one that comes byte by byte would keep to them for ever.
    async with (
        asyncio.timeout(timeout_s),
        http.stream(method, url, headers=headers, params=params, json=body, timeout=limits) as answer,
    ):
        async for part in answer.aiter_raw():
            found += part
            if len(found) > BYTES_MAX:
                raise MalformedNotice(f"the answer is larger than {BYTES_MAX} bytes")
        lower = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status_code, lower, bytes(found))
