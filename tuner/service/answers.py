"""Answer questions about trials: their attempts, ledger entries, changes and learning curves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.database.database import Connection
from tuner.domain.cost import CostKind
from tuner.domain.errors import Invalid, NotFound
from tuner.domain.events import Inherited
from tuner.domain.ids import TRIAL_ID
from tuner.domain.job import FINAL, JobState
from tuner.domain.money import Cost
from tuner.domain.records import AttemptRow
from tuner.domain.usage import Usage
from tuner.ledger import ledger
from tuner.ledger.ledger import EntryRow as EntryRow
from tuner.service.bootstrap import Service
from tuner.service.views import JobView, revision_of, view_of, views_of
from tuner.store import answers, attempt_rows, curves, job_summaries, jobs
from tuner.store.answers import After as After
from tuner.store.answers import ChangesSince as ChangesSince
from tuner.store.answers import CostedReport as CostedReport
from tuner.store.answers import DurableCheckpoint
from tuner.store.answers import Sort as Sort
from tuner.store.answers import TrialRow as TrialRow
from tuner.store.answers import sort_key_of as sort_key_of
from tuner.store.curves import ReportSeries
from tuner.store.job_summaries import Version
from tuner.store.jobs import JobRow
from tuner.store.warm_starts import inherited
from tuner.tuning.rungs import rungs_of

EMPTY = ReportSeries([], [], [], [])


@dataclass(frozen=True, slots=True)
class CurvesView:
    """The learning curves of a job's trials up to the event `seq`, and the values of one metric for a chart."""

    job: JobRow
    seq: int  #: Number of the newest event whose reports are included.
    trials: Sequence[TrialRow]
    series: Mapping[str, ReportSeries]  #: By trial, the reports with the values of the objective's metric.
    losses: Mapping[str, list[int]]  #: By trial, the steps at which it was preempted.
    metric: str  #: The charted metric: the objective's, or the requested one.
    metrics: Sequence[str]  #: The metrics that can be requested.
    values: Mapping[str, Sequence[float | None]]  #: By trial, the charted metric at each step.

    @property
    def points(self) -> int:
        return sum(len(course.steps) for course in self.series.values())

    def promotions(self, trial: str) -> list[int]:
        """Return the rungs that the trial passed: it reported the objective's metric at the rung, and later trained further."""
        course = self.series.get(trial, EMPTY)
        if not course.steps:
            return []
        at = dict(zip(course.steps, course.values, strict=True))
        return [
            rung for rung in rungs_of(self.job.spec) if rung < course.steps[-1] and at.get(rung) is not None
        ]


def job_curves(service: Service, job: str, metric: str | None = None) -> CurvesView:
    """Return the curves of all trials.

    Args:
        metric: Any metric that the job reports. None means the objective's metric.

    Raises:
        NotFound: The job does not exist.
        Invalid: The job has reports, and none of them has this metric as a number.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        objective = row.spec.objective.metric
        # The number is read before the curves. A client that opens the event stream after this number then misses no event.
        seq = jobs.newest_event(db, job)
        names = sorted({objective, *curves.metric_names(db, job)})
        trials, courses, losses = (
            answers.all_trials(db, job, row.spec.objective.mode),
            curves.report_series(db, job, seq),
            curves.losses(db, job),
        )
        values: Mapping[str, Sequence[float | None]] = {
            name: course.values for name, course in courses.items()
        }
        if metric is not None and metric != objective:
            values = curves.metric_values(db, job, seq, metric)
            if courses and not any(
                value is not None for trial_values in values.values() for value in trial_values
            ):
                detail = f"no trial has reported {metric!r}; choose one of {', '.join(names)}"
                raise Invalid.at("metric", detail)
        return CurvesView(row, seq, trials, courses, losses, metric or objective, names, values)


@dataclass(frozen=True)
class TrialView:
    """A trial with its learning curve, bill, attempts and checkpoints."""

    row: TrialRow
    curve: list[CostedReport]
    bill: Mapping[CostKind, Cost]
    attempts: list[tuple[AttemptRow, Usage | None]]
    #: The trial of an earlier job that this trial continues. None if it began from scratch.
    inherited: Inherited | None
    checkpoints: list[DurableCheckpoint]


def page_of_jobs(
    service: Service,
    *,
    state: JobState | None,
    tag: tuple[str, str] | None,
    before: tuple[int, str] | None,
    limit: int,
) -> list[JobView]:
    with service.database.read() as db:
        rows = jobs.page(db, service.project, state=state, tag=tag, before=before, limit=limit)
        return views_of(db, service, rows)


def page_of_trials(
    service: Service, job: str, *, sort: Sort, descending: bool, after: After | None, limit: int
) -> list[TrialRow]:
    """Return a page of the job's trials. Raise NotFound if the job does not exist."""
    with service.database.read() as db:
        mode = jobs.get(db, job, service.project).spec.objective.mode
        return answers.page_of_trials(
            db, job, mode, sort=sort, descending=descending, after=after, limit=limit
        )


