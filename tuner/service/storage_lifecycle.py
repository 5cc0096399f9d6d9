"""Measure stored files, and remove files according to a job's retention policy or a user's request.

A removal has two parts. One transaction checks that nothing needs the files, deletes their records, and orders the
removal with an entry in the audit log. From then on nothing lists the files. Afterwards the files are removed from
the storage, manifests first. The order stays in the database until the last file is removed, so a service that is killed, or
an error of the storage, only delays the removal.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tuner.checkpoints.checkpoints import remove_trial_files
from tuner.checkpoints.storage import Storage, explained
from tuner.database.database import Connection
from tuner.domain.errors import Conflict
from tuner.domain.job import FINAL, JobSpec
from tuner.domain.money import Money
from tuner.domain.retention import Retain, RetentionPolicy, parse_retention
from tuner.domain.time import NS, Instant
from tuner.domain.units import GB
from tuner.service import audit_log
from tuner.service.bootstrap import Service
from tuner.service.catalogue import storage_price
from tuner.service.leading import Term
from tuner.service.periodic import PeriodicService
from tuner.service.spend import storage_cost
from tuner.store import jobs, stored_files
from tuner.store.jobs import JobRow
from tuner.store.spend import gb_months
from tuner.store.stored_files import EndedJob, Removal

log = logging.getLogger("tuner.lifecycle")

EVERY_S = 60.0
MEASURE_NS = 15 * 60 * NS  # how often the files of a running job are measured
LATER_NS = 600 * NS  # how long to wait before checking a job again if its files are due but still needed
JOBS_A_QUERY = 10_000  # SQLite allows 32,766 variables in a statement, and a query may name each job twice
AT_ONCE = 200  # one pass measures at most this many jobs, and reads this many orders of removals at a time
REMOVING_NS = 300 * NS  # a pass that has removed files for this long begins no other removal
REFUSALS = 3  # after this many errors of the storage, a pass gives up
# A clock that is set wrongly must not make files due. Therefore no file is due until the clock has run for `STEADY_NS` without a jump of more
# than `JUMP_NS`.
STEADY_NS = 600 * NS
JUMP_NS = 60 * NS


class SteadyClock:
    """Check whether the wall clock has kept pace with the monotonic clock, without a jump, for the last `STEADY_NS` nanoseconds."""

    def __init__(
        self, now: Callable[[], Instant], monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._now, self._monotonic_ns = now, monotonic_ns
        self._steady_since = monotonic_ns()
        self._difference = now() - self._steady_since

    def is_steady(self) -> bool:
        elapsed = self._monotonic_ns()
        difference = self._now() - elapsed
        if abs(difference - self._difference) > JUMP_NS:
            self._steady_since = elapsed
            log.warning(
                "the clock jumped by %d s; files are not removed until the clock has been steady for some minutes",
                (difference - self._difference) // NS,
            )
        self._difference = difference
        return elapsed - self._steady_since >= STEADY_NS


class StorageLifecycle(PeriodicService):
    """Measure the files of jobs, and remove files that are due. Only the leader does so."""

    def __init__(self, service: Service, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__("lifecycle", every_s=EVERY_S)
        self._service = service
        self._monotonic_ns, self._clock = monotonic_ns, SteadyClock(service.now, monotonic_ns)
        # When more files of an ended job become due (None if never), by the job's id and the time of its end. The time can be cached, because
        # the retention policy of a job never changes.
        self._next: dict[tuple[str, Instant], Instant | None] = {}
        self._refused = set[str]()  # the jobs whose last removal failed
        # The jobs whose files could not be measured, each with the number of its last failure. Later failures have higher numbers.
        self._unmeasured: dict[str, int] = {}

    def one_pass(self) -> None:
        """Order the removals that are due, remove files, and measure files. Do nothing if this service does not lead.

        Raises:
            Unavailable: The database does not answer.
            Fenced: Another service became the leader during the pass.
        """
        if (term := self._service.leading.term()) is None:
            return
        if self._clock.is_steady():
            self._order_due(term)
        storage = Storage(self._service.settings.storage)
        self._remove_ordered(term, storage)
        self._measure(term, storage)

    def _order_due(self, term: Term) -> None:
        now = self._service.now()
        with self._service.database.read() as db:
            ended = stored_files.ended_with_files(db, now)
        known, self._next = self._next, {}
        for ended_job in ended:
            key = (ended_job.id, ended_job.ended_at)
            if key not in known or ((due := known[key]) is not None and due <= now):
                self._next[key] = self._order(term, ended_job, now)
            else:
                self._next[key] = known[key]

    def _order(self, term: Term, ended: EndedJob, now: Instant) -> Instant | None:
        """Order the removal of the files that the retention policy does not keep any more.

        Return when to check the job again, or None if never.
        """
        service = self._service.of(ended.project)
        with service.database.read() as db:
            policy = policy_of(service, jobs.get(db, ended.id))
        keeps = policy.keeps(ended.ended_at, now)
        if keeps != "all":
            with service.leading.write(term, "lifecycle.order") as db:
                stored_files.lock_job(db, ended.id)
                row = jobs.get(db, ended.id)
                if row.ended_at != ended.ended_at or stored_files.needed_by(db, ended.id) is not None:
                    return Instant(now + LATER_NS)
                _order_removal(db, service, row, keeps, why="retention")
        return policy.next_change(ended.ended_at, now)

    def _remove_ordered(self, term: Term, storage: Storage) -> None:
        """Remove files that were ordered to be removed, for up to `REMOVING_NS`. Jobs take turns, and the oldest order of a job is first.

        An order that fails becomes the newest one of its job, and is not tried again in this pass. The job is the last one until a removal
        of its files succeeds. So orders that fail each time do not block the others.
        """
        until_ns = self._monotonic_ns() + REMOVING_NS
        failed = set[Removal]()
        while ordered := self._ordered(failed):
            for removal in ordered:
                if self._over.is_set() or self._monotonic_ns() > until_ns:
                    return
                note: Callable[[Connection, Removal], None] = stored_files.removed
                try:
                    remove_trial_files(
                        storage, removal.up_to_attempt, removal.project, removal.job, removal.trial
                    )
                except Exception as error:  # every storage backend raises its own error types
                    failed.add(removal)
                    self._refused.add(removal.job)
                    log.warning(
                        "files of %s of %s are not removed yet: %s",
                        removal.trial,
                        removal.job,
                        explained(error),
                    )
                    note = stored_files.postpone_removal
                else:
                    self._refused.discard(removal.job)
                with self._service.leading.write(term, "lifecycle.removed") as db:
                    note(db, removal)
                if len(failed) >= REFUSALS:
                    return

    def _ordered(self, failed: Collection[Removal]) -> list[Removal]:
        """Return the next orders to remove files, without those that have failed in this pass."""
        with self._service.database.read() as db:
            ordered = stored_files.removals_to_do(db, AT_ONCE, self._refused)
        return [removal for removal in ordered if removal not in failed]

    def _measure(self, term: Term, storage: Storage) -> None:
        """Measure the files of jobs that are due, the jobs whose measurement failed last."""
        # The time before the measurements is recorded, so that a job that ends meanwhile is measured again.
        now = self._service.now()
        limit = AT_ONCE + len(self._unmeasured)
        with self._service.database.read() as db:
            due = stored_files.to_measure(db, now, every_ns=MEASURE_NS, limit=limit)
        self._unmeasured = {
            due_job.job: self._unmeasured[due_job.job] for due_job in due if due_job.job in self._unmeasured
        }
        due.sort(key=lambda due_job: self._unmeasured.get(due_job.job, 0))
        sizes = dict[stored_files.DueMeasurement, int]()
        refusals = 0
        for due_job in due[:AT_ONCE]:
            try:
                sizes[due_job] = storage.used_bytes(due_job.project, due_job.job)
            except Exception as error:  # every storage backend raises its own error types
                log.warning("the files of %s could not be measured: %s", due_job.job, explained(error))
                self._unmeasured[due_job.job] = max(self._unmeasured.values(), default=0) + 1
                refusals += 1
                if refusals >= REFUSALS:
                    break
        if sizes:
            with self._service.leading.write(term, "lifecycle.measured") as db:
                stored_files.record_sizes(db, sizes, now)


def policy_of(service: Service, row: JobRow) -> RetentionPolicy:
    return row.spec.retention or parse_retention(service.settings.retention)


@dataclass(frozen=True, slots=True)
class OrderedRemoval:
    """The result of ordering the removal of a job's files."""

    job: str
    retain: Retain  #: The trials whose files are kept.
    trials: int  #: Number of trials whose files are removed.
    checkpoint_bytes: int  #: Size of the recorded checkpoints of these trials.


