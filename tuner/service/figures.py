"""Figures over all jobs, for people who watch the service."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.service.wiring import Service
from tuner.store import launches, totals


@dataclass(frozen=True)
class Figures:
    """Counts by state; dollars; `queue_wait_s` is the sum over `started` jobs of the time from submission to the first driver."""

    jobs: Mapping[str, int]
    trials: Mapping[str, int]
    posted_usd: float
    held_usd: float
    posted_by_kind: Mapping[str, float]
    gpu_hours: float
    started: int
    queue_wait_s: float


def figures(service: Service) -> Figures:
    with service.database.read() as db:
        found = totals.totals(db)
    return Figures(
        found.jobs,
        found.trials,
        found.posted.usd.usd,
        found.held.usd.usd,
        {kind: cost.usd.usd for kind, cost in found.by_kind.items()},
        found.posted.gpu_hours,
        found.started,
        found.queue_wait_ns / 1e9,
    )


def check_database(service: Service) -> None:
    """Raises Unavailable."""
    with service.database.read() as db:
        totals.ping(db)


def has_live_jobs(service: Service) -> bool:
    """Whether a job has a driver, or waits for one."""
    with service.database.read() as db:
        return bool(launches.live(db))