def _with_reason(row: TrialRow, job: JobRow) -> TrialRow:
    """Return the row of a trial. If the trial was pending or paused when its job ended, set `reason` to the end of the job.

    This reason is not in the database, because the end of a job does not change the rows of its pending and paused trials.
    """
    if row.reason or row.state not in ("pending", "paused") or job.state not in FINAL:
        return row
    cause = f" ({job.stop_reason})" if job.stop_reason else ""
    began = "before this trial started" if row.state == "pending" else "while this trial was paused"
    again = "; with a larger budget the job can continue" if job.state == "succeeded" else ""
    return replace(row, reason=f"the job ended{cause} {began}{again}")


def trial_of(db: Connection, job: JobRow, name: str) -> TrialRow:
    """Return a trial of a job. Raise NotFound if the job has no such trial."""
    row = answers.trial(db, job.id, job.spec.objective.mode, name) if TRIAL_ID.fullmatch(name) else None
    if row is None:
        raise NotFound(f"{job.id} has no trial {name!r}")
    return row


def trial(service: Service, job: str, name: str) -> TrialView:
    """Return a trial with its curve, bill, attempts and checkpoints.

    Raises:
        NotFound: The job or the trial does not exist.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        return TrialView(
            _with_reason(trial_of(db, row, name), row),
            answers.curve(db, job, name),
            ledger.posted_by_kind(db, job, name),
            list(attempt_rows.of_trials(db, job, [name])),
            inherited(db, job, name),
            answers.checkpoints_of(db, job, name),
        )


def check_exists(service: Service, job: str) -> None:
    """Raise NotFound if the project has no such job."""
    with service.database.read() as db:
        jobs.get(db, job, service.project)


def ledger_lines(
    service: Service, job: str, *, after: int = 0, limit: int | None = None
) -> Iterator[EntryRow]:
    """Yield the ledger entries of a job, oldest first. Each transaction reads up to 1000 entries.

    Args:
        after: Sequence number of the entry to start after; 0 starts at the first entry.
        limit: Maximum number of entries to yield; None for all.

    Raises:
        NotFound: The job does not exist. Raised at the first entry, not at the call.
    """
    check_exists(service, job)
    left = limit
    while left is None or left > 0:
        with service.database.read() as db:
            lines = ledger.lines(db, job, after=after, limit=min(1000, left or 1000))
        yield from lines
        if not lines:
            return
        after = lines[-1].seq
        left = None if left is None else left - len(lines)


def changes(service: Service, job: str, after: int) -> tuple[ChangesSince, JobView]:
    """Return the trials and reports that changed after event `after`, and the job's current view.

    Raise NotFound if the job does not exist.
    """
    with service.database.read() as db:
        row = jobs.get(db, job, service.project)
        changed = answers.changes_after(db, job, row.spec.objective.mode, after)
        return changed, view_of(db, service, row)


def version(service: Service, job: str) -> Version:
    """Return the current version of the answers about a job. Raise NotFound if the job does not exist.

    A cached answer about the job is still correct if the version has not changed since the answer was made.
    """
    with service.database.read() as db:
        return job_summaries.version(db, job, service.project)


def revision(service: Service, job: str) -> str:
    """Return the job's revision, which changes with the fields that requests can change. Raise NotFound if the job does not exist."""
    with service.database.read() as db:
        return revision_of(jobs.get(db, job, service.project))


def changes_between(service: Service, job: str, after: int, until: int) -> ChangesSince:
    """Return the trials and reports that changed after event `after`, up to event `until`.

    Raise NotFound if the job does not exist.
    """
    with service.database.read() as db:
        mode = jobs.get(db, job, service.project).spec.objective.mode
        return answers.changes_after(db, job, mode, after, until=until)


def newest(service: Service, job: str) -> int:
    """Return the number of the newest event of a job."""
    with service.database.read() as db:
        return jobs.newest_event(db, job)
