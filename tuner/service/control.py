"""Pause, resume, cancel or change a job, and enqueue, stop or promote its trials.

If the job has a driver, the request is recorded and the driver carries it out. If not, a request about the job takes
effect at once, and a request about a trial waits for the job's next driver.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from tuner.database.database import Connection
from tuner.domain.budget import Budget
from tuner.domain.errors import BudgetRefused, Conflict, Invalid, NotFound, Stale, TooManyWaiting, Unavailable
from tuner.domain.events import EnqueueRequested, PromoteRequested, StopRequested, TrialRequest
from tuner.domain.ids import TRIAL_ID
from tuner.domain.job import FINAL, MAX_CONCURRENT_TRIALS, MAX_START, PERMANENT
from tuner.domain.money import MICRO, MS_PER_HOUR, Cost, Rate, amounts, dollars
from tuner.domain.shared_budget import tag_faults
from tuner.domain.space import Value
from tuner.domain.time import NS, Instant
from tuner.domain.trial import TrialState
from tuner.ledger import budget_waits, ledger, shared_budget_changes, shared_budgets
from tuner.service import audit_log
from tuner.service.answers import TrialView
from tuner.service.answers import trial as trial_view
from tuner.service.bootstrap import Service
from tuner.service.plan_evidence import first_step_of
from tuner.service.shared_budgets import refuse_without_room
from tuner.service.submit import AMPLE_NS, chosen_teacher, concurrency_of
from tuner.service.views import JobView, job_view, revision_of
from tuner.store import exports, jobs, launches, queue, stored_files
from tuner.store.answers import state_of, trials_with
from tuner.store.best import repeats
from tuner.store.exports import ExportRow
from tuner.store.jobs import JobRow
from tuner.store.journal import end_open, nodes_assigned_at
from tuner.tuning.guard import UNKNOWN_NEED_NS
from tuner.tuning.rungs import rungs_of


def pause(service: Service, job: str) -> JobView:
    """Pause a job: each running trial saves a checkpoint and pauses.

    Raises:
        NotFound: The project has no such job.
        Conflict: The job has ended, or is being cancelled.
    """
    with service.database.write("job.pause") as db:
        jobs.change_alone(db, job)
        row = jobs.get(db, job, service.project)
        _refuse_ended(row, "paused")
        _refuse_cancelled(row)
        if row.state == "paused":
            _call_off(db, service, row)
        elif not ended_without_driver(db, service, row, "paused"):
            jobs.set_control_request(db, job, "pause")
        budget_waits.end(db, job)
        _note(db, service, "job.pause", row)
    return job_view(service, job)


def resume(service: Service, job: str) -> JobView:
    """Resume a paused or succeeded job. If the job is about to pause, withdraw the requested pause.

    An export of the job is cancelled if it was not submitted to the cluster yet. The view has a warning if the job may spend the
    rest of its budget on the start of its workers.

    Raises:
        NotFound: The project has no such job.
        Conflict: The job was cancelled, is being cancelled, or failed; one of its exports was submitted and has not ended; the
            checkpoint of its teacher, the trial that it learns from, was deleted; or another job, which has not ended, learns from a
            trial of this job.
        BudgetRefused: A shared budget of the job, or the own budget of a succeeded job, cannot pay for one second of a trial.
    """
    with service.database.write("job.resume") as db:
        jobs.change_alone(db, job)
        row = jobs.get(db, job, service.project)
        if row.state in PERMANENT:
            raise Conflict(f"a job that is {row.state} cannot be resumed; submit a new job")
        _refuse_cancelled(row)
        if row.state in ("paused", "succeeded"):
            if (export := end_waiting_export(db, job, service.now())) is not None:
                raise Conflict(
                    f"the export {export.id} of this job is {export.state}; wait until the export has ended"
                )
            _refuse_if_taught(db, service, row)
            rate = row.offer.rate(row.spec.resources)
            _refuse_used_up(db, row, rate)
            refuse_without_room(db, service, row.tags, rate)
            continue_job(db, row, service.now())
        elif row.control_request == "pause":
            jobs.set_control_request(db, job, "resume")
        _note(db, service, "job.resume", row)
    return _with_warnings(service, job)


def _refuse_used_up(db: Connection, row: JobRow, rate: Rate) -> None:
    """Raise BudgetRefused if a succeeded job cannot pay for one second of a trial: it would end again at once."""
    left = ledger.account(db, row.id).left
    if row.state == "succeeded" and rate.affords_ns(left) < UNKNOWN_NEED_NS:
        gpus = "" if row.budget.gpu_ms is None else f" and {left.gpu_hours:.6f} GPU-hours"
        usd = "" if row.budget.usd is None else f"{left.usd}"
        raise BudgetRefused(
            f"the budget has {usd or 'no limit in dollars'}{gpus} left, which pays for less than one second of a trial: add to it with "
            f"`tuner topup {row.id}`"
        )


def _refuse_if_taught(db: Connection, service: Service, row: JobRow) -> None:
    """Raise Conflict if the checkpoint of the job's teacher was deleted, or if another job still learns from this job.

    A job's teacher is a trial of an earlier job. If the earlier job were resumed before the job that learns from it has ended,
    the trials of the earlier job would replace the checkpoint of the teacher.
    """
    stored_files.lock_job(db, row.id)
    if (student := stored_files.student_of(db, row.id)) is not None:
        raise Conflict(
            f"the job {student} learns from a trial of this job; cancel the other job, or wait until it has ended"
        )
    teacher = row.spec.teacher
    if teacher is None or row.state == "paused":
        return  # The teacher's checkpoint is never deleted before the job that learns from it has ended.
    stored_files.lock_job(db, teacher.job)
    try:
        is_kept = chosen_teacher(db, service, teacher) == teacher
    except Invalid:
        is_kept = False
    if not is_kept:
        raise Conflict(
            f"the checkpoint of the job's teacher, {teacher.trial} of {teacher.job}, was deleted; submit a new job with another teacher"
        )


def cancel(service: Service, job: str) -> JobView:
    """Cancel a job: all its work stops at once, and its results are kept. Cancelling a cancelled job changes nothing.

    A queued export of the job is cancelled, too. A running export continues to its end, paid by its own hold.

    Raises:
        NotFound: The project has no such job.
        Conflict: The job has already succeeded or failed.
    """
    with service.database.write("job.cancel") as db:
        jobs.change_alone(db, job)
        row = jobs.get(db, job, service.project)
        if row.state != "cancelled":
            _refuse_ended(row, "cancelled")
            if (export := exports.live_of(db, job)) is not None:
                exports.cancel(db, export, service.now(), "the job was cancelled")
            if not ended_without_driver(db, service, row, "cancelled"):
                jobs.set_control_request(db, job, "cancel")
            budget_waits.end(db, job)
            _note(db, service, "job.cancel", row)
    return job_view(service, job)


def patch(
    service: Service,
    job: str,
    *,
    budget: Mapping[str, Any] | None = None,
    tags: dict[str, str] | None = None,
    priority: int | None = None,
    max_concurrent_trials: int | None = None,
    revisions: Collection[str] | None = None,
) -> JobView:
    """Change the budget, tags, priority or number of concurrent trials of a job. Either all changes are made or none.

    If `budget` is given, the view has a warning if the job may spend the rest of its budget on the start of its workers.

    Args:
        budget: New values of fields of the budget. A field with the value None removes its limit. A limit may not fall
            below what the job has already used: money and GPU-hours spent and held, trials begun, wall clock run.
        tags: The new tags, which replace all present ones.
        max_concurrent_trials: How many trials may run at once, if the machines and the project's quota allow it.
        revisions: Change the job only if its revision is one of these; None for any revision.

    Raises:
        NotFound: The project has no such job.
        Stale: The job has another revision.
        Invalid: A value is wrong.
        Conflict: A limit is below what the job has already used, or a shared budget that the new tags match has no room for
            the job's spend and holds. Also if the job was cancelled or failed, and `budget` or `max_concurrent_trials` is given.
        Unavailable: `max_concurrent_trials` is given, and the cluster does not answer.
    """
    wanted = max_concurrent_trials
    fitting = 0 if wanted is None else _fitting_width(service, job, wanted)
    with service.database.write("job.change") as db:
        jobs.change_alone(db, job)
        if wanted is not None:
            jobs.lock_concurrency(db, service.project)
        row = jobs.get(db, job, service.project)
        if revisions is not None and revision_of(row) not in revisions:
            raise Stale(_meanwhile(row))
        if tags is not None:
            if faults := tag_faults(tags):
                raise Invalid(*faults)
            shared_budgets.lock_budgets(db, row.project)
            jobs.set_tags(db, job, row.project, tags)
            shared_budget_changes.move(db, row.project, job, row.tags, tags, service.now())
        if priority is not None:
            jobs.set_priority(db, job, priority)
        if wanted is not None:
            _change_width(db, row, wanted, fitting)
        if budget is not None:
            _change_budget(db, row, replace(row.budget, **budget), service.now())
        _note(db, service, "job.change", row)
    service.queue_places.forget()
    return job_view(service, job) if budget is None else _with_warnings(service, job)


def _with_warnings(service: Service, job: str) -> JobView:
    """Return the view of a job, with a warning if the rest of its budget may buy no step.

    A job with a running attempt gets no warning, because its workers have started.
    """
    view = job_view(service, job)
    with service.database.read() as db:
        has_attempts = bool(nodes_assigned_at(db, job))
    has_reports = view.steps > 0
    warning = (
        None
        if has_attempts
        else _start_warning(service, view.row, view.summary.account.left, has_reports=has_reports)
    )
    return view if warning is None else replace(view, warnings=(warning,))


def _start_warning(service: Service, row: JobRow, left: Cost, *, has_reports: bool) -> str | None:
    """Return a warning if the start of the job's workers up to their first reports costs more than `left`, otherwise None.

    If the job has reports, its driver knows how long a start and a step take. Then it starts further workers only if the money pays for
    them too, so the money must pay for one worker. Otherwise all workers start at the same time and share the money, so it may be spent before the first
    of them reports a step.
    """
    spec, rate = row.spec, row.offer.rate(row.spec.resources)
    trials = min(row.concurrency, row.budget.trials or row.concurrency)
    workers = 1 if has_reports else spec.resources.workers(trials)
    affords_ns = rate.affords_ns(left)
    if affords_ns >= workers * AMPLE_NS:
        return None
    try:
        # One measured setup is enough for a warning, because the job is not refused. The driver expects the times that the job has reported.
        first = first_step_of(service, spec, setups_min=1, job=row if has_reports else None)
    except Unavailable:  # The change is already made, so an error would mislead the caller.
        return None
    # A driver that knows the time of a step holds the money for a step that takes a quarter longer.
    margin_ns = first.step_ns // 4 if has_reports else 0
    need_ns = max(UNKNOWN_NEED_NS, workers * first.total_ns + margin_ns)
    if affords_ns >= need_ns:
        return None
    cost, instead = rate.cost(need_ns), ""
    why = "a trial begins only if the budget pays for one second of it"
    if need_ns > UNKNOWN_NEED_NS:
        each = "it" if workers == 1 else "each"
        why = f"{each} takes {first} ({first.source}), at {dollars(rate.price.usd_per_hour)} an hour"
        paid = affords_ns // first.total_ns if workers > 1 and affords_ns >= UNKNOWN_NEED_NS else 0
        instead = f", or set max_concurrent_trials to {paid * spec.resources.pack}" if paid else ""
    missing_usd = max(0, cost.usd.micro_usd - left.usd.micro_usd) / MICRO
    # Rounded up to six decimals, because clients round the new budget to them.
    missing_gpu_hours = math.ceil(max(0, cost.gpu_ms - left.gpu_ms) * MICRO / MS_PER_HOUR) / MICRO
    return (
        f"the budget has {_limited(row.budget, left)} left, but starting {'a worker' if workers == 1 else f'{workers} workers'} up to the "
        f"first report costs at least {_limited(row.budget, cost)}: {why}. The rest may buy no step: add at least "
        f"{amounts(missing_usd or None, missing_gpu_hours or None)}{instead}"
    )


def _limited(budget: Budget, cost: Cost) -> str:
    """Return the dollars and GPU-hours of a cost as text, without a unit that the budget does not limit."""
    usd = None if budget.usd is None else cost.usd.usd
    return amounts(usd, None if budget.gpu_ms is None else cost.gpu_hours)


def _fitting_width(service: Service, job: str, wanted: int) -> int:
    """Return how many concurrent trials the cluster has room for, at least 1 and at most `wanted`.

    Call it outside of a transaction, because the cluster may be slow to answer. Raise Invalid if `wanted` is out of range.
    """
    if not 1 <= wanted <= MAX_CONCURRENT_TRIALS:
        raise Invalid.at("/max_concurrent_trials", f"must be between 1 and {MAX_CONCURRENT_TRIALS}")
    with service.database.read() as db:
        spec = jobs.get(db, job, service.project).spec
    return concurrency_of(service, spec, wanted)


def _change_width(db: Connection, row: JobRow, wanted: int, fitting: int) -> None:
    """Set how many trials of the job may run at once: at most `fitting`, and as many as the project's quota allows.

    A running job gets at most the part of the quota that the other running jobs do not use. A waiting job gets up to the whole quota, because
    the controller launches it only if the quota has room for all of its trials.
    """
    if row.state in PERMANENT:
        raise Conflict(
            f"the job is {row.state} and runs no more trials, so max_concurrent_trials cannot be changed"
        )
    quota = queue.get(db, row.project)
    allowed = quota.width(fitting)
    others = queue.concurrency_at_work(db, row.project)
    is_at_work = others.pop(row.id, None) is not None
    if quota.concurrent_trials is not None and is_at_work:
        left = quota.concurrent_trials - sum(map(quota.width, others.values()))
        # If the quota was lowered while the jobs ran, it may leave no room. The job then keeps its present number of trials.
        allowed = min(allowed, max(row.concurrency, left))
    jobs.set_concurrency(db, row.id, allowed, wanted)


# Trials


def enqueue(service: Service, job: str, config: Mapping[str, Value]) -> JobView:
    """Enqueue a configuration, so that the job tries it as soon as a worker is free.

    A configuration that is already enqueued is not added again.

    Raises:
        NotFound: The project has no such job.
        Invalid: The configuration is not in the job's search space.
        TooManyWaiting: `MAX_START` configurations are already waiting.
        Conflict: The job has ended or is being cancelled, its budget allows no more trials, or a trial has this configuration.
    """
    with _steering(service, job) as (db, row):
        space = row.spec.space
        typed = space.typed(config)
        if faults := space.config_faults(typed, "/config"):
            raise Invalid(*faults)
        requests = jobs.trial_requests_of(db, job)
        enqueued = [request.config for request in requests if isinstance(request, EnqueueRequested)]
        of_user = [*row.spec.first_configs, *enqueued]
        trial, *trials = trials_with(db, job, [typed, *of_user])
        if trial is not None:
            raise Conflict(f"{trial} already has this configuration")
        waiting = [config for config, begun in zip(of_user, trials, strict=True) if begun is None]
        if typed not in waiting:
            _refuse_more(db, row, len(waiting))
            _request(db, service, row, lambda number: EnqueueRequested(service.now(), number, typed))
            audit_log.note(db, service, "trial.enqueue", job, after={"config": typed})
    return job_view(service, job)


def _refuse_more(db: Connection, row: JobRow, waiting: int) -> None:
    """Raise TooManyWaiting or Conflict if no further configuration may be enqueued.

    Args:
        waiting: Number of enqueued configurations whose trials have not begun.
    """
    if waiting >= MAX_START:
        raise TooManyWaiting(
            f"{waiting} configurations of this job are already waiting, which is the maximum; enqueue more when some of them have begun"
        )
    begun, most = _trials_begun(db, row), row.budget.trials
    if most is not None and begun + waiting >= most:
        raise Conflict(
            f"the budget allows {most} trials, and all of them have begun or are waiting; raise budget.trials first"
        )


def stop_trial(service: Service, job: str, trial: str) -> TrialView:
    """Request that a trial is stopped for good. Stopping a stopped trial changes nothing.

    Raises:
        NotFound: The project has no such job or trial.
        Conflict: The job has ended or is being cancelled, or the trial has completed or failed.
    """
    with _steering(service, job) as (db, row):
        state = _state_of(db, job, trial)
        if state in ("completed", "failed"):
            raise Conflict(f"{trial} is {state} and cannot be stopped")
        if state != "stopped":
            _request(db, service, row, lambda number: StopRequested(service.now(), number, trial))
            audit_log.note(db, service, "trial.stop", f"{job}/{trial}", after={"request": "stop"})
    return trial_view(service, job, trial)


def promote_trial(service: Service, job: str, trial: str) -> TrialView:
    """Request that a trial runs to its next rung, before other trials.

    Raises:
        NotFound: The project has no such job or trial.
        Conflict: The job has ended or is being cancelled, the job has no rungs, or the trial has ended or has not begun.
    """
    with _steering(service, job) as (db, row):
        state = _state_of(db, job, trial)
        if not rungs_of(row.spec):
            raise Conflict(
                "the job has no rungs, so promotion has no effect: each trial runs to its last step"
            )
        if state == "pending":
            raise Conflict(f"{trial} has not begun; promote it once it runs or is paused")
        if state not in ("running", "paused"):
            raise Conflict(
                f"{trial} is {state} and cannot run any further; only a running or paused trial can be promoted"
            )
        _request(db, service, row, lambda number: PromoteRequested(service.now(), number, trial))
        audit_log.note(db, service, "trial.promote", f"{job}/{trial}", after={"request": "promote"})
    return trial_view(service, job, trial)


@contextmanager
def _steering(service: Service, job: str) -> Iterator[tuple[Connection, JobRow]]:
    """Open a write transaction and yield it with the job's row. Other changes of the job wait until the transaction ends.

    Raises:
        NotFound: The project has no such job.
        Conflict: The job has ended or is being cancelled.
    """
    with service.database.write("job.steer") as db:
        jobs.change_alone(db, job)
        row = jobs.get(db, job, service.project)
        if row.state in FINAL:
            more = "; raise its budget and resume it first" if row.state == "succeeded" else ""
            raise Conflict(f"the job is {row.state}, so its trials cannot be changed{more}")
        _refuse_cancelled(row)
        yield db, row


def _state_of(db: Connection, job: str, trial: str) -> TrialState:
    state = state_of(db, job, trial) if TRIAL_ID.fullmatch(trial) else None
    if state is None:
        raise NotFound(f"{job} has no trial {trial!r}")
    return state


def _request(db: Connection, service: Service, row: JobRow, request: Callable[[int], TrialRequest]) -> None:
    jobs.request_trial(db, row.id, row.project, service.now(), request)


def _note(db: Connection, service: Service, action: str, before: JobRow) -> None:
    """Record a request and its changes to the job in the audit log. A request that changed nothing is not recorded.

    Args:
        before: The job's row before the request.
    """
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
    return f"the job was changed after you read it: its budget is now {shown}; read the job again, then send only the change that is still needed"


def _change_budget(db: Connection, row: JobRow, budget: Budget, now: Instant) -> None:
    """Replace the budget of a job.

    Raises:
        Invalid: A limit is wrong.
        Conflict: The job was cancelled or failed, or a limit is below what the job has already used.
    """
    if row.state in PERMANENT:
        raise Conflict(f"the job is {row.state} and spends no more money, so its budget cannot be changed")
    faults = [
        fault for fault in replace(row.spec, budget=budget).faults() if fault.pointer.startswith("/budget")
    ]
    if faults:
        raise Invalid(*faults)
    begun, ran_ns = _trials_begun(db, row), row.running_ns(now)
    # A limit that stays the same is accepted, so that another one can be changed.
    if budget.trials is not None and budget.trials != row.budget.trials and budget.trials < begun:
        raise Conflict(f"{begun} trials have already begun; set budget.trials to at least this number")
    changed = budget.wall_clock_ns != row.budget.wall_clock_ns
    if budget.wall_clock_ns is not None and changed and budget.wall_clock_ns < ran_ns:
        raise Conflict(
            f"the job has already run for {ran_ns / NS:.0f} s; set budget.wall_clock to at least this time"
        )
    if budget != row.budget:
        jobs.set_budget(db, row.id, budget)


def _trials_begun(db: Connection, row: JobRow) -> int:
    """Return how many trials of the job count for `budget.trials`: all except the repeats of a confirmation."""
    again = repeats(db, row.id) if row.spec.confirm is not None else ()
    return jobs.trials_begun(db, row.id) - len(again)


def continue_job(db: Connection, row: JobRow, now: Instant) -> None:
    """Have the controller launch a driver that resumes the job, now or when the job's time window opens.

    A job that has never begun returns to the queue. Do nothing if the job already waits for the launch of a driver. A paused job stays
    paused until its window opens.
    """
    launch = launches.get(db, row.id)
    if launch is not None and launch.state == "wanted":
        return
    window = row.spec.window
    if window is not None and not window.is_open(now) and row.state == "paused":
        jobs.move(db, row.id, "paused", None, at=now)
    else:
        jobs.revive(db, row.id)
    launches.want(db, row.id, row.project, now, window=window)


def end_waiting_export(db: Connection, job: str, now: Instant) -> ExportRow | None:
    """Cancel the job's export if it was not submitted to the cluster, because the job is to be resumed.

    Otherwise an export that waits for room could block its job for days. Return the unfinished export for which the job must
    wait, or None if it need not wait.
    """
    export = exports.live_of(db, job)
    if export is None:
        return None
    detail = "the job was resumed before the export began; export again when the job has ended or is paused"
    is_ended = export.submitted_at is None and exports.cancel(db, export, now, detail)
    return None if is_ended else export


def _call_off(db: Connection, service: Service, row: JobRow) -> None:
    """Cancel the launch that was ordered to resume a paused job when its window opens. Do nothing if there is none.

    If the driver was already submitted, have it pause the job at its start.
    """
    launch = launches.get(db, row.id)
    if launch is not None and launch.state == "wanted":
        launches.end(db, row.id, launch.epoch)
        jobs.move(db, row.id, "paused", None, at=service.now())
    elif launch is not None and launch.has_driver:
        jobs.set_control_request(db, row.id, "pause")


def _refuse_ended(row: JobRow, wanted: str) -> None:
    if row.state in FINAL:
        raise Conflict(f"a job that is {row.state} cannot be {wanted}")


def _refuse_cancelled(row: JobRow) -> None:
    if row.control_request == "cancel":
        raise Conflict("the job is being cancelled and cannot be changed")


def ended_without_driver(
    db: Connection, service: Service, row: JobRow, state: Literal["paused", "cancelled"]
) -> bool:
    """Cancel or pause a job that has no driver, end the launch that is ordered for it, and return True.

    Return False, without a change, if the job has a driver, because the driver must then cancel or pause the job. Also
    return False if its driver died, because the next driver must first close the open attempts and holds.
    """
    launch = launches.get(db, row.id)
    has_driver = launch is not None and launch.has_driver
    if has_driver or (row.state == "running" and row.running_since is not None):
        return False
    if launch is not None:
        launches.end(db, row.id, launch.epoch)
    # A job without a driver has open attempts only if it was restored from a backup that was made while it ran.
    if state == "cancelled" and nodes_assigned_at(db, row.id):
        end_open(db, row.id, service.now())
    jobs.move(db, row.id, state, "cancelled" if state == "cancelled" else None, at=service.now())
    return True