def delete_artifacts(service: Service, job: str, retain: Retain = "none") -> OrderedRemoval:
    """Delete the checkpoints and artifacts of a job that has ended.

    Afterwards nothing lists the files. They are removed from the storage within a few minutes.

    Args:
        retain: The trials whose files are kept.

    Raises:
        NotFound: The job does not exist.
        Conflict: The job has not ended or still has a driver or an export, or another job needs its files.
    """
    with service.database.write("artifacts.delete") as db:
        row = jobs.get(db, job, service.project)
        stored_files.lock_job(db, job)
        if (why := stored_files.needed_by(db, job)) is not None:
            raise Conflict(
                f"the files of {job} are needed: {why}; cancel the job that needs them, or wait until it has ended"
            )
        return _order_removal(db, service, row, retain, why="request")


def _order_removal(
    db: Connection, service: Service, row: JobRow, retain: Retain, *, why: str
) -> OrderedRemoval:
    """Order the removal of the files and the exports of all trials that are not retained. The caller must have locked the job.

    The storage may also have files without a record, because a process died after it had stored them. If files with a record are
    removed, or a user requests the removal, the removal is therefore ordered for each trial that has had an attempt, and for each
    export. It does nothing if they have no files.

    Args:
        why: The reason that the audit log shows: `retention` or `request`.
    """
    retained = stored_files.retained_trials(db, {row.id: row.spec}, retain)
    if retained is None:
        return OrderedRemoval(row.id, retain, 0, 0)
    kept = retained[row.id]
    gone = stored_files.trials_with_files(db, row.id) - kept
    exported = stored_files.exports_with_files(db, row.id)
    gone_exports = [export for export, trial in exported.items() if trial not in kept]
    size = stored_files.checkpoint_bytes(db, row.id, gone)
    if gone or gone_exports or why == "request":
        now = service.now()
        stored_files.order_removal(db, row.id, row.project, now, kept=kept, exported=gone_exports)
    if gone or gone_exports:
        facts = {"why": why, "retain": retain, "trials": len(gone), "checkpoint_bytes": size}
        audit_log.note(db, service, audit_log.REMOVAL, row.id, after=facts)
    return OrderedRemoval(row.id, retain, len(gone), size)


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The files of one job in the storage."""

    job: str
    name: str
    state: str
    size_bytes: int  #: Size of the files when they were last measured.
    measured_at: Instant
    usd_per_month: Money | None  #: None if the price is not known.
    policy: RetentionPolicy
    needed_by: str | None  #: Why the files are needed. None if they are not.
    #: The trials whose files the job keeps now; the files of its other trials are due. None if the job has not ended.
    keeps: Retain | None
    due_trials: int  #: Number of the trials whose files are due. Their files may be deleted unless the job's files are needed.
    next_change: Instant | None  #: When more of the job's files become due. None if never.
    storage_gb_months: float  #: Size of the files times the time for which they were stored until now.
    storage_usd: Money | None  #: Cost of storing the files until now. None if the price is not known.

    @property
    def keep_for_seconds(self) -> float | None:
        return None if self.policy.for_ns is None else self.policy.for_ns / NS


@dataclass(frozen=True, slots=True)
class StorageView:
    """The files that a project's jobs have in the storage. The job with the most bytes comes first."""

    items: list[StoredJob]
    size_bytes: int
    usd_per_gb_month: Money | None
    usd_per_month: Money | None


