"""One for each machine: looks everywhere, for as long as it lives, and passes on what is new and what was withdrawn."""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random

from tuner.engine.notices.asking import metadata_client
from tuner.engine.notices.clouds import Sources, feeds
from tuner.engine.notices.feed import Feed
from tuner.engine.notices.following import Follower, backoff_s
from tuner.engine.notices.notice import Notice
from tuner.engine.notices.within import Announcements

PATIENCE_S = 10.0
log = logging.getLogger("tuner.notices")


class Watcher:
    """`on_notice` is called once for each new notice for this machine, and again where its deadline was brought forward;
    `on_withdrawn` once for each that no longer stands. Both are called in threads of the watcher's, one at a time, and may take
    seconds; where one raises, it is called again after a while. A source that falls silent has withdrawn nothing.

    Runs in a thread of its own from `start` to `close`, or in the caller's event loop by `run`. Nothing that a metadata
    service does is raised out of it.
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
        """Waits for a call that is under way, so it must not be made in one."""
        if self._thread is None or self._loop is None or self._task is None:
            return
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(PATIENCE_S)

    async def run(self) -> None:
        """Until it is cancelled."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._up.set()
        async with metadata_client() as http, asyncio.TaskGroup() as tasks:
            # What is announced is passed on while it is still being found out which cloud this is.
            tasks.create_task(self._follower(self._announcements).follow())
            for feed in await feeds(http, self._sources):
                tasks.create_task(self._follower(feed).follow())

    def announce(self, notice: Notice) -> None:
        """As if a cloud had said so: an operator's word, a signal. At any time, from any thread and from handlers of signals."""
        self._announcements.announce(notice)

    def withdraw(self, notice_id: str) -> None:
        """Of a notice that was announced; from everywhere, too."""
        self._announcements.withdraw(notice_id)

    def release(self, notice: Notice) -> bool:
        """Tells the cloud, after the last checkpoint, that it need not wait for the deadline, so that the rest of the time is
        not paid for. False where it takes no such word, where other machines would go as well, or where it does not answer.
        Blocks; not from the event loop that `run` is in."""
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
        """What is watched, by name, and what was wrong with its last answer, or ""."""
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
            except Exception as error:  # no answer, or none that can be read
                log.warning("notice %s could not be released: %s", notice.id, error or type(error).__name__)
        return False
