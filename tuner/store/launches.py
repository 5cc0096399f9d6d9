"""Launches: the starts of a job's driver. Each launch has a higher epoch than the launch before it.

Only the driver of the newest launch may write. `check` refuses the transactions of older drivers.
"""

from dataclasses import dataclass, fields
from typing import Literal

from sqlalchemy import BindParameter, ColumnElement, Connection, and_, bindparam, func, insert, select, update

from tuner.database.prepared import PreparedStatement
from tuner.database.tables import jobs, launches
from tuner.domain.calendar import Window
from tuner.domain.errors import Fenced
from tuner.domain.ledger import NOTICED_NS, WORKERS_OUTLIVE_NS, workers_ended_by
from tuner.domain.time import Instant

_NO_VERSIONS = dict.fromkeys(("tuner_version", "ray_version", "python_version"))
LaunchState = Literal["wanted", "submitted", "running", "ended"]
# The states of a launch whose driver was submitted and has not ended.
_WITH_DRIVER = ("submitted", "running")
# SQL conditions on a launch and on its job. `due` is another.
# The launch has not ended. The states are listed, because the database cannot use the index on `state` for the condition `state != 'ended'`.
IS_LIVE = launches.c.state.in_(("wanted", *_WITH_DRIVER))
HAS_DRIVER = launches.c.state.in_(_WITH_DRIVER)
# The job's driver has started. It may have died since.
BEGUN = and_(jobs.c.state == "running", jobs.c.running_since.is_not(None))


def due(now: Instant | BindParameter[int]) -> ColumnElement[bool]:
    """Return the SQL condition with the meaning of `Launch.is_due`."""
    is_time = (launches.c.not_before <= now) | (launches.c.wanted_at > now)
    return (launches.c.state == "wanted") & is_time


@dataclass(frozen=True, slots=True)
class Launch:
    """The newest launch of a job's driver."""

    job: str
    epoch: int
    state: LaunchState
    wanted_at: Instant
    submitted_at: Instant | None
    heartbeat_at: Instant | None
    quick_deaths: int  #: Number of drivers in a row that died soon after their start, without a report.
    not_before: Instant  #: The launch is not submitted before this time. 0 if the launch is not put off.
    #: The versions of tuner, Ray and Python that the driver runs. None if the driver has not reported them yet.
    tuner_version: str | None = None
    ray_version: str | None = None
    python_version: str | None = None

    @property
    def submission_id(self) -> str:
        return f"{self.job}-{self.epoch}"

    @property
    def newest_submission(self) -> str | None:
        """The id of the Ray Job that was submitted last for this job, or None if none was submitted."""
        epoch = self.epoch - 1 if self.state == "wanted" else self.epoch
        return f"{self.job}-{epoch}" if epoch else None

    @property
    def has_driver(self) -> bool:
        """Whether the launch was submitted and its driver has not ended."""
        return self.state in _WITH_DRIVER

    @property
    def previous_workers_ended_by(self) -> Instant | None:
        """The latest time at which a worker of the previous driver may have run, or None if there was no such driver.

        Read it before the first heartbeat of this launch. The launch was ordered when the death of the previous driver was noticed.

        The last heartbeat is later than that if a further driver has died since, before it could begin workers (see `again`).
        """
        if self.heartbeat_at is None:
            return None
        if self.heartbeat_at - self.wanted_at > NOTICED_NS:
            return Instant(self.wanted_at + WORKERS_OUTLIVE_NS)
        return workers_ended_by(self.heartbeat_at, self.wanted_at, outlive_ns=WORKERS_OUTLIVE_NS)

    def is_due(self, now: Instant) -> bool:
        """Return True if the launch was ordered, is not submitted yet, and is not put off to a time after `now`.

        If `wanted_at` is in the future, the clock has been set back since the launch was ordered. Then `not_before` is wrong too, and
        is ignored. `due` is the same condition in SQL.
        """
        return self.state == "wanted" and (self.not_before <= now or self.wanted_at > now)


_FIELDS = [launches.c[field.name] for field in fields(Launch)]
_LIVE = select(*_FIELDS).where(IS_LIVE).order_by(launches.c.wanted_at, launches.c.job)
_NOW: BindParameter[int] = bindparam("now")
_LOCK_NEWEST = PreparedStatement(
    select(launches.c.epoch, launches.c.state).where(launches.c.job == bindparam("of_job")).with_for_update()
)
_ACTIONABLE = _LIVE.where(HAS_DRIVER | due(_NOW) | launches.c.job.in_(select(jobs.c.id).where(BEGUN)))


def want(
    db: Connection, job: str, project: str, at: Instant, *, not_before: int = 0, window: Window | None = None
) -> None:
    """Order a launch of the job's driver.

    Do nothing if a launch is already ordered or running. If the newest launch has ended, order one with the next epoch.

    Args:
        not_before: The launch is put off until this time. 0 if it is not put off.
        window: The launch is put off until this window opens. It is not put off if the window is open or None.
    """
    if window is not None and not window.is_open(at):
        not_before = window.opening(at)
    row = db.execute(select(launches.c.state).where(launches.c.job == job)).first()
    if row is None:
        new = {"job": job, "project": project, "epoch": 1, "state": "wanted", "wanted_at": at}
        db.execute(insert(launches), {**new, "quick_deaths": 0, "not_before": not_before})
    elif row.state == "ended":
        again = {"state": "wanted", "epoch": launches.c.epoch + 1, "wanted_at": at, "not_before": not_before}
        db.execute(
            update(launches)
            .where(launches.c.job == job)
            .values(**again, **_NO_VERSIONS, quick_deaths=0, submitted_at=None)
        )


