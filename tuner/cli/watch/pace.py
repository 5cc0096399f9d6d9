"""The rate at which a job spends money, and the limit that it reaches first at that rate."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW_S = (
    300.0  # The rate is averaged over this time, because spend grows in jumps: it is posted once per lease.
)
LEAST_S = 30.0  # A rate over a shorter time would vary too much.


@dataclass(slots=True)
class Pace:
    """Samples of the money that a job has spent, with times of the watching process's clock."""

    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, at_s: float, usd: float) -> None:
        self._samples.append((at_s, usd))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - WINDOW_S:
            self._samples.popleft()

    def usd_per_hour(self, at_s: float, running_s: float) -> float | None:
        """Return the rate of spending over the last minutes. If these show none yet, return the mean rate of the whole job.

        Return None if nothing has been spent.
        """
        if not self._samples:
            return None
        (began, first), (_, last) = self._samples[0], self._samples[-1]
        if at_s - began >= LEAST_S and last > first:
            return (last - first) / (at_s - began) * 3600
        return last / running_s * 3600 if last and running_s >= 1 else None


@dataclass(frozen=True, slots=True)
class End:
    """The limit that will be reached first, and the seconds until then."""

    limit: str
    seconds: float


def first_end(
    budget: Mapping[str, Any], spend: Mapping[str, Any], running_s: float, usd_per_hour: float | None
) -> End | None:
    """Return the limit that will be reached first, or None if none can be predicted.

    The time until money runs out is computed from `usd_per_hour`, and that of GPU-hours from the mean of the whole job.
    """
    ends = []
    if budget["wall_clock"] is not None:
        ends.append(End("wall clock", max(0.0, budget["wall_clock"] - running_s)))
    if budget["usd"] is not None and usd_per_hour:
        ends.append(End("money", max(0.0, budget["usd"] - spend["usd"]) / usd_per_hour * 3600))
    if budget["gpu_hours"] is not None and spend["gpu_hours"] and running_s >= 1:
        left = max(0.0, budget["gpu_hours"] - spend["gpu_hours"])
        ends.append(End("GPU-hours", left / spend["gpu_hours"] * running_s))
    return min(ends, key=lambda end: end.seconds, default=None)
