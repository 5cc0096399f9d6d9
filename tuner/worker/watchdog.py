"""The watchdog ends an attempt when its lease ends, when it exceeds its limits, or when its machine has a preemption notice.

The watchdog runs two threads per attempt. The lease thread only waits for the end of the lease, then kills the attempt:
no file or message can delay it, and a lock delays it by at most `LOCK_S`. The other thread reads files: those of
the machine's preemption notices, and those of the child's processes and memory.
"""

import threading
import time
from collections.abc import Callable

from tuner.cluster.notices.notice import Notice
from tuner.worker import endings
from tuner.worker.attempt import RunningAttempt
from tuner.worker.background import background
from tuner.worker.limits import UserCodeLimits
from tuner.worker.orders import EndState, FailureFields
from tuner.worker.processes import AttemptProcesses
from tuner.worker.rank_messages import FirstRank
from tuner.worker.replies import cannot_gain

WATCH_S = 0.05
LOCK_S = 0.5  # how long the end of a lease waits for the supervisor's lock
LIMITS_EVERY = 5  # memory and processes are checked at every fifth check for a preemption notice
NoticeSource = Callable[[], Notice | None]


class Watchdog:
    """Watches the attempts of one supervisor.

    When a lease ends, the watchdog waits up to `LOCK_S` for the supervisor's lock, then kills the attempt even without it. Everything
    else is done under the lock. `notice` is called every `WATCH_S` and returns the machine's preemption notice or None. It must not raise.
    """

    def __init__(
        self,
        changed: threading.Condition,
        processes: AttemptProcesses,
        first_rank: FirstRank,
        notice: NoticeSource,
        limits: UserCodeLimits,
    ) -> None:
        self._changed, self._processes, self._first_rank = changed, processes, first_rank
        self._notice, self._limits = notice, limits

    def start(self, attempt: RunningAttempt, *, kept: bool) -> None:
        """Start to watch an attempt. If the machine already has a preemption notice, end the attempt at once.

        Args:
            attempt: The attempt to watch.
            kept: Whether the worker ran an earlier attempt before this one. The notice may then have come while the
                worker was idle, so the attempt ends as paused instead of preempted.
        """
        with self._changed:
            attempt.notice = self._notice()
            if attempt.notice is not None:
                attempt.leave("paused" if kept else "preempted")
                return
        for name, watch in (("lease", self._watch_lease), ("watchdog", self._watch)):
            background(name, self._processes.or_fail, watch, attempt)

    def _watch_lease(self, attempt: RunningAttempt) -> None:
        while attempt.state is None:
            left_s = attempt.left_ns() / 1e9
            if left_s <= 0:
                self._end_lease(attempt)
            else:
                time.sleep(min(WATCH_S, left_s))

    def _end_lease(self, attempt: RunningAttempt) -> None:
        # Try to hold the lock, so that no later attempt begins meanwhile: its child would be killed instead. Kill even without the lock,
        # because nothing may run unpaid.
        locked = self._changed.acquire(timeout=LOCK_S)
        try:
            # the attempt may have ended, or its lease may have been renewed, while this thread waited for the lock
            if attempt.state is not None or attempt.left_ns() > 0:
                return
            self._processes.kill_all()
            self._processes.kill_import()
            if locked:
                self._end(attempt, "paused", endings.lease_ended())
        finally:
            if locked:
                self._changed.release()

    def _watch(self, attempt: RunningAttempt) -> None:
        looks = 0
        while attempt.state is None:
            self._set_notice(attempt, self._notice())
            looks += 1
            if looks % LIMITS_EVERY == 0:
                self._hold_to_limits(attempt)
            time.sleep(WATCH_S)

    def _hold_to_limits(self, attempt: RunningAttempt) -> None:
        """Fail the attempt if its processes exceed the limits.

        Before the attempt has a child, the limits apply to the fork server, which imports user code. The server is then killed.
        """
        server = self._processes.server
        if not server.pid:  # the slot has no fork server yet
            return
        failure = endings.limit_exceeded(
            server.pid,
            self._limits,
            attempt.order.get("memory_limit_bytes"),
            shares_imports=self._processes.are_in_slot,
        )
        if failure is None:
            return
        with self._changed:
            self._end(attempt, "failed", failure)
            if not self._processes.pids:
                server.kill()

    def _set_notice(self, attempt: RunningAttempt, notice: Notice | None) -> None:
        with self._changed:
            if attempt.state is not None:
                return
            attempt.notice = notice
            self._first_rank.reply_if_due(attempt)
            self._first_rank.fail_if_reply_unread(attempt)
            self._processes.fail_if_server_died(attempt)
            if attempt.state is None and cannot_gain(attempt):
                attempt.leave()
                self._processes.kill()
            self._changed.notify_all()

    def _end(self, attempt: RunningAttempt, state: EndState, error: FailureFields) -> None:
        if attempt.state is None:
            attempt.end(state, error)
            self._processes.kill()
            self._changed.notify_all()
