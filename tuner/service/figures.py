"""Figures over all jobs, for people who watch the service."""

from tuner.service.wiring import Service
from tuner.store import launches, totals
from tuner.store.totals import Totals as Totals


def figures(service: Service) -> Totals:
    with service.database.read() as db:
        return totals.totals(db)


def check_database(service: Service) -> None:
    """Raises Unavailable."""
    with service.database.read() as db:
        totals.ping(db)


def has_live_jobs(service: Service) -> bool:
    """Whether a job has a driver, or waits for one."""
    with service.database.read() as db:
        return bool(launches.live(db))
