"""A job as lines of a log, for output that is not a terminal."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from tuner.cli.escape import harmless
from tuner.cli.watch.follow import JobFollower
from tuner.cli.watch.screen import summary
from tuner.cli.watch.state import Highlight

EVERY_S, EVERY_SHARE = 30.0, 0.1
LOGGED = ("best", "preempted", "failed", "state")


class Log:
    """Writes a line for each new best metric, change of state, preemption and failure.

    It also writes a line of progress when another tenth of the budget is used, and 30 s after the last line of progress.
    """

    def __init__(
        self, follower: JobFollower, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._follower, self._write, self._clock = follower, write, clock
        self._written_at, self._written_share, self._progress_text = clock(), 0.0, ""
        self._lock, self._over, self._is_lost = threading.Lock(), threading.Event(), False

    def add(self, highlights: Sequence[Highlight]) -> None:
        with self._lock:
            for highlight in highlights:
                if highlight.kind in LOGGED:
                    self._line(highlight.text)
            self._progress(also=self._share() >= self._written_share + EVERY_SHARE)

    def last(self) -> None:
        """Write a line that summarizes the job at the end, unless the last line of progress says the same."""
        with self._lock:
            text = summary(self._follower.view())
            if text != self._progress_text:
                self._line(text)

    def tick(self) -> None:
        """Write a line of progress if the last line of progress is at least 30 s old."""
        with self._lock:
            self._progress(also=False)

    def connection(self, is_there: bool) -> None:
        """Write a line when the connection is lost and when it is restored."""
        with self._lock:
            if is_there == self._is_lost:
                self._is_lost = not is_there
                self._line("The service answers again." if is_there else self._follower.note)

    def run_ticks(self) -> threading.Event:
        """Start a thread that calls `tick` every second. Set the returned event to stop it.

        The thread also ends if the output cannot be written, as when its reader, such as `head`, has ended. The command itself ends with
        the next line that it writes.
        """

        def tick() -> None:
            with suppress(OSError):
                while not self._over.wait(1.0):
                    self.tick()

        threading.Thread(target=tick, name="progress", daemon=True).start()
        return self._over

    def _progress(self, *, also: bool) -> None:
        if not self._follower.job.data or not self._follower.job.spend:
            return
        if also or self._clock() - self._written_at >= EVERY_S:
            self._written_at, self._written_share = self._clock(), self._share()
            self._progress_text = summary(self._follower.view())
            self._line(self._progress_text)

    def _share(self) -> float:
        progress = self._follower.job.data.get("progress")
        return 0.0 if progress is None else float(progress["budget_used"])

    def _line(self, text: str) -> None:
        self._write(f"{datetime.now():%H:%M:%S}  {harmless(text)}")
