"""Send one request to a metadata service, with limits on time and size and without proxies."""

import asyncio
from collections.abc import Mapping

import httpx2

from tuner.engine.notices.notice import MalformedNotice
from tuner.engine.notices.reading import Answer

BYTES_MAX = 256 * 1024
CONNECT_S = 2.0


def metadata_client() -> httpx2.AsyncClient:
    """Return an HTTP client for metadata services.

    It uses no proxy and follows no redirect, because both could lead away from this machine's own metadata. It keeps no connections,
    because a connection that broke during a live migration would only be noticed by a timeout.
    """
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
    """Send a request and return the complete answer, with any status.

    Raises:
        MalformedNotice: The answer is larger than `BYTES_MAX`.
        TimeoutError, httpx2.HTTPError: There was no complete answer.
    """
    limits = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
    found = bytearray()
    # The client's timeouts apply to each part of an answer. An answer that comes byte by byte would never exceed them.
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
