"""The budget of a job: money, GPU-hours, wall clock and trials. Each limit that is set is hard."""

from dataclasses import dataclass
from typing import Literal

from tuner.domain.errors import Fault
from tuner.domain.money import ZERO, Cost, Money

OnExhausted = Literal["finish", "pause"]
UNLIMITED_MICRO_USD = 2**62
UNLIMITED_GPU_MS = 2**62


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a job. None means no limit. At least one of `usd` and `gpu_ms` is set."""

    usd: Money | None = None
    gpu_ms: int | None = None
    wall_clock_ns: int | None = None  #: Counts only the time while the job runs.
    trials: int | None = None
    on_exhausted: OnExhausted = "finish"

    @property
    def limit(self) -> Cost:
        """Return the limit that the ledger enforces. A missing limit becomes a number too large to be reached."""
        usd = Money(UNLIMITED_MICRO_USD) if self.usd is None else self.usd
        return Cost(usd, UNLIMITED_GPU_MS if self.gpu_ms is None else self.gpu_ms)

    @property
    def bound_by_gpus_alone(self) -> bool:
        others = (self.usd, self.wall_clock_ns, self.trials)
        return self.gpu_ms is not None and all(limit is None for limit in others)

    def faults(self) -> list[Fault]:
        faults = []
        if self.usd is None and self.gpu_ms is None:
            faults.append(Fault("/budget", "give at least one of usd and gpu_hours"))
        if self.usd is not None and self.usd <= ZERO:
            faults.append(Fault("/budget/usd", "must be more than 0"))
        if self.gpu_ms is not None and self.gpu_ms <= 0:
            faults.append(Fault("/budget/gpu_hours", "must be more than 0"))
        if self.wall_clock_ns is not None and self.wall_clock_ns <= 0:
            faults.append(Fault("/budget/wall_clock", "must be more than 0 seconds"))
        if self.trials is not None and not 1 <= self.trials <= 1_000_000:
            faults.append(Fault("/budget/trials", "must be between 1 and 1000000"))
        return faults
