"""Read one feed of notices repeatedly for as long as the watcher runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from tuner.engine.notices.feed import Feed, Look
from tuner.engine.notices.notice import Notice, changes

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
