"""Notices that are announced within this process, by an operator or a signal."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType

from tuner.cluster.notices.feeds import Feed, Look, wall_clock
from tuner.cluster.notices.notice import Notice
from tuner.domain.time import Instant, seconds_ns

# Kubernetes' default time between SIGTERM and SIGKILL of a pod.
POD_GRACE_S = 30.0


class Announcements(Feed):
    """Hold the notices that were announced and not withdrawn.

    `announce` and `withdraw` may be called at any time, from any thread and from signal handlers.
    """

    def __init__(self) -> None:
        self.name, self.pause_s = "announcements", 0.0
        # Unlike a lock, `SimpleQueue.put` is reentrant, so a signal handler may call it.
        self._said: SimpleQueue[tuple[str, Notice | None]] = SimpleQueue()
        self._standing: dict[str, Notice] = {}
        self._looker: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def announce(self, notice: Notice) -> None:
        self._say(notice.id, notice)

    def withdraw(self, notice_id: str) -> None:
        self._say(notice_id, None)

    async def look(self, *, wait: bool) -> Look:
        loop = asyncio.get_running_loop()
        if self._looker is None or self._looker[0] is not loop:
            self._looker = (loop, asyncio.Event())
            wait = False  # earlier announcements could not set the event
        changed = self._looker[1]
        if wait:
            await changed.wait()
        changed.clear()
        with suppress(Empty):
            while True:
                notice_id, notice = self._said.get_nowait()
                if notice is None:
                    self._standing.pop(notice_id, None)
                else:
                    self._standing[notice_id] = notice
        return Look(tuple(self._standing.values()))

    def _say(self, notice_id: str, notice: Notice | None) -> None:
        self._said.put((notice_id, notice))
        if self._looker is not None:
            loop, changed = self._looker
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(changed.set)


@contextmanager
def sigterm_announced(
    announce: Callable[[Notice], None],
    *,
    grace_s: float = POD_GRACE_S,
    now: Callable[[], Instant] = wall_clock,
) -> Iterator[None]:
    """Announce SIGTERM as a notice instead of ending the process, until the context ends.

    The receiver of the notice must end the process within `grace_s` seconds. Use this in the main thread only. The previous signal
    handler is restored afterwards.
    """

    def announced(signum: int, frame: FrameType | None) -> None:
        deadline = Instant(now() + seconds_ns(grace_s))
        text = f"this process is asked to end, and killed in some {grace_s:g} s"
        announce(Notice("signal", "terminate", "signal/SIGTERM", deadline, text))

    before = signal.signal(signal.SIGTERM, announced)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
