"""The view of a job that users see, read from the database in one transaction."""

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tuner.database.codec import encode
from tuner.database.database import Connection, Database
from tuner.domain.budget import spent_share
from tuner.domain.trial import TrialState
from tuner.service.access import shows_all
from tuner.service.bootstrap import Service
from tuner.service.confirmation import confirmation_of
from tuner.service.queue import QueueWait, waits_of
from tuner.service.ray_dashboard import optuna_link, ray_link
from tuner.store import answers, best, job_summaries, jobs
from tuner.store.answers import CostedReport
from tuner.store.job_summaries import JobSummary
from tuner.store.jobs import JobRow
from tuner.store.launches import Launch as Launch
from tuner.tuning.rungs import rungs_of as rungs_of

KEPT = 5000


@dataclass(frozen=True)
class JobView:
    """A job with everything that users see of it."""

    row: JobRow
    summary: JobSummary
    states: Mapping[TrialState, int]  #: Number of trials in each state.
    steps: int  #: Steps that its trials have reported.
    best: CostedReport | None
    running_ns: int  #: How long the job has run so far.
    wait: QueueWait  #: What the job waits for if it has no driver.
    ray_dashboard: str | None
    optuna_dashboard: str | None
    #: Trial that the job confirmed with several seeds. None if it confirmed none, or has not ended.
    confirmed_trial: str | None = None
    #: How many of its trials repeat others for `confirm`. They do not count for `budget.trials`. 0 if the budget does not limit trials.
    repeats: int = 0
    warnings: tuple[str, ...] = ()  #: Warnings about the change that this view is the answer to.

    @property
    def budget_used(self) -> float:
        """Return the largest used fraction among the limits of the job's budget, at most 1."""
        budget = self.row.budget
        parts = [float(spent_share(budget.usd, budget.gpu_ms, self.summary.account.posted))]
        if budget.wall_clock_ns is not None:
            parts.append(self.running_ns / budget.wall_clock_ns)
        if budget.trials is not None:
            parts.append((sum(self.states.values()) - self.repeats) / budget.trials)
        return min(1.0, max(parts))

    @property
    def version(self) -> Hashable:
        """Return a value that changes whenever anything in the view changes.

        Return None while the job runs, because its running time changes all the time.
        """
        if self.row.running_since is not None:
            return None
        return self.row, self.summary, self.wait, self.ray_dashboard, self.optuna_dashboard


@dataclass(frozen=True, slots=True)
class _Progress:
    """A summary of the trials of a job."""

    states: Mapping[TrialState, int]
    steps: int
    best: CostedReport | None
    confirmed_trial: str | None = None
    #: How many of the trials repeat others for `confirm`. 0 if the budget does not limit trials.
    repeats: int = 0


# The cache of summaries, by database. Without it, a page of 100 jobs without repeats takes 32 ms instead of 7 ms. The key contains the
# numbers of the job's newest event and of the newest removal of its files, so that a cached summary never becomes wrong.
_KEPT: WeakKeyDictionary[Database, dict[Hashable, _Progress]] = WeakKeyDictionary()


def _progress_of(
    db: Connection, service: Service, rows: Sequence[JobRow], summaries: Mapping[str, JobSummary]
) -> dict[str, _Progress]:
    """Return the summary of each job's trials, from the cache if possible.

    The cache key contains the job's state in addition to its newest event, because the trials of a job without a driver can be ended
    without a new event. It also contains whether the budget limits trials, because repeats are counted only then: for a job with 10,000
    trials this takes 10 ms.
    """
    kept = _KEPT.setdefault(service.database, {})
    keys = {
        row.id: (
            row.id,
            summaries[row.id].seq,
            summaries[row.id].removal,
            row.state,
            row.ended_at,
            row.budget.trials is not None,
        )
        for row in rows
    }
    known = {job: progress for job, key in keys.items() if (progress := kept.get(key)) is not None}
    # A job without events has no trials.
    known |= {row.id: _Progress({}, 0, None) for row in rows if not summaries[row.id].seq}
    unread = [job for job in keys if job not in known]
    if not unread:
        return known
    states, steps = answers.states_of(db, unread), answers.steps_of(db, unread)
    reports = best.best_of_each(db, unread)
    confirmed = {
        row.id: confirmation.trial
        for row in rows
        if row.id in states
        and row.ended_at is not None
        and (confirmation := confirmation_of(db, row)) is not None
    }
    repeated = {
        row.id: len(best.repeats(db, row.id))
        for row in rows
        if row.id in states and row.spec.confirm is not None and row.budget.trials is not None
    }
    if len(kept) + len(unread) > KEPT:
        kept.clear()
    for job in unread:
        kept[keys[job]] = known[job] = _Progress(
            states[job], steps[job], reports.get(job), confirmed.get(job), repeated.get(job, 0)
        )
    return known


def revision_of(row: JobRow) -> str:
    """Return a digest of the fields of a job that requests can change: its budget, tags, priority and limit of concurrent trials."""
    changeable = json.dumps(
        [encode(row.budget), dict(row.tags), row.priority, row.max_concurrent_trials], sort_keys=True
    )
    return hashlib.sha256(changeable.encode()).hexdigest()[:16]


def job_view(service: Service, job: str) -> JobView:
    """Return the view of a job. Raise NotFound if the job does not exist."""
    with service.database.read() as db:
        return view_of(db, service, jobs.get(db, job, service.project))


def view_of(db: Connection, service: Service, row: JobRow) -> JobView:
    (view,) = views_of(db, service, [row])
    return view


def views_of(db: Connection, service: Service, rows: Sequence[JobRow]) -> list[JobView]:
    """Return the views of these jobs.

    The number of queries does not depend on the number of jobs, except for jobs with `confirm` that are not in the cache.
    """
    now, summaries = service.now(), job_summaries.of_jobs(db, [row.id for row in rows])
    launched = {job: summary.launch for job, summary in summaries.items() if summary.launch is not None}
    progress = _progress_of(db, service, rows, summaries)
    starts = service.cluster.is_starting()
    waits = waits_of(db, rows, launched, service.queue_places, now, cluster_starts=starts)
    with_links = bool(rows) and shows_all(db, service.actor)
    return [
        JobView(
            row,
            summaries[row.id],
            progress[row.id].states,
            progress[row.id].steps,
            progress[row.id].best,
            row.running_ns(now),
            waits[row.id],
            ray_link(service, summaries[row.id].launch) if with_links else None,
            optuna_link(service.settings, row.id) if with_links else None,
            progress[row.id].confirmed_trial,
            progress[row.id].repeats,
        )
        for row in rows
    ]
