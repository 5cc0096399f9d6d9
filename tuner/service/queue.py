"""The queue of waiting jobs, and the quotas of projects.

A quota's limit in dollars and GPU-hours is a shared budget over all jobs of the project, so every hold in the ledger
counts against it. Jobs beyond the number that may run at once wait in the queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.database.database import Connection
from tuner.domain.budget import BUDGET, Quota
from tuner.domain.calendar import Window
from tuner.domain.errors import Invalid
from tuner.domain.job import FINAL
from tuner.domain.shared_budget import SharedBudget
from tuner.domain.time import Instant
from tuner.ledger import shared_budget_changes, shared_budgets
from tuner.ledger.shared_budgets import BudgetPeriod
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.store import queue
from tuner.store.jobs import JobRow
from tuner.store.launches import Launch
from tuner.store.queue import QueuePlaces


@dataclass(frozen=True)
class QuotaView:
    """The quota of a project and the used part of it."""

    quota: Quota
    budget: SharedBudget | None  #: None if neither dollars nor GPU-hours are limited.
    period: BudgetPeriod | None  #: Spend and holds in the budget's current period.
    #: One item for each job that has a driver or lost its driver while it ran: how many of its trials may run at once.
    at_work: list[int]


def show(service: Service) -> QuotaView:
    with service.database.read() as db:
        return _view(db, service)


def put(service: Service, quota: Quota, money: SharedBudget | None) -> QuotaView:
    """Replace the quota of the project. Running jobs continue.

    Args:
        money: The limit in dollars and GPU-hours; None for no limit.

    Raises:
        Invalid: A value is wrong.
        Conflict: A new limit is below what the project has already spent and held.
    """
    faults = [*quota.faults(), *(() if money is None else money.faults())]
    if faults:
        raise Invalid(*faults)
    now = service.now()
    with service.database.write("quota.put") as db:
        shared_budgets.lock_exclusive(db)
        before = _view(db, service)
        queue.put(db, service.project, quota, now)
        if money is not None:
            shared_budget_changes.put(db, service.project, replace(money, name=BUDGET), secret="", at=now)
        elif before.budget is not None:
            shared_budget_changes.remove(db, service.project, BUDGET, at=now)
        after = _view(db, service)
        was, is_now = (audit_log.of_quota(view.quota, view.budget) for view in (before, after))
        audit_log.note(db, service, "quota.put", service.project, before=was, after=is_now)
        return after


def _view(db: Connection, service: Service) -> QuotaView:
    kept = [row.budget for row in shared_budgets.kept(db, service.project) if row.budget.name == BUDGET]
    period = shared_budgets.period_at(db, service.project, kept[0], service.now()) if kept else None
    return QuotaView(
        queue.get(db, service.project),
        kept[0] if kept else None,
        period,
        queue.at_work(db, service.project),
    )


@dataclass(frozen=True, slots=True)
class QueueWait:
    """What a job without a driver waits for: its turn, its window, its project's quota or the start of Ray."""

    position: int | None = None  #: Place in the queue, from 1.
    #: When the job's window opens; None if the job does not wait for its window.
    next_opening: Instant | None = None
    #: The limit of the project's quota, in words, that prevents the job from starting until another job of the project ends or pauses. Empty
    #: if the quota allows the job to start.
    quota: str = ""
    cluster_starts: bool = False  #: Whether it waits because the Ray cluster of the service is starting.


def waits_of(
    db: Connection,
    job_rows: Sequence[JobRow],
    launched: Mapping[str, Launch],
    queue_places: QueuePlaces,
    now: Instant,
    *,
    cluster_starts: bool = False,
) -> dict[str, QueueWait]:
    """Return what each of these jobs waits for.

    Args:
        launched: The launches of these jobs, by the id of the job. A job without a launch is not among them.
        cluster_starts: Whether the Ray cluster of the service is starting, so that no job can be launched.
    """
    waiting = [
        row
        for row in job_rows
        if row.state not in FINAL
        and row.running_since is None
        and row.id in launched
        and launched[row.id].state == "wanted"
    ]
    windows = {row.spec.window for row in waiting}  # a set, because many jobs have the same window
    opens = {window: None if window is None else window.opening(now) for window in windows}
    openings = {row.id: _from(opens[row.spec.window], launched[row.id], now) for row in waiting}
    in_turn = [row for row in job_rows if row.id in openings and openings[row.id] is None]
    wanted_at = {row.id: launched[row.id].wanted_at for row in in_turn}
    places = queue_places.of(db, wanted_at, now) if in_turn else {}
    full = _full(db, in_turn)
    # A resumed job is already `running` before it has a driver again, so it is not shown with a place in the queue.
    places = {row.id: places[row.id] for row in in_turn if row.id in places and row.state != "running"}
    waits = {
        job: QueueWait(places.get(job), quota=full.get(job, ""), cluster_starts=cluster_starts)
        if opens_at is None
        else QueueWait(next_opening=opens_at)
        for job, opens_at in openings.items()
    }
    return {row.id: waits.get(row.id, QueueWait()) for row in job_rows}


def _full(db: Connection, waiting: Sequence[JobRow]) -> dict[str, str]:
    """Return, by job, a text that names the used-up limit of its project's quota. The text is empty if no limit is used up.

    Jobs whose project has no quota are left out.
    """
    of_projects = queue.of_projects(db, {row.project for row in waiting}) if waiting else {}
    at_work = {project: queue.at_work(db, project) for project in of_projects}
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
    # If the clock was set back after the launch was ordered, `not_before` is wrong (`Launch.is_due`).
    starts_at = opens_at if launch.wanted_at > now else max(opens_at, launch.not_before)
    return starts_at if starts_at > now else None
