"""How fast money goes, and which limit is met first at that rate."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW_S = 300.0  # what is spent counts when a slice is posted, which comes in pieces
LEAST_S = 30.0


@dataclass(slots=True)
class Pace:
    """Dollars by the watcher's clock."""

    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, at_s: float, usd: float) -> None:
        self._samples.append((at_s, usd))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - WINDOW_S:
            self._samples.popleft()

    def usd_per_hour(self, at_s: float, running_s: float) -> float | None:
        """Over the last minutes; over all of the job where it was not watched for long. None before anything was spent."""
        if not self._samples:
            return None
        (began, first), (_, last) = self._samples[0], self._samples[-1]
        if at_s - began >= LEAST_S and last > first:
            return (last - first) / (at_s - began) * 3600
        return last / running_s * 3600 if last and running_s >= 1 else None


@dataclass(frozen=True, slots=True)
class End:
    """The limit that is met first, and in how many seconds."""

    limit: str
    seconds: float


def first_end(
    budget: Mapping[str, Any], spend: Mapping[str, Any], running_s: float, usd_per_hour: float | None
) -> End | None:
    """At the rate of now for money, and that of the whole job for GPU-hours. None where no limit can be foretold."""
    ends = []
    if budget["wall_clock"] is not None:
        ends.append(End("wall clock", max(0.0, budget["wall_clock"] - running_s)))
    if budget["usd"] is not None and usd_per_hour:
        ends.append(End("money", max(0.0, budget["usd"] - spend["usd"]) / usd_per_hour * 3600))
    if budget["gpu_hours"] is not None and spend["gpu_hours"] and running_s >= 1:
        left = max(0.0, budget["gpu_hours"] - spend["gpu_hours"])
        ends.append(End("GPU-hours", left / spend["gpu_hours"] * running_s))
    return min(ends, key=lambda end: end.seconds, default=None)