def storage(service: Service, job: str | None = None) -> StorageView:
    """Return the files of the project's jobs, as they were last measured.

    Args:
        job: Return only the files of this job, even if all of them were deleted. None means all jobs that have files.

    Raises:
        NotFound: The job does not exist.
    """
    price, now = storage_price(service.settings), service.now()
    which = stored_files.stored(service.project, job)
    with service.database.read() as db:
        if job is not None:
            jobs.get(db, job, service.project)
        sizes, needed = stored_files.present_sizes(db, which), stored_files.reasons_to_keep(db, which)
        byte_ns: dict[str, int] = {}
        for span in stored_files.spans(db, service.project, Instant(0), now, job):
            stored_ns = min(span.until or now, now) - span.since
            byte_ns[span.job] = byte_ns.get(span.job, 0) + span.size_bytes * stored_ns
        rows, keeps_of = jobs.selected(db, which), dict[str, Retain]()
        ended_specs: dict[Retain, dict[str, JobSpec]] = {}
        for row in rows:
            if row.ended_at is not None and row.state in FINAL:
                keeps_of[row.id] = policy_of(service, row).keeps(row.ended_at, now)
                ended_specs.setdefault(keeps_of[row.id], {})[row.id] = row.spec
        due = _due_trials(db, ended_specs)
        items = []
        for row in rows:
            (size, measured_at), byte_time = sizes[row.id], byte_ns.get(row.id, 0)
            policy, ended = policy_of(service, row), row.ended_at if row.state in FINAL else None
            items.append(
                StoredJob(
                    row.id,
                    row.spec.name,
                    row.state,
                    size,
                    measured_at,
                    monthly(price, size),
                    policy,
                    needed.get(row.id),
                    keeps_of.get(row.id),
                    due.get(row.id, 0),
                    None if ended is None else policy.next_change(ended, now),
                    gb_months(byte_time),
                    storage_cost(price, byte_time),
                )
            )
    items.sort(key=lambda item: (-item.size_bytes, item.job))
    total = sum(item.size_bytes for item in items)
    return StorageView(items, total, price, monthly(price, total))


def _due_trials(db: Connection, specs: Mapping[Retain, Mapping[str, JobSpec]]) -> dict[str, int]:
    """Return the number of trials of each job that have recorded files or exports with files and are not retained.

    Args:
        specs: The jobs that have ended, by what they keep now and by id.
    """
    due = dict[str, int]()
    for keeps, jobs_of in specs.items():
        names = list(jobs_of)
        for first in range(0, len(names), JOBS_A_QUERY):
            chosen = {job: jobs_of[job] for job in names[first : first + JOBS_A_QUERY]}
            kept = stored_files.retained_trials(db, chosen, keeps)
            if kept is not None:
                stored = stored_files.trials_with_files_or_exports(db, chosen)
                due |= {job: len(stored[job] - kept[job]) for job in chosen}
    return due


def monthly(price: Money | None, size_bytes: int) -> Money | None:
    """Return the cost of storing this many bytes for a month, or None if the price (of 10^9 bytes for a month) is not known."""
    return None if price is None else Money(round(price.micro_usd * size_bytes / GB))
