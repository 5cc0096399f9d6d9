"""What ends an attempt from outside: its lease, the limits on what it takes, and the end of its machine.

Each attempt has two threads. The lease's thread does nothing but wait for the lease's end and kill: no file, no message and
no lock can delay it. The other one reads the machine's notices and what the child takes, both of which are files.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from tuner.engine.notices import Notice
from tuner.engine.worker import endings
from tuner.engine.worker.attempt import Attempt
from tuner.engine.worker.limits import Limits
from tuner.engine.worker.server_handle import ForkServer

WATCH_S = 0.05
LOCK_S = 0.5  # how long the end of a lease waits for the supervisor's lock
LIMITS_EVERY = 5  # looks at memory and processes at every fifth look at the lease
NoticeSource = Callable[[], Notice | None]


class Watched(Protocol):
    """A supervisor. `server` forks its children. Its methods are called under the lock, except for `kill_all`."""

    @property
    def server(self) -> ForkServer: ...

    def reply_if_due(self, attempt: Attempt) -> None: ...

    def end_if_reply_unread(self, attempt: Attempt) -> None: ...

    def end_if_server_died(self, attempt: Attempt) -> None: ...

    def kill(self) -> None: ...

    def kill_all(self) -> None:
        """Also what the child started in other sessions. Needs no lock."""

    @property
    def pid(self) -> int:
        """Of the child; 0: none."""


class Watchdog:
    """`notice` is asked at each look by what this machine goes, and must not raise."""

    def __init__(
        self, watched: Watched, changed: threading.Condition, notice: NoticeSource, limits: Limits
    ) -> None:
        self._watched, self._changed, self._notice, self._limits = watched, changed, notice, limits

    def start(self, attempt: Attempt, *, kept: bool) -> None:
        """Where the machine goes already, the attempt ends with nothing begun. `kept`: the worker was there from an attempt before,
        and idle when its machine had the notice. Then it was not this attempt that a machine was taken from."""
        with self._changed:
            attempt.notice = self._notice()
            if attempt.notice is not None:
                attempt.leave("paused" if kept else "preempted")
                return
        for name, watch in (("lease", self._watch_lease), ("watchdog", self._watch)):
            threading.Thread(target=watch, args=(attempt,), name=name, daemon=True).start()

    def _watch_lease(self, attempt: Attempt) -> None:
        while attempt.state is None:
            left_s = attempt.left_ns() / 1e9
            if left_s <= 0:
                self._end_lease(attempt)
            else:
                time.sleep(min(WATCH_S, left_s))

    def _end_lease(self, attempt: Attempt) -> None:
        # Kill without the lock if another thread keeps it: nothing may run that is not paid for. With the lock no later attempt can
        # begin meanwhile, whose child would be killed instead.
        locked = self._changed.acquire(timeout=LOCK_S)
        try:
            if attempt.state is not None or attempt.left_ns() > 0:  # it ended, or was renewed
                return
            self._watched.kill_all()
            if not self._watched.server.ready:  # user code may be running in it, as it is imported
                self._watched.server.kill()
            if locked:
                self._end(attempt, "paused", endings.lease_ended())
        finally:
            if locked:
                self._changed.release()

    def _watch(self, attempt: Attempt) -> None:
        looks = 0
        while attempt.state is None:
            self._heed(attempt, self._notice())
            looks += 1
            if looks % LIMITS_EVERY == 0:
                self._hold_to_limits(attempt)
            time.sleep(WATCH_S)

    def _hold_to_limits(self, attempt: Attempt) -> None:
        """Before there is a child, user code that the fork server imports is held to them."""
        server = self._watched.server
        trouble = endings.beyond(server.pid, self._limits, attempt.order.get("memory_limit_bytes"))
        if trouble is None:
            return
        with self._changed:
            self._end(attempt, "failed", trouble)
            if not self._watched.pid:
                server.kill()

    def _heed(self, attempt: Attempt, notice: Notice | None) -> None:
        with self._changed:
            if attempt.state is not None:
                return
            attempt.notice = notice
            self._watched.reply_if_due(attempt)
            self._watched.end_if_reply_unread(attempt)
            self._watched.end_if_server_died(attempt)
            if attempt.state is None and attempt.cannot_gain():
                attempt.leave()
                self._watched.kill()
            self._changed.notify_all()

    def _end(self, attempt: Attempt, state: str, error: endings.Trouble) -> None:
        if attempt.state is None:
            attempt.end(state, error)
            self._watched.kill()
            self._changed.notify_all()
