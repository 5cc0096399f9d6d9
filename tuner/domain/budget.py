"""The budget of a job: money, GPU-hours, wall clock and trials. Each limit that is set is hard."""

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tuner.domain.errors import Fault
from tuner.domain.money import ZERO, Cost, Money

OnExhausted = Literal["finish", "pause"]
UNLIMITED_MICRO_USD = 2**62
UNLIMITED_GPU_MS = 2**62


def cost_limit(usd: Money | None, gpu_ms: int | None) -> Cost:
    """Return the limit that the ledger enforces on dollars and GPU time. A limit of None becomes a number that no job can reach."""
    enforced_usd = Money(UNLIMITED_MICRO_USD) if usd is None else usd
    return Cost(enforced_usd, UNLIMITED_GPU_MS if gpu_ms is None else gpu_ms)


def spent_share(usd: Money | None, gpu_ms: int | None, posted: Cost) -> Fraction:
    """Return the spent share of a limit on dollars and GPU time, or 0 if both limits are None.

    If both are limited, return the larger of the two shares.

    >>> spent_share(Money(10), 100, Cost(Money(4), 50))
    Fraction(1, 2)
    """
    shares = [Fraction(0)]
    if usd is not None:
        shares.append(Fraction(posted.usd.micro_usd, usd.micro_usd))
    if gpu_ms is not None:
        shares.append(Fraction(posted.gpu_ms, gpu_ms))
    return max(shares)


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
        return cost_limit(self.usd, self.gpu_ms)

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


# The quota of a project: how many of its jobs and trials may run at once. The operator sets it.

BUDGET = "_quota"
"""Name of the shared budget that enforces a project's quota of dollars and GPU-hours. Users cannot give a budget this name."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on a project's jobs and trials that run at once. None means no limit.

    A running job counts towards `concurrent_trials` with the number of trials that it may run at once, even while fewer of them run.
    """

    concurrent_jobs: int | None = None
    concurrent_trials: int | None = None

    def width(self, concurrency: int) -> int:
        """Return how many trials of a job may run at once under the quota, if the job requests `concurrency`."""
        return concurrency if self.concurrent_trials is None else min(concurrency, self.concurrent_trials)

    def reached(self, at_work: Collection[int], concurrency: int) -> str:
        """Describe the limit that keeps a waiting job from running. Return an empty string if the job may run.

        Args:
            at_work: The concurrency of each running job of the project.
            concurrency: How many trials the waiting job would run at once.
        """
        if self.concurrent_jobs is not None and len(at_work) >= self.concurrent_jobs:
            return f"{self.concurrent_jobs} jobs at once"
        taken = sum(map(self.width, at_work))
        if self.concurrent_trials is not None and taken + self.width(concurrency) > self.concurrent_trials:
            return f"{self.concurrent_trials} trials at once"
        return ""

    def faults(self) -> list[Fault]:
        given = {"concurrent_jobs": self.concurrent_jobs, "concurrent_trials": self.concurrent_trials}
        return [
            Fault(f"/{name}", "must be at least 1; null means no limit")
            for name, count in given.items()
            if count is not None and count < 1
        ]


UNLIMITED = Quota()
