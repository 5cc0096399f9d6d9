"""Replay a job's recorded events.

This checks that the present code makes the recorded decisions, or shows where another scheduler or sampler would first decide differently.
"""

import time
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import BoundedSemaphore
from typing import Any, get_args

from tuner.domain.errors import Fault, Invalid, Unavailable
from tuner.domain.events import Inherited, Launched
from tuner.domain.job import Algorithm, JobSpec, SamplerName, SchedulerName
from tuner.domain.space import Config
from tuner.domain.text import did_you_mean
from tuner.driver.replay import Difference as Difference
from tuner.driver.replay import Fold, JobRecord, Replayed, Samplers, Unchecked, check, compare
from tuner.service.bootstrap import Service
from tuner.settings import release
from tuner.store import job_record, launches
from tuner.store.job_record import RecordedRows
from tuner.store.jobs import JobRow
from tuner.store.warm_starts import past_trials
from tuner.tuning.samplers import sampler_for

# In a large job, the sampler needs minutes to repeat all its suggestions. A replay therefore ends after this many seconds and
# names what it did not check. Clients wait 90 s.
LIMIT_S = 60.0
# A replay keeps one processor busy and shares the interpreter's lock with all requests, so only one runs at a time. Another
# request waits at most this many seconds.
WAIT_S = 20.0
_ROOM = BoundedSemaphore(1)


@dataclass(frozen=True, slots=True)
class ReplayView:
    """The result of replaying a job."""

    job: JobRow
    replayed: Replayed
    #: The scheduler and the sampler whose decisions were compared with the job's. None if the decisions were compared with
    #: the record instead.
    instead: Algorithm | None


def replay(
    service: Service, job: str, *, scheduler: str | None = None, sampler: str | None = None
) -> ReplayView:
    """Replay a job's events through the code that makes a job's decisions, and through the job's sampler.

    If neither `scheduler` nor `sampler` is given, compare the replayed decisions with the recorded ones. Otherwise compare the job's decisions
    with those that the given scheduler or sampler would make in the same job, up to the first difference.

    Raises:
        NotFound: The job does not exist.
        Invalid: A job file does not allow this scheduler or sampler.
        Unavailable: Another replay has not ended within `WAIT_S`.
    """
    instead = _policy(scheduler=scheduler, sampler=sampler)
    rows = job_record.rows_of(service.database, job, service.project)
    if not _ROOM.acquire(timeout=WAIT_S):
        raise Unavailable("another job is being replayed; try again in a minute")
    try:
        return _replay(service, rows, instead)
    finally:
        _ROOM.release()


def _policy(**names: str | None) -> dict[str, Any]:
    """Check the names of a scheduler and a sampler. Return those that are not None, by the name of their field in `Algorithm`.

    Raises:
        Invalid: A name is not known. The error contains the most similar known name.
    """
    known = {"scheduler": get_args(SchedulerName), "sampler": get_args(SamplerName)}
    given = {field: name for field, name in names.items() if name is not None}
    faults = []
    for field, name in given.items():
        if name not in known[field]:
            hint = did_you_mean(name, known[field])
            faults.append(Fault(field, f"{name!r} is not one of {', '.join(known[field])}{hint}"))
    if faults:
        raise Invalid(*faults)
    return given


def _replay(service: Service, rows: RecordedRows, instead: dict[str, Any]) -> ReplayView:
    row, database = rows.job, service.database
    deadline = time.monotonic() + LIMIT_S
    record = JobRecord(
        list(job_record.numbered_events(database, row.id, until=rows.until)),
        rows.trials,
        (row.state, row.stop_reason),
    )
    with database.read() as db:
        gone = job_record.incomplete_sources(db, row.id, row.spec)
        launch = launches.get(db, row.id)
    history = cache(partial(past_trials, database, row.id, row.spec))
    size = row.spec.resources
    rate = row.offer.rate(size)

    def samplers(spec: JobSpec) -> Samplers | None:
        return None if gone else lambda rules: sampler_for(spec, history(rules=rules), rules)

    def may_continue() -> bool:
        return time.monotonic() < deadline

    if instead:
        other = replace(row.spec, algorithm=replace(row.spec.algorithm, **instead))
        folds = [
            Fold(
                spec,
                samplers(spec),
                record.events,
                rate=rate,
                concurrency=row.concurrency,
            )
            for spec in (row.spec, other)
        ]
        replay_result = compare(record, *folds, may_continue=may_continue)
        return ReplayView(row, _with(replay_result, _history_gone(gone)), other.algorithm)
    replay_result = check(
        record,
        row.spec,
        samplers(row.spec),
        rate=rate,
        concurrency=row.concurrency,
        source=partial(_source, service, row.spec),
        may_continue=may_continue,
    )
    version = None if launch is None else launch.tuner_version
    notes = _history_gone(gone)
    if replay_result.difference is not None and version not in (None, release()):
        why = f"the newest driver ran tuner {version}, and this is {release()}, which may decide differently"
        notes.append(Unchecked("decisions of another version", why))
    if replay_result.difference is not None and not _records_concurrency(record):
        why = (
            f"an older release did not record this number; the replay assumes {row.concurrency}, the job's present number, although a "
            "quota may have lowered it"
        )
        notes.append(Unchecked("how many trials could run at once", why))
    return ReplayView(row, _with(replay_result, notes), None)


def _records_concurrency(record: JobRecord) -> bool:
    launched = (event for _, event in record.events if isinstance(event, Launched))
    return all(event.concurrency is not None for event in launched)


def _source(service: Service, spec: JobSpec, inherited: Inherited) -> tuple[Config, Inherited] | None:
    with service.database.read() as db:
        return job_record.trial_up_to(db, inherited.job, inherited.trial, inherited.step, spec)


def _with(replayed: Replayed, notes: list[Unchecked]) -> Replayed:
    return replace(replayed, unchecked=(*replayed.unchecked, *notes))


def _history_gone(gone: list[str]) -> list[Unchecked]:
    if not gone:
        return []
    why = f"the sampler learned from {', '.join(gone)}, whose records are incomplete now"
    return [Unchecked("the answers of the sampler", why)]
