"""How transactions on a SQLite file wait for each other: its rollback journal has one writer, and a commit waits for all who read and
keeps out those that come.

SQLite's locks are what holds, between all processes. But who finds one taken and leaves the waiting to SQLite sleeps for 1, 2, 5, 10,
..., 100 ms at a time, and where many threads ask, a commit takes seconds and readers sleep long after it is done. So threads of one
process wait for each other and are woken, and whoever still finds a lock taken, by another process, looks again sooner.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BUSY_TIMEOUT_S = 30.0
# Who waited so long for threads of this process goes on to SQLite's locks.
PATIENCE_S = 1.0
LOOK_AGAIN_S, SLOWER = 0.001, 50  # after n seconds every n / 50


class Turns:
    """Of the threads of one process. A commit waits for those that read, and is passed by none that comes later. One reads at a time: more
    would share one interpreter, end later all together, and so would what waits for them."""

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
        """Whoever comes at the right moment goes before one that is only just being woken: to wait for them would cost all more. Who was
        passed by so is the next."""
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
        """No more than may go on."""
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
    """Does it, once the file is not locked any more. None, or what it failed of: a file that stayed locked for `BUSY_TIMEOUT_S`, or cannot
    be used at all."""
    began = time.monotonic()
    while True:
        try:
            do()
        except sqlite3.Error as error:
            waited_s = time.monotonic() - began
            code = getattr(error, "sqlite_errorcode", 0)  # what Python says by itself has none
            if code & 0xFF != sqlite3.SQLITE_BUSY or waited_s > BUSY_TIMEOUT_S:
                return error
            time.sleep(max(LOOK_AGAIN_S, waited_s / SLOWER))
        else:
            return None
