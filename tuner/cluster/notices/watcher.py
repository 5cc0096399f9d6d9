"""The watcher of one machine. It follows all sources of notices and passes on new and withdrawn notices."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from random import Random
from types import FrameType

from tuner.cluster.notices.clouds import Sources, feeds
from tuner.cluster.notices.feeds import Feed, metadata_client
from tuner.cluster.notices.notice import Notice, changes
from tuner.domain.time import Instant, seconds_ns, system_now

STOP_TIMEOUT_S = 10.0
# Limit of the doublings. With more, the number would finally exceed the range of a float.
DOUBLINGS_MAX = 16
ERROR_TEXT_MAX = 300
log = logging.getLogger("tuner.notices")


class Watcher:
    """Watch the notices for this machine and call two functions about them.

    `on_notice` is called once for each new notice, and again if its deadline moves to an earlier time. `on_withdrawn` is called once
    for each notice that was withdrawn. If a source stops answering, its notices do not count as withdrawn. The watcher calls both
    functions in its own threads, one at a time, and they may take seconds. If a function raises, it is called again later.

    The watcher runs from `start` to `close`. It has one thread for the notices that are added with `announce`, and one thread for each feed
    of the cloud. Errors of a metadata service are never raised to the caller.
    """

    def __init__(
        self,
        on_notice: Callable[[Notice], None],
        on_withdrawn: Callable[[Notice], None],
        sources: Sources | None = None,
    ) -> None:
        self._on_notice, self._on_withdrawn = on_notice, on_withdrawn
        self._sources = sources or Sources()
        # Unlike a lock, `SimpleQueue.put` is reentrant, so a signal handler may call it. None ends the thread.
        self._announced: SimpleQueue[Notice | None] = SimpleQueue()
        self._feeds: list[Feed] = []
        # By the feed's name, the problem with its last answer. Empty if there was none.
        self._errors: dict[str, str] = {}
        self._calling = threading.Lock()
        self._over = threading.Event()
        self._random = Random()

    def start(self) -> None:
        # Announced notices are passed on while the cloud is still being detected.
        for work in (self._pass_on_announced, self._watch_cloud):
            threading.Thread(target=work, name="notices", daemon=True).start()

    def close(self) -> None:
        """Stop the watcher and wait up to `STOP_TIMEOUT_S` for a call in progress. Must not be called from `on_notice` or `on_withdrawn`.

        A request to a metadata service may still wait for its answer, which is then ignored.
        """
        self._over.set()
        self._announced.put(None)
        if self._calling.acquire(timeout=STOP_TIMEOUT_S):
            self._calling.release()

    def announce(self, notice: Notice) -> None:
        """Add a notice that does not come from a cloud, such as one for SIGTERM (see `sigterm_announced`).

        May be called at any time, from any thread and from signal handlers.
        """
        self._announced.put(notice)

    def release(self, notice: Notice) -> bool:
        """Tell the cloud to take the machine before the deadline, so that the rest of the time is not billed.

        Call this after the last checkpoint.

        Returns:
            Whether the cloud accepted. False if it does not support this, if other machines would be taken as well, or if it does
            not answer.
        """
        for feed in [] if self._over.is_set() else self._feeds:
            try:
                if feed.release(notice.id):
                    return True
            except Exception as error:  # no answer, or an unreadable one
                log.warning(
                    "notice %s: the machine could not be released to the cloud before the deadline: %s",
                    notice.id,
                    error or type(error).__name__,
                )
        return False

    def _pass_on_announced(self) -> None:
        passed_on: dict[str, Notice] = {}
        while (notice := self._announced.get()) is not None:
            new, _ = changes(passed_on, [notice])
            failures = 0
            while new and not self._call(self._on_notice, notice):
                failures += 1
                if self._over.wait(self._backoff_s(failures)):
                    return
            if new:
                passed_on[notice.id] = notice

    def _watch_cloud(self) -> None:
        http = metadata_client()
        for feed in feeds(http, self._sources, self._over):
            self._errors[feed.name] = ""
            self._feeds.append(feed)
            threading.Thread(target=self._follow, args=(feed,), name="notices", daemon=True).start()

    def _follow(self, feed: Feed) -> None:
        """Read a feed and pass its changes on until the watcher is closed."""
        passed_on: dict[str, Notice] = {}
        well, failures = False, 0
        while not self._over.is_set():
            # After a failure, do not wait for a change: the notice that could not be passed on has already been seen.
            well = self._poll(feed, passed_on, wait=well)
            failures = 0 if well else failures + 1
            self._over.wait(feed.pause_s if well else self._backoff_s(failures))

    def _poll(self, feed: Feed, passed_on: dict[str, Notice], *, wait: bool) -> bool:
        """Read a feed once. Return whether it answered and all changes were passed on."""
        try:
            current = feed.poll(wait=wait)
        except Exception as error:  # the watch continues after any error of a metadata service
            error_text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._note(feed, error_text[:ERROR_TEXT_MAX])
            return False
        self._note(feed, current.doubt)
        # Pass on new notices first, so that a machine whose notice is replaced never appears to have none.
        new, gone = changes(passed_on, current.notices)
        well = True
        for notice in new:
            if self._call(self._on_notice, notice):
                passed_on[notice.id] = notice
            else:
                well = False
        for notice in () if current.doubt else gone:
            if self._call(self._on_withdrawn, notice):
                del passed_on[notice.id]
            else:
                well = False
        return well

    def _note(self, feed: Feed, error_text: str) -> None:
        """Store the problem with the feed's last answer, or an empty text if it has none. Log only when a problem begins and when it ends."""
        before, self._errors[feed.name] = self._errors[feed.name], error_text
        if error_text and not before and not self._over.is_set():
            log.warning("%s: %s; retrying", feed.name, error_text)
        elif before and not error_text:
            log.info("%s: answers again", feed.name)

    def _call(self, listener: Callable[[Notice], None], notice: Notice) -> bool:
        """Call `listener` with a notice. Return False if it raised an exception, or if the watcher is closed."""
        with self._calling:
            if self._over.is_set():
                return False
            withdrawn = " was withdrawn" if listener == self._on_withdrawn else ""
            log.warning("notice %s%s: %s", notice.id, withdrawn, notice.text)
            try:
                listener(notice)
            except Exception:
                log.exception("notice %s could not be passed on; retrying", notice.id)
                return False
            return True

    def _backoff_s(self, failures: int) -> float:
        first_s, most_s = self._sources.backoff_s, self._sources.backoff_max_s
        return backoff_s(failures, self._random, first_s=first_s, most_s=most_s)


def backoff_s(failures: int, random: Random, *, first_s: float, most_s: float) -> float:
    """Return the seconds to wait after this many failures in a row.

    The time doubles with each failure, from `first_s` up to `most_s`, and is then multiplied by a random factor between 0.5 and 1. The
    factor is random so that machines that failed together do not retry together.
    """
    doubled = first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX)
    return random.uniform(0.5, 1.0) * min(doubled, most_s)


@contextmanager
def sigterm_announced(announce: Callable[[Notice], None], *, grace_s: float) -> Iterator[None]:
    """In the `with` block, pass SIGTERM to `announce` as a notice. The signal then does not end the process.

    The receiver of the notice must end the process within `grace_s` seconds. Use this in the main thread only. The previous signal
    handler is restored afterwards.
    """

    def on_sigterm(signum: int, frame: FrameType | None) -> None:
        deadline = Instant(system_now() + seconds_ns(grace_s))
        text = f"this process received SIGTERM and will be killed in about {grace_s:g} s"
        announce(Notice("signal/SIGTERM", deadline, text))

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
