"""Pause, resume, cancel or change a job.

If the job has a driver, the request is recorded and the driver carries it out. Otherwise it takes effect at once.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tuner.database.database import Connection
from tuner.domain.budget import Budget
from tuner.domain.errors import Conflict, Invalid, Stale
from tuner.domain.job import FINAL
from tuner.domain.money import MS_PER_HOUR
from tuner.domain.time import NS, Instant
from tuner.ledger import budget_waits, shared_budget_changes, shared_budgets
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.service.shared_budgets import refuse_without_room
from tuner.service.tags import tag_faults
from tuner.service.views import JobView, job_view, revision_of
from tuner.store import jobs, launches
from tuner.store.jobs import JobRow
from tuner.store.journal import end_open, nodes_assigned_at

Unset = Literal["unset"]
UNSET: Unset = "unset"


@dataclass(frozen=True, slots=True)
class BudgetPatch:
    """Changes to a budget. A field that is `UNSET` keeps its value; None removes the limit."""

    usd: Any = UNSET
    gpu_ms: Any = UNSET
    wall_clock_ns: Any = UNSET
    trials: Any = UNSET
    on_exhausted: Any = UNSET  #: What to do when the budget is exhausted.

    def applied(self, budget: Budget) -> Budget:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {f.name: getattr(budget, f.name) for f in fields(budget)}
        return Budget(**{**kept, **{name: value for name, value in given.items() if value is not UNSET}})


def pause(service: Service, job: str) -> JobView:
    """Pause a job: each running trial saves a checkpoint and pauses.

    Raises:
        NotFound: There is no such job in this project.
        Conflict: The job has ended, or is being cancelled.
    """
    with service.database.write("job.pause") as db:
        row = jobs.get(db, job, service.project)
        _refuse_ended(row, "paused")
        _refuse_cancelled(row)
        if row.state == "paused":
            budget_waits.end(db, job)  # first, so that the reconciler cannot resume the job from here on
            _call_off(db, service, row)
        elif not _ended_without_driver(db, service, row, "paused"):
            jobs.set_wish(db, job, "pause")
        # after the job's row: the driver locks the two in this order, and another order could deadlock
        budget_waits.end(db, job)
        _note(db, service, "job.pause", row)
    return job_view(service, job)


def resume(service: Service, job: str) -> JobView:
    """Resume a paused or succeeded job, or withdraw a requested pause that has not happened yet.

    Raises:
        NotFound: There is no such job in this project.
        Conflict: The job was cancelled, is being cancelled, or failed.
        BudgetRefused: A shared budget of the job cannot pay for one second of a trial.
    """
    with service.database.write("job.resume") as db:
        row = jobs.get(db, job, service.project)
        if row.state in ("cancelled", "failed"):
            raise Conflict(f"a job that is {row.state} cannot be resumed; submit a new job")
        _refuse_cancelled(row)
        if row.state in ("paused", "succeeded"):
            size = row.spec.resources
            refuse_without_room(db, service, row.tags, row.offer.rate(size))
            go_on(db, row, service.now())
        elif row.wish == "pause":
            jobs.set_wish(db, job, "resume")
        _note(db, service, "job.resume", row)
    return job_view(service, job)


def cancel(service: Service, job: str) -> JobView:
    """Cancel a job: all its work stops at once, and its results are kept. Cancelling a cancelled job changes nothing.

    Raises:
        NotFound: There is no such job in this project.
        Conflict: The job has already succeeded or failed.
    """
    with service.database.write("job.cancel") as db:
        row = jobs.get(db, job, service.project)
        if row.state == "cancelled":
            return job_view(service, job)
        _refuse_ended(row, "cancelled")
        if not _ended_without_driver(db, service, row, "cancelled"):
            jobs.set_wish(db, job, "cancel")
        _note(db, service, "job.cancel", row)
    return job_view(service, job)


def patch(
    service: Service,
    job: str,
    *,
    budget: BudgetPatch | None = None,
    tags: dict[str, str] | None = None,
    priority: int | None = None,
    revisions: Collection[str] | None = None,
) -> JobView:
    """Change the budget, tags or priority of a job. Either all changes are made or none.

    Args:
        budget: Changes to the budget. A limit may not fall below what the job has already used: money and GPU-hours spent
            and held, trials begun, wall clock run.
        tags: The tags that replace all present ones.
        revisions: Change the job only if its revision is one of these; None for any revision.

    Raises:
        NotFound: There is no such job in this project.
        Stale: The job has another revision.
        Invalid: A value is wrong.
        Conflict: The job is over, a limit is below what was used already, or a shared budget that the new tags match has
            no room for the job's spend and holds.
    """
    with service.database.write("job.change") as db:
        jobs.change_alone(db, job)
        row = jobs.get(db, job, service.project)
        if revisions is not None and revision_of(row) not in revisions:
            raise Stale(_meanwhile(row))
        if tags is not None:
            if faults := tag_faults(tags):
                raise Invalid(*faults)
            shared_budgets.lock_exclusive(db)
            jobs.set_tags(db, job, row.project, tags)
            shared_budget_changes.recount(db, row.project, service.now())
        if priority is not None:
            jobs.set_priority(db, job, priority)
        if budget is not None:
            _change_budget(db, row, budget.applied(row.budget), service.now())
        _note(db, service, "job.change", row)
    return job_view(service, job)


def _note(db: Connection, service: Service, action: str, before: JobRow) -> None:
    """Record a request and its changes in the audit log. A request that changed nothing is not recorded."""
    was, now = audit_log.of_job(before), audit_log.of_job(jobs.get(db, before.id))
    changed = [name for name in was if was[name] != now[name]]
    if changed:
        old, new = ({name: facts[name] for name in changed} for facts in (was, now))
        audit_log.note(db, service, action, before.id, before=old, after=new)


def _meanwhile(row: JobRow) -> str:
    budget = row.budget
    limits = {
        "": budget.usd,
        " GPU-hours": None if budget.gpu_ms is None else f"{budget.gpu_ms / MS_PER_HOUR:g}",
        " s of wall clock": None if budget.wall_clock_ns is None else f"{budget.wall_clock_ns / NS:g}",
        " trials": budget.trials,
    }
    shown = ", ".join(f"{limit}{unit}" for unit, limit in limits.items() if limit is not None)
    return f"the job was changed meanwhile: its budget is {shown} now; read it again, then ask for what is still missing"


def _change_budget(db: Connection, row: JobRow, budget: Budget, now: Instant) -> None:
    """Set the budget of a job.

    Raises:
        Invalid: A limit is wrong.
        Conflict: The job was cancelled or failed, or a limit is below what the job has already used.
    """
    if row.state in ("cancelled", "failed"):
        raise Conflict(f"a job that is {row.state} spends nothing any more")
    faults = [
        fault for fault in replace(row.spec, budget=budget).faults() if fault.pointer.startswith("/budget")
    ]
    if faults:
        raise Invalid(*faults)
    begun, ran_ns = jobs.trials_begun(db, row.id), jobs.running_ns(db, row.id, now)
    if budget.trials is not None and budget.trials < begun:
        raise Conflict(f"{begun} trials have begun already; allow at least that many")
    changed = budget.wall_clock_ns != row.budget.wall_clock_ns
    if budget.wall_clock_ns is not None and changed and budget.wall_clock_ns < ran_ns:
        raise Conflict(f"the job has run for {ran_ns / NS:.0f} s already; allow at least that")
    if budget != row.budget:
        jobs.set_budget(db, row.id, budget)


def go_on(db: Connection, row: JobRow, now: Instant) -> None:
    """Order a launch that resumes the job, now or when its window opens. Until the window opens, a paused job stays paused.

    Do nothing if a launch is already ordered.
    """
    launch = launches.get(db, row.id)
    if launch is not None and launch.state == "wanted":
        return
    opens_at = now if row.spec.window is None else row.spec.window.opening(now)
    if opens_at > now and row.state == "paused":
        jobs.move(db, row.id, "paused", None, at=now)
    else:
        jobs.revive(db, row.id)
    launches.want(db, row.id, row.project, now, not_before=opens_at if opens_at > now else 0)


def _call_off(db: Connection, service: Service, row: JobRow) -> None:
    """Cancel the launch that would have resumed a paused job when its window opens, if there is one."""
    launch = launches.get(db, row.id)
    if launch is not None and launch.state == "wanted":
        launches.end(db, row.id, launch.epoch)
        jobs.move(db, row.id, "paused", None, at=service.now())


def _refuse_ended(row: JobRow, wanted: str) -> None:
    if row.state in FINAL:
        raise Conflict(f"a job that is {row.state} cannot be {wanted}")


def _refuse_cancelled(row: JobRow) -> None:
    if row.wish == "cancel":
        raise Conflict("the job is being cancelled")


def _ended_without_driver(
    db: Connection, service: Service, row: JobRow, state: Literal["paused", "cancelled"]
) -> bool:
    """Cancel or pause a job that has no driver, and end the launch that is ordered for it.

    Return False, without a change, if a driver has to do it: either the job has a driver, or its driver died and a new
    one must first close the open attempts and holds.
    """
    launch = launches.get(db, row.id)
    has_driver = launch is not None and launch.state in ("submitted", "running")
    if has_driver or (row.state == "running" and row.running_since is not None):
        return False
    if launch is not None:
        launches.end(db, row.id, launch.epoch)
    if state == "cancelled" and nodes_assigned_at(
        db, row.id
    ):  # the job was restored from a backup made in mid-run
        end_open(db, row.id, service.now())
    jobs.move(db, row.id, state, "cancelled" if state == "cancelled" else None, at=service.now())
    return True
