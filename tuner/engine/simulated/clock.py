"""Simulated time: a heap of scheduled calls in a deterministic order."""

import heapq
from collections.abc import Callable

from tuner.domain.time import Instant

EPOCH_NS = 1_700_000_000_000_000_000


class SimulatedClock:
    """A simulated clock. `now` can jump like a real wall clock. `elapsed_ns` never goes back."""

    def __init__(self) -> None:
        self._elapsed = 0
        self.offset_ns = EPOCH_NS
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def now(self) -> Instant:
        return Instant(self._elapsed + self.offset_ns)

    def elapsed_ns(self) -> int:
        return self._elapsed

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Schedule a call. Calls for the same time run in the order in which they were scheduled."""
        self._count += 1
        heapq.heappush(self._due, (self._elapsed + max(0, delay_ns), self._count, act))

    def run_next(self) -> bool:
        if not self._due:
            return False
        at, _, act = heapq.heappop(self._due)
        self._elapsed = max(self._elapsed, at)
        act()
        return True
