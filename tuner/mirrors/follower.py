"""The thread of one mirror: it reads new changes of jobs from the database and writes them to the mirror while the service runs.

It never blocks other work: it only reads the database, and a failure of the mirror affects nothing else. A failed mirror is
opened again after a while and continues from the positions that it stores.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from tuner.domain.job import FINAL
from tuner.mirrors.record import Mirror, Position, ResultSource

log = logging.getLogger("tuner.mirrors")

PASS_S = 1.0
SWEEP_S = 60.0
WATCHED_MAX = 5000
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
LONGEST_REST_S = 10.0


class WriteTurn(Protocol):
    """Decides which of several service replicas writes to a mirror."""

    def is_mine(self) -> bool:
        """Return whether this replica may write. Call it before each write.

        Raises:
            TunerError: The database fails.
        """

    def kept(self) -> AbstractContextManager[None]:
        """Return a context manager in whose block only this replica may write to the mirror. Use it around each write."""

    def give_back(self) -> None: ...


class MirrorThread(threading.Thread):
    """The thread that writes one mirror. It cannot be started again after `stop()`."""

    def __init__(
        self,
        name: str,
        open_mirror: Callable[[], Mirror],
        results: ResultSource,
        turn: WriteTurn,
        *,
        rest: float = 9.0,
    ) -> None:
        """Create the thread.

        Args:
            name: The name of the mirror, for messages.
            open_mirror: Opens the mirror. It is called at the start and after each failure, and may raise any exception.
            results: The jobs to mirror.
            turn: Decides whether this service replica writes.
            rest: After each batch the thread pauses for `rest` times the duration of the batch, at most for `LONGEST_REST_S`. With the
                default, a mirror that is behind takes about a tenth of a processor. Training may run on the same machine.
        """
        super().__init__(name=f"mirror-{name}", daemon=True)
        self.mirror_name = name
        self._open_mirror, self._results, self._turn = open_mirror, results, turn
        self._over, self._rest = threading.Event(), rest
        self._mirror: Mirror | None = None
        self._positions: dict[str, Position] = {}
        self._watched: frozenset[str] | None = None
        self._swept_at = 0.0
        self._failures = 0
        self._put_off: dict[str, tuple[int, float]] = {}

    @property
    def is_failing(self) -> bool:
        return bool(self._failures or self._put_off)

    def run(self) -> None:
        while not self._over.wait(_retry_s(self._failures) if self._failures else PASS_S):
            self.one_pass()
        self._release()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the thread. Wait at most `timeout_s` seconds for its end, because the mirror may not answer."""
        self._over.set()
        if self.is_alive():
            self.join(timeout_s)

    def one_pass(self) -> None:
        """Mirror all new changes once. It never raises."""
        failed_before = self.is_failing
        try:
            self._follow()
        except Exception as error:
            self._close()
            self._failures += 1
            if not failed_before:
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
                log.warning("results are not mirrored to %s: %s; retrying", self.mirror_name, reason[:500])
            log.debug("mirroring to %s", self.mirror_name, exc_info=error)
            return
        self._failures = 0
        if failed_before and not self.is_failing:
            log.info("results are mirrored to %s again", self.mirror_name)

    def _follow(self) -> None:
        """Write one batch of changes for each job that has some, and repeat until the mirror has all changes.

        Do nothing if another replica has the turn to write.
        """
        if not self._turn.is_mine():
            self._close()  # another replica writes now, so the known positions become outdated
            return
        if self._mirror is None:
            self._mirror = self._open_mirror()
            self._positions, self._watched = self._mirror.positions(), None
        heads = self._heads()
        waiting = [
            job for job, head in heads.items() if self._positions.get(job) != head and self._is_due(job)
        ]
        while waiting:
            for job in waiting:
                if self._over.is_set() or not self._step(self._mirror, job):
                    return
            waiting = [job for job in waiting if _is_behind(self._positions.get(job), heads[job])]

    def _heads(self) -> dict[str, Position]:
        """Return the recorded positions of the jobs that may have changes to mirror, by job.

        These are the jobs that have not ended, and the watched jobs. A job is watched if at the last call it had not ended or was not
        fully mirrored. Instead, return the positions of all jobs if this was last done more than `SWEEP_S` seconds ago, or if more than
        `WATCHED_MAX` jobs are watched.
        """
        now = time.monotonic()
        if self._watched is None or len(self._watched) > WATCHED_MAX or now - self._swept_at > SWEEP_S:
            self._watched, self._swept_at = None, now
        heads = self._results.heads(self._watched)
        self._watched = frozenset(
            job for job, head in heads.items() if self._positions.get(job) != head or head.state not in FINAL
        )
        return heads

    def _is_due(self, job: str) -> bool:
        return self._put_off.get(job, (0, 0.0))[1] <= time.monotonic()

    def _step(self, mirror: Mirror, job: str) -> bool:
        """Write one batch of a job's changes, then pause. Return False without writing if another replica has the turn to write now."""
        began = time.monotonic()
        changes = self._results.changes(job, self._positions.get(job))
        if not self._turn.is_mine():
            self._close()
            return False
        try:
            with self._turn.kept():
                is_written = mirror.write(changes)
            if is_written:
                self._positions[job] = changes.upto
            else:
                self._positions.pop(job, None)
        except Exception:
            # Put this job off for a while: perhaps only this job cannot be written, and the other jobs must not wait for it.
            failures = self._put_off.get(job, (0, 0.0))[0] + 1
            self._put_off[job] = (failures, time.monotonic() + 2 * _retry_s(failures))
            raise
        self._put_off.pop(job, None)
        self._over.wait(min(LONGEST_REST_S, self._rest * (time.monotonic() - began)))
        return True

    def _close(self) -> None:
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            try:
                mirror.close()
            except Exception as error:
                log.debug("closing %s", self.mirror_name, exc_info=error)

    def _release(self) -> None:
        self._close()
        try:
            self._turn.give_back()
        except Exception as error:
            log.debug("the turn to write to %s could not be given back", self.mirror_name, exc_info=error)


def _is_behind(held: Position | None, head: Position) -> bool:
    """Return whether the mirror lacks changes of a job.

    A job whose mirrored position is already beyond `head` is not behind: `head` is outdated, and the next pass reads it again.

    Args:
        held: The position of the job in the mirror. None if the mirror does not have the job.
        head: The recorded position of the job when it was last read.
    """
    return held is None or held.seq < head.seq or (held.seq == head.seq and held != head)


def _retry_s(failures: int) -> float:
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
