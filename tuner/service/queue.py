"""The queue of jobs that wait for their turn, as the controller serves it and as users see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.domain.fair_share import Waiting, line_up
from tuner.domain.job import FINAL
from tuner.domain.time import Instant
from tuner.domain.window import Window
from tuner.store import queue as rows
from tuner.store import quotas
from tuner.store.database import Connection
from tuner.store.jobs import JobRow
from tuner.store.launches import Launch


@dataclass(frozen=True, slots=True)
class Wait:
    """What a job without a driver waits for: its turn, its window or its project's quota."""

    position: int | None = None  #: Place in the queue, from 1.
    #: When the job's window opens; None if the job does not wait for its window.
    next_opening: Instant | None = None
    #: The limit of the project's quota that is used up until another of the project's jobs ends or pauses. Empty if
    #: the quota allows this job.
    quota: str = ""


def in_line(db: Connection, now: Instant) -> list[Waiting]:
    """Return the waiting jobs that may be launched now, in the order of the queue."""
    waiting = rows.waiting(db, now)
    shares = rows.shares(db, now) if len(waiting) > 1 else {}
    return line_up(waiting, shares)


def positions(db: Connection, now: Instant) -> dict[str, int]:
    """Return the place of each waiting job in the queue, from 1."""
    return {one.job: place for place, one in enumerate(in_line(db, now), start=1)}


def waits_of(
    db: Connection, found: Sequence[JobRow], launched: Mapping[str, Launch], now: Instant
) -> dict[str, Wait]:
    """Return what each of these jobs waits for.

    Args:
        launched: The launch of each job that has one, by job.
    """
    waiting = [
        row
        for row in found
        if row.state not in FINAL
        and row.running_since is None
        and row.id in launched
        and launched[row.id].state == "wanted"
    ]
    windows = {row.spec.window for row in waiting}  # a set, because many jobs have the same window
    opens = {window: None if window is None else window.opening(now) for window in windows}
    openings = {row.id: _from(opens[row.spec.window], launched[row.id], now) for row in waiting}
    in_turn = [row for row in found if row.id in openings and openings[row.id] is None]
    places = positions(db, now) if in_turn else {}
    full = _full(db, in_turn)
    # A job that was resumed is `running` before it has a driver again: it has no place to show.
    places = {row.id: places[row.id] for row in in_turn if row.id in places and row.state != "running"}
    waits = {
        job: Wait(places.get(job), quota=full.get(job, ""))
        if opens_at is None
        else Wait(next_opening=opens_at)
        for job, opens_at in openings.items()
    }
    return {row.id: waits.get(row.id, Wait()) for row in found}


def _full(db: Connection, waiting: Sequence[JobRow]) -> dict[str, str]:
    """Return, by job, the limit of its project's quota that is used up, or an empty text if none is.

    Jobs whose project has no quota are left out.
    """
    of_projects = quotas.of_projects(db, {row.project for row in waiting}) if waiting else {}
    at_work = {project: quotas.at_work(db, project) for project in of_projects}
    return {
        row.id: of_projects[row.project].reached(at_work[row.project], row.concurrency)
        for row in waiting
        if row.project in of_projects
    }


def opening(launch: Launch, window: Window | None, now: Instant) -> Instant | None:
    """Return when the window that the job waits for opens, or None if it does not wait for one."""
    return _from(None if window is None else window.opening(now), launch, now)


def _from(opens_at: Instant | None, launch: Launch, now: Instant) -> Instant | None:
    if opens_at is None:
        return None
    starts_at = max(opens_at, launch.not_before)
    return starts_at if starts_at > now else None
