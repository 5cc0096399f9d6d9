"""The line of jobs that wait for their turn, as the controller serves it and as people see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.domain.job import FINAL
from tuner.domain.line import line_up
from tuner.domain.time import Instant
from tuner.domain.window import Window
from tuner.store import line as rows
from tuner.store.database import Connection
from tuner.store.jobs import JobRow
from tuner.store.launches import Launch


@dataclass(frozen=True, slots=True)
class Wait:
    """What a job without a driver waits for: its turn, of which it is at place `position` from 1 on, or its window."""

    position: int | None = None
    next_opening: Instant | None = None


def in_line(db: Connection, now: Instant) -> list[str]:
    """Jobs that may be launched, the next one first."""
    waiting = rows.waiting(db, now)
    shares = rows.shares(db, now) if len(waiting) > 1 else {}
    return [one.job for one in line_up(waiting, shares)]


def positions(db: Connection, now: Instant) -> dict[str, int]:
    return {job: place for place, job in enumerate(in_line(db, now), start=1)}


def waits_of(
    db: Connection, found: Sequence[JobRow], launched: Mapping[str, Launch], now: Instant
) -> dict[str, Wait]:
    """Of each of these jobs, given what is launched of them."""
    openings = {
        row.id: opening(launched[row.id], row.spec.window, now)
        for row in found
        if row.state not in FINAL
        and row.running_since is None
        and row.id in launched
        and launched[row.id].state == "wanted"
    }
    places = positions(db, now) if None in openings.values() else {}
    waits = {
        job: Wait(position=places.get(job)) if opens_at is None else Wait(next_opening=opens_at)
        for job, opens_at in openings.items()
    }
    return {row.id: waits.get(row.id, Wait()) for row in found}


def opening(launch: Launch, window: Window | None, now: Instant) -> Instant | None:
    """When the window opens that the job waits for; None: it waits for none."""
    if window is None:
        return None
    opens_at = max(window.opening(now), launch.not_before)
    return opens_at if opens_at > now else None
