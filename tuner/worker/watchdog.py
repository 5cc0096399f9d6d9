"""The watchdog ends an attempt when its lease ends, when it exceeds its limits, or when its machine has a preemption notice.

The watchdog runs two threads per attempt. The lease thread only waits for the end of the lease and kills: no
file or message can delay it, and a lock delays it by at most `LOCK_S`. The other thread reads files: those of
the machine's preemption notices, and those of the child's processes and memory.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from tuner.cluster.notices.notice import Notice
from tuner.worker import endings
from tuner.worker.attempt import Attempt
from tuner.worker.limits import Limits
from tuner.worker.server_handle import ForkServer

WATCH_S = 0.05
LOCK_S = 0.5  # how long the end of a lease waits for the supervisor's lock
LIMITS_EVERY = 5  # memory and processes are checked at every fifth check for a preemption notice
NoticeSource = Callable[[], Notice | None]


class Watched(Protocol):
    """The methods of a supervisor that the watchdog calls. All except `kill_all` are called under the lock."""

    @property
    def server(self) -> ForkServer: ...

    def reply_if_due(self, attempt: Attempt) -> None: ...

    def end_if_reply_unread(self, attempt: Attempt) -> None: ...

    def end_if_server_died(self, attempt: Attempt) -> None: ...

    def kill(self) -> None: ...

    def kill_all(self) -> None:
        """Kill the child and all processes that it started, in any session. Needs no lock."""

    @property
    def pid(self) -> int:
        """The process id of the child, or 0 if there is none."""


class Watchdog:
    """Watch the attempts of one supervisor.

    `notice` is called every `WATCH_S` and returns the machine's preemption notice or None. It must not
    raise.
    """

    def __init__(
        self, watched: Watched, changed: threading.Condition, notice: NoticeSource, limits: Limits
    ) -> None:
        self._watched, self._changed, self._notice, self._limits = watched, changed, notice, limits

    def start(self, attempt: Attempt, *, kept: bool) -> None:
        """Start to watch an attempt. If the machine already has a preemption notice, end the attempt at once.

        Args:
            attempt: The attempt to watch.
            kept: Whether the worker ran an earlier attempt and was kept for this one, so that the notice may
                have come while it was idle. The attempt then ends as paused instead of preempted, because the
                machine was not taken from this attempt.
        """
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
        # Kill even if another thread holds the lock, because nothing may run unpaid. Holding the lock prevents a later attempt from
        # beginning meanwhile, whose child would be killed instead.
        locked = self._changed.acquire(timeout=LOCK_S)
        try:
            if (
                attempt.state is not None or attempt.left_ns() > 0
            ):  # the attempt ended or its lease was renewed
                return
            self._watched.kill_all()
            if not self._watched.server.ready:  # the server may be running user code that it imports
                self._watched.server.kill()
            if locked:
                self._end(attempt, "paused", endings.lease_ended())
        finally:
            if locked:
                self._changed.release()

    def _watch(self, attempt: Attempt) -> None:
        looks = 0
        while attempt.state is None:
            self._set_notice(attempt, self._notice())
            looks += 1
            if looks % LIMITS_EVERY == 0:
                self._hold_to_limits(attempt)
            time.sleep(WATCH_S)

    def _hold_to_limits(self, attempt: Attempt) -> None:
        """Fail the attempt if its processes exceed the limits.

        Before the attempt has a child, this applies to the user code that the fork server imports, and the server is killed.
        """
        server = self._watched.server
        trouble = endings.limit_exceeded(server.pid, self._limits, attempt.order.get("memory_limit_bytes"))
        if trouble is None:
            return
        with self._changed:
            self._end(attempt, "failed", trouble)
            if not self._watched.pid:
                server.kill()

    def _set_notice(self, attempt: Attempt, notice: Notice | None) -> None:
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
