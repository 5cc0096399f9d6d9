"""Queries for mirrors, which write results to other tools: the changes of a job after a given event."""

from collections.abc import Collection
from dataclasses import dataclass, field

import sqlalchemy.orm  # noqa: F401  Otherwise Optuna imports it in a mirror's thread, which blocks queries of other threads meanwhile.
from sqlalchemy import Connection, func, select

from tuner.database.tables import events, reports
from tuner.database.tables import jobs as job_rows
from tuner.domain.job import UNFINISHED
from tuner.domain.objective import Mode
from tuner.store import answers, exports, jobs
from tuner.store.answers import CostedReport, TrialRow
from tuner.store.pareto_front import best_of


@dataclass(frozen=True, slots=True)
class ChangedTrial:
    """A changed trial in its current state, with its new reports."""

    row: TrialRow
    is_as_of_then: bool  #: Whether `row` is the trial's state at the last included event. False if the trial changed after it.
    #: Each new report, with the trial's best feasible metric up to the step of the report.
    reports: list[tuple[CostedReport, float | None]] = field(default_factory=list)


def heads(db: Connection, among: Collection[str] | None) -> dict[str, tuple[int, str, int]]:
    """Return (number of the newest event, state, number of successful exports) of each job, by job, over all projects.

    A job without events is left out.

    Args:
        among: The ended jobs to include. Jobs that have not ended are always included. None includes all jobs.
    """
    j, e = job_rows.c, events.c
    last = select(func.max(e.seq)).where(e.job == j.id).scalar_subquery()
    exported = exports.count_of(j.id).scalar_subquery()
    query = select(j.id, last.label("seq"), j.state, exported.label("exported"))
    # The states are listed, and the two conditions have a query each. Otherwise the database cannot use its indexes, and reads all jobs.
    wanted = (
        [query] if among is None else [query.where(j.state.in_(UNFINISHED)), query.where(j.id.in_(among))]
    )
    rows = [row for each in wanted for row in db.execute(each)]
    return {row.id: (row.seq, row.state, row.exported) for row in rows if row.seq is not None}


def read_changes(
    db: Connection, job: str, mode: Mode, after: int, *, limit: int, everything: bool
) -> tuple[int, list[ChangedTrial]]:
    """Return the trials that changed after event number `after`, and the number of the last event that is included.

    Args:
        limit: How many reports to return at most. More are returned only if they belong to the same event as the last of them. Changes
            by later events are not included.
        everything: If True, and the job's newest event is included, return all trials of the job, even unchanged ones.
    """
    changes = answers.changes_after(db, job, mode, after, limit=limit)
    reported = {report.trial for report in changes.reports}
    if everything and changes.seq >= jobs.newest_event(db, job):
        rows = answers.all_trials(db, job, mode)
    else:
        # A report does not change the `seq` of its trial, so trials that have only new reports are added here.
        others = reported - {row.trial for row in changes.trials}
        rows = changes.trials + answers.trials_named(db, job, mode, others)
    trials = {row.trial: ChangedTrial(row, row.seq <= changes.seq) for row in rows}
    bests = _bests(db, job, mode, reported, upto=after)
    for report in changes.reports:
        new = report.value if report.violation == 0 else None
        values = [value for value in (bests.get(report.trial), new) if value is not None]
        best = bests[report.trial] = (max if mode == "max" else min)(values, default=None)
        trials[report.trial].reports.append((report, best))
    return changes.seq, sorted(trials.values(), key=lambda trial: trial.row.number)


def _bests(
    db: Connection, job: str, mode: Mode, names: Collection[str], *, upto: int
) -> dict[str, float | None]:
    """Return the best metric in the feasible reports of each of these trials up to event number `upto`."""
    r = reports.c
    best = best_of(mode, r.value)
    mine = (r.job == job, r.trial.in_(names), r.seq <= upto, r.violation == 0)
    return {trial: value for trial, value in db.execute(select(r.trial, best).where(*mine).group_by(r.trial))}
