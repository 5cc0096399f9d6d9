"""The Python client: what REST offers, with types, as `Client` and, to be awaited, as `AsyncClient`.

from tuner import Client

client = Client()                      # TUNER_URL, and the key from TUNER_API_KEY or $TUNER_HOME/api_key
job = client.submit({"name": "digits", ...})
job.wait()
print(job.best(max_cost_usd=0.01))
"""

from collections.abc import Callable
from typing import Self

import httpx2

from tuner.client.calls import Calls
from tuner.client.follow import ENDED as ENDED
from tuner.client.follow import Event as Event
from tuner.client.http import TRIES as TRIES
from tuner.client.http import ApiError as ApiError
from tuner.client.http import address, silent
from tuner.client.job import AsyncJob as AsyncJob
from tuner.client.job import Job as Job
from tuner.client.steps import Awaiting, Blocking
from tuner.schemas.job import Job as JobAnswer


class Client(Calls, Blocking):
    """May be shared between threads. Everything raises ApiError. `project`: of the operator, who is in several; TUNER_PROJECT where it is
    not given."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        project: str | None = None,
        timeout_s: float = 90.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        there = address(url, api_key, project)
        self.url = there.url
        try:
            self._http = httpx2.Client(
                base_url=there.url, headers=there.headers, timeout=timeout_s, transport=transport
            )
        except httpx2.InvalidURL as error:
            raise silent(there.url, error) from error

    def on_request(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Call `begin` when a request is sent, and `end` when the headers of its answer are there."""
        self._http.event_hooks = {"request": [lambda _: begin()], "response": [lambda _: end()]}

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _acting(self, job: JobAnswer) -> Job:
        return Job.of(job, self)


class AsyncClient(Calls, Awaiting):
    """The same to be awaited, in one event loop. Everything raises ApiError."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        project: str | None = None,
        timeout_s: float = 90.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        there = address(url, api_key, project)
        self.url = there.url
        try:
            self._http = httpx2.AsyncClient(
                base_url=there.url, headers=there.headers, timeout=timeout_s, transport=transport
            )
        except httpx2.InvalidURL as error:
            raise silent(there.url, error) from error

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _acting(self, job: JobAnswer) -> AsyncJob:
        return AsyncJob.of(job, self)
