"""What a project may have at once, set by who runs the service; its dollars are a budget above all of its jobs."""

from collections.abc import Collection
from dataclasses import dataclass

from tuner.domain.errors import Fault

BUDGET = "_quota"
"""The budget above a project's jobs that is its quota in dollars and GPU-hours: no name that a budget may be given."""


@dataclass(frozen=True, slots=True)
class Quota:
    """None: any number. A job that is at work counts with all the trials that it may run at once."""

    concurrent_jobs: int | None = None
    concurrent_trials: int | None = None

    def width(self, concurrency: int) -> int:
        """How many trials of a job that would run `concurrency` at once may."""
        return concurrency if self.concurrent_trials is None else min(concurrency, self.concurrent_trials)

    def reached(self, at_work: Collection[int], concurrency: int) -> str:
        """What a job of `concurrency` waits for beside jobs of these: in words, empty where there is room for it."""
        if self.concurrent_jobs is not None and len(at_work) >= self.concurrent_jobs:
            return f"{self.concurrent_jobs} jobs at once"
        taken = sum(map(self.width, at_work))
        if self.concurrent_trials is not None and taken + self.width(concurrency) > self.concurrent_trials:
            return f"{self.concurrent_trials} trials at once"
        return ""

    def faults(self) -> list[Fault]:
        given = {"concurrent_jobs": self.concurrent_jobs, "concurrent_trials": self.concurrent_trials}
        return [
            Fault(f"/{name}", "must be at least 1; null is any number")
            for name, count in given.items()
            if count is not None and count < 1
        ]


UNLIMITED = Quota()