def again(db: Connection, launch: Launch, *, at: Instant, not_before: Instant, quick_deaths: int) -> bool:
    """Order a launch with the next epoch, because the driver of `launch` is dead.

    Return False if another process has already ordered the next launch, or if `launch` has ended.

    Args:
        at: When the death of the last driver that had workers was noticed. If the job has not begun, this is its place in the queue: jobs
            whose launches were ordered earlier go first.
        quick_deaths: How many drivers in a row, up to that of `launch`, died soon after their start.
    """
    mine = (launches.c.job == launch.job) & (launches.c.epoch == launch.epoch) & (launches.c.state != "ended")
    values: dict[str, object] = {"state": "wanted", "epoch": launch.epoch + 1, "wanted_at": at}
    values |= {"quick_deaths": quick_deaths, "not_before": not_before, "submitted_at": None}
    done = db.execute(update(launches).where(mine).values(**values, **_NO_VERSIONS))
    return done.rowcount == 1


def put_off(db: Connection, launch: Launch, not_before: Instant) -> None:
    """Put the launch off until `not_before`, for example until its job's window opens.

    Do nothing if the launch is not waiting to be submitted any more.
    """
    mine = (launches.c.job == launch.job) & (launches.c.epoch == launch.epoch)
    values = {"not_before": not_before}
    db.execute(update(launches).where(mine, launches.c.state == "wanted").values(values))


def submitted(db: Connection, job: str, epoch: int, at: Instant) -> bool:
    """Record that the launch was submitted to Ray. Return False if the launch is not waiting to be submitted."""
    mine = (launches.c.job == job) & (launches.c.epoch == epoch) & (launches.c.state == "wanted")
    return db.execute(update(launches).where(mine).values(state="submitted", submitted_at=at)).rowcount == 1


def record_heartbeat(db: Connection, job: str, epoch: int, at: Instant) -> None:
    """Record a heartbeat of the driver. Also record the submission if a service of an older version did not.

    A service of this version claims a launch before it submits the driver.

    Raises:
        Fenced: The launch has ended, or the job has a newer one.
    """
    mine = (launches.c.job == job) & (launches.c.epoch == epoch) & (launches.c.state != "ended")
    values = {
        "state": "running",
        "heartbeat_at": at,
        "submitted_at": func.coalesce(launches.c.submitted_at, at),
    }
    if db.execute(update(launches).where(mine).values(values)).rowcount != 1:
        raise Fenced(f"launch {epoch} of {job} has ended, or a newer launch of this job was ordered")


def record_versions(db: Connection, job: str, epoch: int, *, tuner: str, ray: str, python: str) -> None:
    """Record the versions that the driver of a launch runs."""
    mine = (launches.c.job == job) & (launches.c.epoch == epoch)
    values = {"tuner_version": tuner, "ray_version": ray, "python_version": python}
    db.execute(update(launches).where(mine).values(values))


def check(db: Connection, job: str, epoch: int) -> None:
    """Check that launch `epoch` is the job's newest and has not ended, and lock it until the transaction ends.

    Raises:
        Fenced: The launch has ended, or the job has a newer one.
    """
    newest, state = _LOCK_NEWEST.one(db, {"of_job": job})
    if newest != epoch or state == "ended":
        raise Fenced(
            f"the driver of launch {epoch} may not write to {job} any more: the launch has ended, or is older than the newest launch, {newest}"
        )


def lock(db: Connection, job: str) -> None:
    """Wait for the current turn of the job's driver, and block its next turn until the transaction ends. Other callers are blocked, too.

    Each turn of a driver begins with the same lock (`check`), and a job has a launch from its submission on.
    """
    _LOCK_NEWEST.all(db, {"of_job": job})


def end(db: Connection, job: str, epoch: int) -> None:
    mine = (launches.c.job == job) & (launches.c.epoch == epoch)
    db.execute(update(launches).where(mine).values(state="ended"))


def get(db: Connection, job: str) -> Launch | None:
    row = db.execute(select(*_FIELDS).where(launches.c.job == job)).first()
    return None if row is None else Launch(*row)


def live(db: Connection) -> list[Launch]:
    """Return every launch that has not ended, sorted by the time at which it was ordered, earliest first."""
    return [Launch(*row) for row in db.execute(_LIVE)]


def actionable(db: Connection, now: Instant) -> list[Launch]:
    """Return every launch that has not ended, except a launch that is put off and whose job has not begun to run.

    The launches that are left out, such as those of jobs that wait for their time windows, need no action yet. Reading them would be
    slow, because there may be many.
    """
    return [Launch(*row) for row in db.execute(_ACTIONABLE, {"now": now})]
