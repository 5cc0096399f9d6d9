"""The watcher of one machine. It follows all sources of notices and passes on new and withdrawn notices."""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

from tuner.cluster.notices.clouds import Sources, feeds
from tuner.cluster.notices.feeds import Feed, Follower, backoff_s, metadata_client
from tuner.cluster.notices.notice import Notice
from tuner.cluster.notices.operator import Announcements

PATIENCE_S = 10.0
log = logging.getLogger("tuner.notices")


class Watcher:
    """Watch the notices for this machine and call two functions about them.

    `on_notice` is called once for each new notice, and again if its deadline moves to an earlier time. `on_withdrawn` is called once
    for each notice that was withdrawn. A source that stops answering has withdrawn nothing. The watcher calls both functions in its own
    threads, one at a time, and they may take seconds. If a function raises, it is called again later.

    The watcher runs in its own thread from `start` to `close`, or in the caller's event loop with `run`. Errors of a metadata service
    are never raised to the caller.
    """

    def __init__(
        self,
        on_notice: Callable[[Notice], None],
        on_withdrawn: Callable[[Notice], None],
        sources: Sources | None = None,
    ) -> None:
        self._on_notice, self._on_withdrawn = on_notice, on_withdrawn
        self._sources = sources or Sources()
        self._announcements = Announcements()
        self._followers: list[Follower] = []
        self._calling = asyncio.Lock()
        self._random = Random()
        self._thread: threading.Thread | None = None
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run_alone, name="notices", daemon=True)
        self._thread.start()
        self._up.wait(PATIENCE_S)

    def close(self) -> None:
        """Stop the watcher's thread and wait up to `PATIENCE_S` for a call in progress. Must not be called from `on_notice` or
        `on_withdrawn`.
        """
        if self._thread is None or self._loop is None or self._task is None:
            return
        with suppress(RuntimeError):  # the event loop has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(PATIENCE_S)

    async def run(self) -> None:
        """Watch in the caller's event loop until cancelled."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._up.set()
        async with metadata_client() as http, asyncio.TaskGroup() as tasks:
            # Pass on announced notices while the cloud is still being detected.
            tasks.create_task(self._follower(self._announcements).follow())
            for feed in await feeds(http, self._sources):
                tasks.create_task(self._follower(feed).follow())

    def announce(self, notice: Notice) -> None:
        """Add a notice that does not come from a cloud, such as one of an operator or a signal.

        May be called at any time, from any thread and from signal handlers.
        """
        self._announcements.announce(notice)

    def withdraw(self, notice_id: str) -> None:
        """Withdraw an announced notice. May be called at any time, from any thread and from signal handlers."""
        self._announcements.withdraw(notice_id)

    def release(self, notice: Notice) -> bool:
        """Tell the cloud to take the machine before the deadline, so that the rest of the time is not billed.

        Call this after the last checkpoint. It blocks for up to `PATIENCE_S` and must not be called from the event loop of `run`.

        Returns:
            Whether the cloud accepted. False if it does not support this, if other machines would be taken as well, or if it does
            not answer.
        """
        if self._loop is None:
            return False
        word = self._release(notice)
        try:
            answer = asyncio.run_coroutine_threadsafe(word, self._loop)
        except RuntimeError:  # the watcher has ended
            word.close()
            return False
        try:
            return answer.result(PATIENCE_S)
        except (TimeoutError, concurrent.futures.CancelledError):
            answer.cancel()
            return False

    @property
    def state(self) -> Mapping[str, str]:
        """The problem with each feed's last answer, by the feed's name. An empty text means no problem."""
        return {follower.feed.name: follower.trouble for follower in tuple(self._followers)}

    def _run_alone(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self.run())

    def _follower(self, feed: Feed) -> Follower:
        found = Follower(feed, self._notify, self._retract, backoff_s=self._backoff_s)
        self._followers.append(found)
        return found

    def _backoff_s(self, failures: int) -> float:
        first_s, most_s = self._sources.backoff_s, self._sources.backoff_max_s
        return backoff_s(failures, self._random, first_s=first_s, most_s=most_s)

    async def _notify(self, notice: Notice) -> bool:
        log.warning("notice %s: %s", notice.id, notice.text)
        return await self._call(self._on_notice, notice)

    async def _retract(self, notice: Notice) -> bool:
        log.warning("notice %s was withdrawn", notice.id)
        return await self._call(self._on_withdrawn, notice)

    async def _call(self, listener: Callable[[Notice], None], notice: Notice) -> bool:
        async with self._calling:
            try:
                await asyncio.to_thread(listener, notice)
            except Exception:
                log.exception("notice %s could not be passed on; it will be tried again", notice.id)
                return False
            return True

    async def _release(self, notice: Notice) -> bool:
        for follower in self._followers:
            try:
                if await follower.feed.release(notice.id):
                    return True
            except Exception as error:  # no answer, or an unreadable one
                log.warning("notice %s could not be released: %s", notice.id, error or type(error).__name__)
        return False
