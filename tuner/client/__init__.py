"""The Python client: a typed method for each call of the REST API. The methods of `Client` block, and those of `AsyncClient` are awaited.

from tuner import Client

client = Client()                      # TUNER_URL, and the key from TUNER_API_KEY or $TUNER_HOME/api_key
job = client.submit({"name": "digits", ...})
job.wait()
print(job.best(max_cost_usd=0.01))
"""

from collections.abc import Callable
from typing import Self

import httpx2

from tuner.client.bridge import Awaiting, Blocking, run
from tuner.client.calls import Calls
from tuner.client.follow import Event as Event
from tuner.client.http import TRIES as TRIES
from tuner.client.http import ApiError as ApiError
from tuner.client.http import AsyncHttp, BlockingHttp, address, direct, unreachable
from tuner.client.job import AsyncJob as AsyncJob
from tuner.client.job import Job as Job
from tuner.client.trial import AsyncTrial as AsyncTrial
from tuner.client.trial import Trial as Trial
from tuner.schemas.answers import TrialDetail
from tuner.schemas.job import Job as JobAnswer


class Client(Calls, Blocking):
    """Client of the service. It may be shared between threads. All methods raise ApiError if the service refuses or does not answer.

    Args:
        url: The service. None means TUNER_URL.
        api_key: The API key. None means TUNER_API_KEY, or the content of $TUNER_HOME/api_key.
        project: The project to work in. Only the operator needs to name it, because the key of any other user belongs to one project. None
            means TUNER_PROJECT.
        timeout_s: The time limit for each response in seconds.
        transport: The HTTP transport, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        project: str | None = None,
        timeout_s: float = 90.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.url, headers = address(url, api_key, project)
        try:
            self._sync = httpx2.Client(
                base_url=self.url,
                headers=headers,
                timeout=timeout_s,
                transport=transport,
                mounts=direct(self.url),
            )
        except httpx2.InvalidURL as error:
            raise unreachable(self.url, error) from error
        self._http = BlockingHttp(self.url, self._sync)

    def on_request(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Register two callbacks: `begin` is called when a request is sent, and `end` when the headers of its response arrive."""
        self._sync.event_hooks = {"request": [lambda _: begin()], "response": [lambda _: end()]}

    def close(self) -> None:
        run(self._http.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _job_of(self, answer: JobAnswer) -> Job:
        return Job.of(answer, self)

    def _trial_of(self, answer: TrialDetail, job: str) -> Trial:
        return Trial.of(answer, self, job)


class AsyncClient(Calls, Awaiting):
    """Client of the service whose methods are awaited. It belongs to one event loop.

    All methods raise ApiError if the service refuses the request or does not answer.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        project: str | None = None,
        timeout_s: float = 90.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url, headers = address(url, api_key, project)
        try:
            http = httpx2.AsyncClient(
                base_url=self.url,
                headers=headers,
                timeout=timeout_s,
                transport=transport,
                mounts=direct(self.url),
            )
        except httpx2.InvalidURL as error:
            raise unreachable(self.url, error) from error
        self._http = AsyncHttp(self.url, http)

    async def close(self) -> None:
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _job_of(self, answer: JobAnswer) -> AsyncJob:
        return AsyncJob.of(answer, self)

    def _trial_of(self, answer: TrialDetail, job: str) -> AsyncTrial:
        return AsyncTrial.of(answer, self, job)
