"""The record of one job: its events, and the rows with which a replay of the events is compared."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, select

from tuner.database.codec import decode
from tuner.database.database import Database
from tuner.database.tables import events, reports, trials
from tuner.domain.events import Event, Inherited
from tuner.domain.job import JobSpec
from tuner.domain.space import Config
from tuner.domain.trial import TrialState
from tuner.store import jobs
from tuner.store.jobs import JobRow
from tuner.store.warm_starts import marks

EVENTS_PAGE = 1000
TRIES = 5


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """The rows of a job and its trials, as they were after event number `until`."""

    until: int  #: Number of the newest event when the rows were read. 0 if there was none.
    job: JobRow
    #: State and configuration of each trial. None if the job changed while they were read.
    trials: dict[str, tuple[TrialState, Config]] | None


def numbered_events(database: Database, job: str, *, until: int | None = None) -> Iterator[tuple[int, Event]]:
    """Yield the events of a job with their numbers, in order.

    The events are read page by page, because with SQLite's rollback journal no process can commit during a read.

    Args:
        until: Number of the last event to yield. None means the newest.
    """
    e, last = events.c, 0
    page = select(e.seq, e.body).where(e.job == job).order_by(e.seq).limit(EVENTS_PAGE)
    if until is not None:
        page = page.where(e.seq <= until)
    while True:
        with database.read() as db:
            rows = db.execute(page.where(e.seq > last)).all()
        if not rows:
            return
        for row in rows:
            yield row.seq, decode(row.body)
        last = rows[-1].seq


def rows_of(database: Database, job: str, project: str) -> RecordedRows:
    """Return the rows of a job and its trials, consistent with the job's newest event.

    On PostgreSQL, each query sees all commits before it, so the rows could be of different times. Therefore the number of the newest
    event is read before and after the rows. If it has changed, the rows are read again, up to `TRIES` times.

    Raises:
        NotFound: The project has no such job.
    """
    t = trials.c
    for _ in range(TRIES):
        with database.read() as db:
            before, row = jobs.newest_event(db, job), jobs.get(db, job, project)
            query = select(t.trial, t.state, t.config).where(t.job == job).order_by(t.number)
            trials_now = {name: (state, json.loads(config)) for name, state, config in db.execute(query)}
            if jobs.newest_event(db, job) == before:
                return RecordedRows(before, row, trials_now)
    return RecordedRows(before, row, None)


def incomplete_sources(db: Connection, job: str, spec: JobSpec) -> list[str]:
    """Return the sources (earlier jobs from which the job learned) whose events are not complete in this database.

    For each source, a mark (`warm_starts.Mark`) records the last event from which the job learned. A source is returned if its mark is
    missing, or if the database lacks the event of the mark.
    """
    counted = {mark.source: mark.until_seq for mark in marks(db, job)}
    return [
        source
        for source in spec.warm_start_jobs
        if source not in counted or jobs.newest_event(db, source) < counted[source]
    ]


def trial_up_to(
    db: Connection, job: str, trial: str, step: int, spec: JobSpec
) -> tuple[Config, Inherited] | None:
    """Return a trial's configuration and its progress up to a step, in the form in which a warm start continues it.

    Return None if the job has no such trial, or the trial has no report with a metric up to that step.

    Args:
        job: The earlier job.
        trial: The trial of that job.
        step: The last step to include.
        spec: The spec of the job that continues the trial. The violation of each report is computed with its constraints.
    """
    r, t = reports.c, trials.c
    config = db.execute(select(t.config).where(t.job == job, t.trial == trial)).scalar()
    counts = (r.job == job) & (r.trial == trial) & (r.step <= step) & r.value.is_not(None)
    rows = db.execute(select(r.step, r.value, r.duration_ns, r.metrics).where(counts).order_by(r.step)).all()
    if config is None or not rows:
        return None
    reports_up_to = ((row.step, row.value, spec.violation(json.loads(row.metrics))) for row in rows)
    return json.loads(config), Inherited.of_reports(job, trial, reports_up_to, rows[-1].duration_ns)
