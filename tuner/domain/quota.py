"""The quota of a project, set by the operator: jobs and trials at once.

A quota in dollars and GPU-hours is a shared budget over all jobs of the project.
"""

from collections.abc import Collection
from dataclasses import dataclass

from tuner.domain.errors import Fault

BUDGET = "_quota"
"""Name of the shared budget that is a project's quota in dollars and GPU-hours. Users cannot give a budget this name."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on a project's jobs and trials that run at once. None means no limit.

    For `concurrent_trials`, a running job counts with the largest number of trials that it may run at once.
    """

    concurrent_jobs: int | None = None
    concurrent_trials: int | None = None

    def width(self, concurrency: int) -> int:
        """Return how many trials of a job may run at once if the job asks for `concurrency`."""
        return concurrency if self.concurrent_trials is None else min(concurrency, self.concurrent_trials)

    def reached(self, at_work: Collection[int], concurrency: int) -> str:
        """Return the limit that keeps another job waiting, in words, or an empty string if the job may run.

        Args:
            at_work: The concurrency of each running job of the project.
            concurrency: How many trials the waiting job runs at once.
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
