"""The launch of a job that this driver process belongs to: what it reads and writes in the database, and its heartbeats."""

import logging
import os
import platform
import threading
import time
from dataclasses import dataclass

import ray

from tuner.cluster.jobs import money_metadata
from tuner.database.database import Database
from tuner.domain.checkpointing import Losses
from tuner.domain.cost import total
from tuner.domain.errors import Fenced, TunerError, Unavailable
from tuner.domain.events import TrialRequest
from tuner.domain.money import Money
from tuner.domain.time import Instant, system_now
from tuner.ledger import ledger
from tuner.settings import release
from tuner.store import jobs, launches, queue
from tuner.store.evidence import artifact_bytes, losses
from tuner.store.jobs import Control, JobRow

HEARTBEAT_S = 0.5  # time between two heartbeats
HANGS_AFTER_S = 60.0  # if the loop has made no progress for this long, no heartbeat is recorded
# How long to wait for a database that restarts. Trials continue within their leases during the wait.
DATABASE_AWAY_S = 20.0

log = logging.getLogger("tuner.driver")


@dataclass(frozen=True)
class LaunchContext:
    """Identify this driver's launch of its job (job and epoch), and read and write the database on its behalf."""

    database: Database
    job: str
    epoch: int

    def control(self) -> Control:
        """Return the job's control request, budget and concurrency.

        The query is repeated once, because the connection may break if the database restarts. Raise Unavailable if the
        database cannot be reached within `DATABASE_AWAY_S`.
        """
        for is_repeated in (False, True):
            try:
                with self.database.read() as db:
                    return jobs.control(db, self.job)
            except Unavailable as error:
                # The connection broke during the query. The repeated query opens a new one, which waits for a server that restarts.
                if is_repeated:
                    raise
                log.warning("a query of the database failed and is repeated: %s", error.detail)
        raise AssertionError

    def width(self, concurrency: int) -> int:
        """Return how many trials this job may run at once: `concurrency`, or fewer if the project's quota allows fewer."""
        with self.database.read() as db:
            return queue.get(db, jobs.get(db, self.job).project).width(concurrency)

    def trial_requests(self, *, after: int) -> list[TrialRequest]:
        """Return the users' requests about single trials that came after the request with the number `after`."""
        with self.database.read() as db:
            return jobs.trial_requests_of(db, self.job, after=after)

    def row(self) -> JobRow:
        with self.database.read() as db:
            return jobs.get(db, self.job)

    def may_begin(self) -> bool:
        """Return whether a job that has not begun yet should still begin (see `should_begin`)."""
        return should_begin(self.row(), system_now())

    def spend(self) -> dict[str, str]:
        """Return the job's spend and budget, for Ray's dashboard."""
        with self.database.read() as db:
            return money_metadata(jobs.control(db, self.job).budget, ledger.account(db, self.job).posted)

    def cost_of(self, trial: str, attempt: int) -> Money:
        """Return the posted cost of an attempt."""
        with self.database.read() as db:
            return total(ledger.posted_by_kind(db, self.job, trial, attempt)).usd

    def losses(self, market: str) -> Losses:
        with self.database.read() as db:
            return losses(db, self.job, market, system_now())

    def artifact_bytes(self, job: str) -> int:
        with self.database.read() as db:
            return artifact_bytes(db, job)

    def record_versions(self) -> None:
        """Record the versions of tuner, Ray and Python that this driver runs with.

        After an upgrade of the service, users can see which drivers still run with the old versions.
        """
        versions = {"tuner": release(), "ray": ray.__version__, "python": platform.python_version()}
        with self.database.write("driver.versions") as db:
            launches.record_versions(db, self.job, self.epoch, **versions)

    def begin(self) -> JobRow:
        """Set the job's state to running, and return its row. Raise Fenced if this driver is not the job's current one."""
        with self.database.write("driver.begin") as db:
            launches.check(db, self.job, self.epoch)
            jobs.begin_running(db, self.job, at=system_now())
            return jobs.get(db, self.job)

    def record_heartbeat(self) -> None:
        """Record a heartbeat. Raise Fenced if this driver is not the job's current one."""
        with self.database.write("driver.beat") as db:
            launches.record_heartbeat(db, self.job, self.epoch, system_now())


def should_begin(row: JobRow, now: Instant) -> bool:
    """Return whether a job that has not begun yet should begin.

    Return False if a pause or cancel was requested, if the job's wall-clock limit has passed, or if its window is closed.
    """
    limit_ns, window = row.budget.wall_clock_ns, row.spec.window
    if row.control_request in ("pause", "cancel") or (
        limit_ns is not None and row.running_ns(now) >= limit_ns
    ):
        return False
    return window is None or window.is_open(now)


class Heartbeat(threading.Thread):
    """Record a heartbeat every `HEARTBEAT_S`, in a thread, while the loop makes progress.

    If a later driver of the job has started, the thread exits this process at once, so that Ray ends its workers too.
    """

    def __init__(self, context: LaunchContext) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._context = context
        self._over = threading.Event()
        self.turned_at = time.monotonic()

    def run(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            if time.monotonic() - self.turned_at < HANGS_AFTER_S:
                # The service stops a driver without heartbeats. So no error may end this thread.
                try:
                    self._record_heartbeat()
                except Exception as error:
                    is_unexpected = not isinstance(error, TunerError)
                    log.warning("a heartbeat could not be recorded: %s", error, exc_info=is_unexpected)

    def _record_heartbeat(self) -> None:
        try:
            self._context.record_heartbeat()
        except Fenced as fenced:
            with self._context.database.read() as db:
                launch = launches.get(db, self._context.job)
            if launch is None or launch.epoch != self._context.epoch:
                log.error("this driver exits, because it does not own the job any more: %s", fenced.detail)
                os._exit(1)
            self.stop()  # no later driver exists: this driver itself has ended the job, so heartbeats are not needed

    def turns(self) -> None:
        """Record that the loop makes progress."""
        self.turned_at = time.monotonic()

    def stop(self) -> None:
        self._over.set()
