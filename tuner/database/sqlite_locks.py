"""Coordinate transactions on a SQLite file between threads and processes.

With a rollback journal there is one writer at a time, and a commit waits for all readers and blocks new ones. SQLite's
locks guarantee this between all processes. But SQLite itself waits by sleeping for 1, 2, 5, 10, ..., 100 ms at a time.
With many threads a commit then takes seconds, and readers sleep long after it is done. Therefore the threads of one
process wait for each other here and are woken, and a lock held by another process is retried at shorter intervals.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BUSY_TIMEOUT_S = 30.0
# A thread that has waited this long for other threads of the process proceeds, and relies on SQLite's locks.
PATIENCE_S = 1.0
LOOK_AGAIN_S, SLOWER = 0.001, 50  # after n seconds, retry every n / 50 s, but not sooner than every 1 ms


class Turns:
    """Fair reader/writer lock between the threads of one process.

    A waiting commit blocks new readers. Only one thread reads at a time: several would share Python's interpreter, so each
    of them, and every thread that waits for them, would take longer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers, self._passed_by = 0, 0
        self._waiting: deque[threading.Lock] = deque()
        self._commits: deque[threading.Lock] = deque()

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._begin_reading()
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._wake()

    @contextmanager
    def committing(self) -> Iterator[None]:
        mine = _locked()
        with self._lock:
            self._commits.append(mine)
            free = not self._readers
        if not free:
            mine.acquire(timeout=PATIENCE_S)
        try:
            yield
        finally:
            with self._lock:
                self._commits.remove(mine)
                self._wake()

    def _begin_reading(self) -> None:
        """Wait until this thread may read.

        If the lock is free, an arriving thread may read at once, even if a waiting thread has just been woken for it, because
        waking takes a while. The waiting thread that was passed in this way comes next: until it reads, no arriving thread may
        pass again.
        """
        with self._lock:
            if self._is_free() and not self._passed_by:
                self._readers += 1
                return
            mine, deadline = _locked(), time.monotonic() + PATIENCE_S
            self._waiting.append(mine)
        passed_by = 0
        while True:
            woken = mine.acquire(timeout=PATIENCE_S)
            with self._lock:
                self._passed_by -= passed_by
                if not woken and mine in self._waiting:
                    self._waiting.remove(mine)
                if self._is_free() or time.monotonic() >= deadline:
                    self._readers += 1
                    return
                passed_by = 1
                self._passed_by += 1
                self._waiting.appendleft(mine)

    def _is_free(self) -> bool:
        return not self._commits and not self._readers

    def _wake(self) -> None:
        """Wake the next thread: the first commit, or the first reader if no commit waits."""
        if self._readers:
            return
        if self._commits:
            self._release(self._commits[0])
        elif self._waiting:
            self._release(self._waiting.popleft())

    @staticmethod
    def _release(one: threading.Lock) -> None:
        if one.locked():
            one.release()


def _locked() -> threading.Lock:
    made = threading.Lock()
    made.acquire()
    return made


def insist(do: Callable[[], object]) -> sqlite3.Error | None:
    """Run `do`, and repeat it while the file is locked.

    Returns:
        None, or the error: the file stayed locked for `BUSY_TIMEOUT_S`, or cannot be used at all.
    """
    began = time.monotonic()
    while True:
        try:
            do()
        except sqlite3.Error as error:
            waited_s = time.monotonic() - began
            code = getattr(error, "sqlite_errorcode", 0)  # errors that Python raises by itself have no code
            if code & 0xFF != sqlite3.SQLITE_BUSY or waited_s > BUSY_TIMEOUT_S:
                return error
            time.sleep(max(LOOK_AGAIN_S, waited_s / SLOWER))
        else:
            return None
