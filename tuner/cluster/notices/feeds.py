"""Sources of notices: the port of a feed, requests to a metadata service, and the thread that follows a feed."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

import httpx2

from tuner.cluster.notices.notice import Answer, MalformedNotice, Notice, changes
from tuner.domain.time import Instant


@dataclass(frozen=True, slots=True)
class Look:
    """The answer of one source: all its current notices for this machine."""

    notices: tuple[Notice, ...]
    doubt: str = ""  #: Why some notices may be missing, or an empty text. If it is set, missing notices do not count as withdrawn.


class Feed(ABC):
    """One source of notices. One task uses it, with one request at a time."""

    name: str
    pause_s: float
    """Seconds between two calls of `look`."""

    @abstractmethod
    async def look(self, *, wait: bool) -> Look:
        """Return the current notices. May raise any exception.

        Args:
            wait: Whether the call may wait until the notices change, if the source supports that.
        """

    async def release(self, notice_id: str) -> bool:
        """Tell the source that the remaining time is not needed. Return False if it does not support that. May raise any exception."""
        return False


def wall_clock() -> Instant:
    return Instant(time.time_ns())


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


# Limit of the doublings. With more, the number would finally exceed the range of a float.
DOUBLINGS_MAX = 16
TROUBLE_MAX = 300
Call = Callable[[Notice], Awaitable[bool]]
log = logging.getLogger("tuner.notices")


def backoff_s(failures: int, random: Random, *, first_s: float, most_s: float) -> float:
    """Return the seconds to wait after this many failures in a row.

    The time is random, so that machines that failed together do not retry together.
    """
    doubled = first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX)
    return random.uniform(0.5, 1.0) * min(doubled, most_s)


class Follower:
    """Pass on the new and withdrawn notices of one feed.

    `notify` and `retract` pass on one notice and return whether that worked. `trouble` says why the feed's
    last answer was incomplete, or is empty.
    """

    def __init__(
        self,
        feed: Feed,
        notify: Call,
        retract: Call,
        *,
        backoff_s: Callable[[int], float],
    ) -> None:
        self.feed, self.trouble = feed, ""
        self._notify, self._retract, self._backoff_s = notify, retract, backoff_s
        self._told: dict[str, Notice] = {}
        self._failures, self._may_wait = 0, False

    async def follow(self) -> None:
        """Read the feed and pass its changes on until cancelled."""
        while True:
            well = await self._turn()
            # After a failure, do not wait for a change: the notice that could not be passed on has already been seen.
            self._may_wait, self._failures = well, 0 if well else self._failures + 1
            await asyncio.sleep(self.feed.pause_s if well else self._backoff_s(self._failures))

    async def _turn(self) -> bool:
        try:
            look = await self.feed.look(wait=self._may_wait)
        except Exception as error:  # the loop continues after any error of a metadata service
            self._note(
                f"{type(error).__name__}: {error}"[:TROUBLE_MAX] if str(error) else type(error).__name__
            )
            return False
        self._note(look.doubt)
        return await self._pass_on(look)

    async def _pass_on(self, look: Look) -> bool:
        # Pass on new notices first, so that a machine whose notice is replaced never appears to have none.
        new, gone = changes(self._told, look.notices)
        well = True
        for notice in new:
            if await self._notify(notice):
                self._told[notice.id] = notice
            else:
                well = False
        for notice in () if look.doubt else gone:
            if await self._retract(notice):
                del self._told[notice.id]
            else:
                well = False
        return well

    def _note(self, trouble: str) -> None:
        """Store the problem with the last answer.

        Log only when it begins and ends, so that a long outage writes two lines.
        """
        if trouble and not self.trouble:
            log.warning("%s: %s; retrying", self.feed.name, trouble)
        elif self.trouble and not trouble:
            log.info("%s: answers again", self.feed.name)
        self.trouble = trouble
