"""The journal of a job in SQL. Implements `tuner.driver.ports.Journal`, with one transaction per turn of the run loop."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from sqlalchemy import BindParameter, Connection, bindparam, delete, func, insert, select, update

from tuner.database.codec import encode, finite, metrics_json, stored_name
from tuner.database.database import Database
from tuner.database.prepared import PreparedStatement
from tuner.database.tables import attempts, checkpoints, events, reports, same_step, trials
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind
from tuner.domain.events import Event
from tuner.domain.ids import trial_number
from tuner.domain.job import BUDGET_LIMITS, JobSpec, JobState, StopReason
from tuner.domain.ledger import Account, Allowance, AssignedAt, lost_of
from tuner.domain.money import FREE, Cost, Money
from tuner.domain.records import DRIVER_ENDED, AttemptRow, CheckpointRow, EntryPlace, OpenHold, ReportRow
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.domain.usage import Usage
from tuner.ledger import budget_waits, ledger, shared_budgets
from tuner.store import attempt_rows, jobs, launches
from tuner.store.attempt_rows import attempt_row, costs_text, values_of
from tuner.store.job_record import numbered_events
from tuner.store.pareto_front import ParetoFront

# The statements of one turn of the run loop. Parameters named `of_...` are compared with columns. All others set the value of a column.
_OF_JOB: BindParameter[str] = bindparam("of_job")
_OF_TRIAL: BindParameter[str] = bindparam("of_trial")
_OF_ATTEMPT: BindParameter[int] = bindparam("of_attempt")
_OF_STEP: BindParameter[int] = bindparam("of_step")
_T, _R, _C = trials.c, reports.c, checkpoints.c
_INSERT_EVENT, _INSERT_TRIAL, _INSERT_ATTEMPT, _INSERT_REPORT, _INSERT_CHECKPOINT = (
    PreparedStatement(insert(table)) for table in (events, trials, attempts, reports, checkpoints)
)
_UPDATE_TRIAL = PreparedStatement(update(trials).where(_T.job == _OF_JOB, _T.trial == _OF_TRIAL))
_UPDATE_ATTEMPT = PreparedStatement(
    update(attempts).where(
        attempts.c.job == _OF_JOB, attempts.c.trial == _OF_TRIAL, attempts.c.attempt == _OF_ATTEMPT
    )
)
_REACHED = PreparedStatement(
    select(_R.usd, _R.gpu_ms, _R.duration_ns).where(
        _R.job == _OF_JOB, _R.trial == _OF_TRIAL, _R.step == _OF_STEP
    )
)
# The JSON is ASCII, so its characters are bytes.
_METRICS_BYTES = PreparedStatement(
    select(func.coalesce(func.sum(func.length(_R.metrics)), 0)).where(_R.job == _OF_JOB)
)
_UPDATE_CHECKPOINT = PreparedStatement(
    update(checkpoints).where(_C.job == _OF_JOB, _C.trial == _OF_TRIAL, _C.step == _OF_STEP)
)
_DELETE_CHECKPOINT = PreparedStatement(
    delete(checkpoints).where(_C.job == _OF_JOB, _C.trial == _OF_TRIAL, _C.step == _OF_STEP)
)
_SAVED_BY = PreparedStatement(
    select(_C.attempt).where(_C.job == _OF_JOB, _C.trial == _OF_TRIAL, _C.step == _OF_STEP)
)
_METRICS_OF_CHECKPOINTS = PreparedStatement(
    select(_R.value, _C.step)
    .join(checkpoints, same_step(checkpoints, reports))
    .where(_R.job == _OF_JOB, _R.trial == _OF_TRIAL, _R.value.is_not(None), _R.violation == 0)
)


@dataclass
class _Recorded:
    """A cache of the rows of a job that a turn of the run loop needs. It stays valid, because only the job's driver changes these rows."""

    trials: set[str]
    steps: dict[str, int]  #: The highest reported step of each trial.
    attempts: dict[str, int]  #: The newest attempt of each trial.
    checkpoints: defaultdict[str, set[int]]  #: The steps of the checkpoints of each trial.
    pareto_front: ParetoFront

    @classmethod
    def load(cls, db: Connection, job: str, project: str, spec: JobSpec) -> Self:
        a = attempts.c
        newest = select(a.trial, func.max(a.attempt)).where(a.job == job).group_by(a.trial)
        saved = defaultdict[str, set[int]](set)
        for trial, step in db.execute(select(_C.trial, _C.step).where(_C.job == job)):
            saved[trial].add(step)
        steps = {trial: step for trial, step in db.execute(select(_T.trial, _T.steps).where(_T.job == job))}
        return cls(
            set(steps),
            steps,
            {trial: attempt for trial, attempt in db.execute(newest)},
            saved,
            ParetoFront.load(db, job, project, spec),
        )


class SqlJournal:
    """The journal of one job, for the driver that was started as launch `epoch`. Use it from one thread only.

    A transaction raises Fenced if the job has a newer launch, or if this launch has ended. Whenever the driver reads the
    job's budget, it must set the attribute `budget_version` to the version that it has read, so that `SqlTx.put_job` notices a later
    change of the budget.
    """

    def __init__(self, database: Database, job: str, project: str, epoch: int, now: Instant) -> None:
        self._database, self._job, self._project, self._epoch = database, job, project, epoch
        with database.read() as db:
            row = jobs.get(db, job)
            self._ran_ns, self._spec = row.running_ns(now), row.spec
            self.budget_version = row.budget_version
            self._seq = jobs.newest_event(db, job)
        self._recorded: _Recorded | None = None  # None before the first transaction and after a failed one
        # The size of the metrics of all reports, as JSON. None before it is first asked for. It is not a part of `_recorded`, because
        # counting it takes seconds for a large job, which is too long for a transaction that writes.
        self._metrics_bytes: int | None = None

    @contextmanager
    def transaction(self) -> Iterator["SqlTx"]:
        with self._database.write("driver.turn") as db:
            launches.check(db, self._job, self._epoch)
            recorded, self._recorded = self._recorded, None
            if recorded is None:
                recorded = _Recorded.load(db, self._job, self._project, self._spec)
            of_job = (self._job, self._project, self._epoch)
            tx = SqlTx(db, *of_job, self._seq, self.budget_version, spec=self._spec, recorded=recorded)
            yield tx
            tx.flush()
        self._seq, self._recorded = tx.seq, recorded
        if self._metrics_bytes is not None:
            self._metrics_bytes += tx.metrics_bytes

    def events(self) -> Iterator[Event]:
        """Yield all events of the job in order."""
        return (event for _, event in numbered_events(self._database, self._job))

    def open_holds(self) -> list[OpenHold]:
        with self._database.read() as db:
            return ledger.open_holds(db, self._job)

    def attempts(self) -> list[AttemptRow]:
        a = attempts.c
        newest = (
            select(a.trial, func.max(a.attempt).label("attempt")).where(a.job == self._job).group_by(a.trial)
        )
        last = newest.subquery()
        query = select(attempts).join(last, (a.trial == last.c.trial) & (a.attempt == last.c.attempt))
        with self._database.read() as db:
            return [attempt_row(dict(row._mapping)) for row in db.execute(query.where(a.job == self._job))]

    def newest_checkpoints(self) -> dict[str, int]:
        c = checkpoints.c
        query = select(c.trial, func.max(c.step)).where(c.job == self._job).group_by(c.trial)
        with self._database.read() as db:
            return {trial: step for trial, step in db.execute(query)}

    def best_checkpoint(self, trial: str) -> tuple[float, int] | None:
        """Return the metric and step of the trial's checkpoint with the best metric, or None if no checkpoint has a metric."""
        with self._database.read() as db:
            return _best_checkpoint(db, self._job, trial, self._spec)

    def saved_by(self, trial: str, step: int) -> int | None:
        """Return the number of the attempt that saved the trial's checkpoint of a step, or None if the step has no checkpoint."""
        with self._database.read() as db:
            row = _SAVED_BY.first(db, {"of_job": self._job, "of_trial": trial, "of_step": step})
        return None if row is None else row[0]

    def metrics_bytes(self) -> int:
        """Return the size of the metrics that the job has reported, as JSON.

        The first call reads it from the reports, which takes seconds for a large job. Later calls add what this driver has recorded.
        """
        if self._metrics_bytes is None:
            with self._database.read() as db:
                row = _METRICS_BYTES.first(db, {"of_job": self._job})
            assert row is not None  # a sum always has a row
            self._metrics_bytes = int(row[0])
        return self._metrics_bytes

    def running_ns(self) -> int:
        return self._ran_ns

    def account(self) -> Account:
        with self._database.read() as db:
            return ledger.account(db, self._job)


def _best_checkpoint(db: Connection, job: str, trial: str, spec: JobSpec) -> tuple[float, int] | None:
    """Return the metric and step of the trial's checkpoint with the best metric, or None if no checkpoint has a metric.

    Only steps with a feasible report count. If the job has proxies, only the steps of the trial's highest stage count (the last steps with
    the same proxy values). If metrics are equal, the lowest step wins.
    """
    rows: list[tuple[float, int]] = _METRICS_OF_CHECKPOINTS.all(db, {"of_job": job, "of_trial": trial})
    return max(rows, key=lambda row: (*spec.rank(row[1], row[0]), -row[1]), default=None)


class SqlTx:
    """Records one turn of the run loop in one transaction. The methods are described in `tuner.driver.ports.JournalTx`.

    Events and the rows of trials are collected, and `flush` writes them at the end of the turn.
    """

    def __init__(
        self,
        db: Connection,
        job: str,
        project: str,
        epoch: int,
        seq: int,
        budget_version: int,
        *,
        spec: JobSpec,
        recorded: _Recorded,
    ) -> None:
        self._db, self._job, self._project, self._epoch, self.seq = db, job, project, epoch, seq
        self._budget_version, self._spec, self._recorded = budget_version, spec, recorded
        self.metrics_bytes = 0  # the size of the metrics of this turn's reports, as JSON
        self._events: list[dict[str, object]] = []
        self._trials: dict[str, dict[str, object]] = {}  # the new values of trials, by trial
        # The account as this transaction last read or changed it, and whether it is locked against changes by other transactions.
        self._account: Account | None = None
        self._is_locked = False

    def flush(self) -> None:
        """Write the events and trials of this turn."""
        _INSERT_EVENT.run_all(self._db, self._events)
        for trial, values in self._trials.items():
            if trial in self._recorded.trials:
                _UPDATE_TRIAL.run(self._db, {**values, "of_job": self._job, "of_trial": trial})
            elif "state" in values:  # a trial that only reports gets no row before it has a state
                row = {
                    "job": self._job,
                    "project": self._project,
                    "trial": trial,
                    "number": trial_number(trial),
                }
                _INSERT_TRIAL.run(self._db, {"steps": 0, "value": None, "violation": None, **row, **values})
                self._recorded.trials.add(trial)

    def append(self, event: Event) -> int:
        self.seq += 1
        row = {"job": self._job, "seq": self.seq, "at": event.at, "type": stored_name(type(event))}
        self._events.append({**row, "body": encode(event), "project": self._project})
        return self.seq

    def hold(self, hold: OpenHold) -> bool:
        placed = ledger.place(self._db, self._project, self._job, hold)
        self._account, self._is_locked = placed or self._account, self._is_locked or placed is not None
        return placed is not None

    def settle(self, hold_id: str, used: Mapping[CostKind, Cost], *, at: Instant) -> None:
        self._account = ledger.settle(self._db, self._project, self._job, hold_id, used, at)
        self._is_locked = True

    def correct(
        self, correction_id: str, *, trial: str, attempt: int, costs: Mapping[CostKind, Cost], at: Instant
    ) -> None:
        where = EntryPlace(correction_id, trial, attempt, 0)
        ledger.correct(self._db, self._project, self._job, where, costs, at)

    def account(self) -> Account:
        if self._account is None:
            self._account, self._is_locked = ledger.account(self._db, self._job), False
        return self._account

    def allowance(self, at: Instant, *, freeing: str = "", freed: Cost = FREE) -> Allowance:
        if self._account is None or not self._is_locked:
            self._account = ledger.lock_account(self._db, self._project, self._job)
            self._is_locked = True
        own = self._account.left + freed
        return shared_budgets.allowance(
            self._db, self._project, self._job, at, own, freeing=freeing, freed=freed
        )

    def put_trial(
        self, trial: str, state: TrialState, *, at: Instant, config: Config | None = None, reason: str = ""
    ) -> None:
        values: dict[str, object] = {"state": state, "reason": reason, "seq": self.seq, "updated_at": at}
        if trial not in self._recorded.trials:
            values |= {"created_at": at, "config": json.dumps(config or {})}
        self._trials[trial] = {**self._trials.get(trial, {}), **values}

    def put_attempt(self, attempt: AttemptRow) -> None:
        key = {"job": self._job, "trial": attempt.trial, "attempt": attempt.attempt}
        values = values_of(attempt)
        mine = {f"of_{name}": value for name, value in key.items()}
        is_new = attempt.attempt > self._recorded.attempts.get(attempt.trial, 0)
        if is_new or _UPDATE_ATTEMPT.run(self._db, {**values, **mine}) == 0:
            _INSERT_ATTEMPT.run(self._db, {**key, **values, "project": self._project})
        if is_new:
            self._recorded.attempts[attempt.trial] = attempt.attempt

    def put_usage(self, trial: str, attempt: int, used: Usage) -> None:
        attempt_rows.put(self._db, self._project, (self._job, trial, attempt), used)

    def put_report(self, report: ReportRow) -> bool:
        steps, value = self._recorded.steps.get(report.trial, 0), finite(report.value)
        if report.step <= steps and self.reached(report.trial, report.step) is not None:
            return False
        metrics = metrics_json(report.metrics)
        self.metrics_bytes += len(metrics)
        _INSERT_REPORT.run(
            self._db,
            {
                "job": self._job,
                "project": self._project,
                "trial": report.trial,
                "step": report.step,
                "attempt": report.attempt,
                "at": report.at,
                "value": value,
                "violation": report.violation,
                "metrics": metrics,
                "usd": report.cost.usd.micro_usd,
                "gpu_ms": report.cost.gpu_ms,
                "duration_ns": report.duration_ns,
                # The number of the `Reported` event, which the same transaction appends next.
                "seq": self.seq + 1,
            },
        )
        if value is not None and report.violation == 0:
            self._recorded.pareto_front.note(self._db, report, seq=self.seq + 1)
        if report.step > steps:
            self._recorded.steps[report.trial] = report.step
            new: dict[str, object] = {"steps": report.step, "updated_at": report.at}
            if value is not None:
                new |= {"value": value, "violation": report.violation}
            self._trials[report.trial] = {**self._trials.get(report.trial, {}), **new}
        return True

    def reached(self, trial: str, step: int) -> tuple[Cost, int] | None:
        row = _REACHED.first(self._db, {"of_job": self._job, "of_trial": trial, "of_step": step})
        return None if row is None else (Cost(Money(row[0]), row[1]), row[2])

    def posted(self, trial: str, attempt: int) -> dict[CostKind, Cost]:
        return ledger.posted_by_kind(self._db, self._job, trial, attempt)

    def put_checkpoint(self, checkpoint: CheckpointRow) -> None:
        key = {"job": self._job, "trial": checkpoint.trial, "step": checkpoint.step}
        values = {
            name: getattr(checkpoint, name) for name in ("attempt", "uri", "size_bytes", "seconds", "at")
        }
        recorded = self._recorded.checkpoints[checkpoint.trial]
        if checkpoint.step in recorded:
            mine = {f"of_{name}": value for name, value in key.items()}
            _UPDATE_CHECKPOINT.run(self._db, {**values, **mine})
        else:
            _INSERT_CHECKPOINT.run(self._db, {**key, **values, "project": self._project})
            recorded.add(checkpoint.step)

    def keep_checkpoints(self, trial: str, *, keep: int) -> None:
        steps = sorted(self._recorded.checkpoints[trial], reverse=True)
        best = None
        if len(steps) > keep:
            best = _best_checkpoint(self._db, self._job, trial, self._spec)
        gone = [step for step in steps[keep:] if best is None or step != best[1]]
        mine = {"of_job": self._job, "of_trial": trial}
        _DELETE_CHECKPOINT.run_all(self._db, [{**mine, "of_step": step} for step in gone])
        self._recorded.checkpoints[trial].difference_update(gone)

    def forget_checkpoints(self, trial: str, *, after_step: int) -> None:
        c = checkpoints.c
        self._db.execute(delete(checkpoints).where(c.job == self._job, c.trial == trial, c.step > after_step))
        kept = {step for step in self._recorded.checkpoints[trial] if step <= after_step}
        self._recorded.checkpoints[trial] = kept

    def put_job(
        self,
        state: JobState,
        reason: StopReason | None,
        *,
        at: Instant,
        detail: str = "",
        again_at: Instant | None = None,
        waits_for: str = "",
        requests: int = 0,
    ) -> None:
        """Move the job to another state. Unless the new state is `running`, end this launch, so that the driver can write nothing more.

        Order a new launch in each of these cases:

        - A user resumed the job while it was pausing.
        - The job stopped because of a limit, its budget has changed since the driver last read it, and no user has asked to
          pause or cancel it.
        - The job stopped because of a limit or because its search space is exhausted, a user has made a request about a trial
          since the driver last read the requests, and no user has asked to pause or cancel the job.
        - The job resumes by itself at `again_at`, and no user has asked to pause or cancel it.

        Args:
            again_at: When a paused job resumes by itself. None means that it does not resume at a set time.
            waits_for: The shared budget that a paused job waits for. It is ignored if a user has asked to pause or
                cancel the job.
            requests: Number of the newest request about a trial that the driver has handled.
        """
        control = jobs.control(self._db, self._job)
        resumed = state == "paused" and reason is None and again_at is None and control.request == "resume"
        unheard = (control.budget_version != self._budget_version and reason in BUDGET_LIMITS) or (
            control.newest_request > requests and reason in (*BUDGET_LIMITS, "space_exhausted")
        )
        unheard = unheard and control.request not in ("pause", "cancel")
        if control.request in ("pause", "cancel") or state != "paused":
            detail, waits_for = "" if waits_for else detail, ""
        if unheard and state == "failed":
            state = "paused"  # because a failed job cannot run again
        jobs.move(self._db, self._job, state, reason, at=at, detail=detail)
        if state != "running":
            launches.end(self._db, self._job, self._epoch)
        budget_waits.note(self._db, self._project, self._job, waits_for, at)
        if resumed or unheard:
            jobs.revive(self._db, self._job)
            launches.want(self._db, self._job, self._project, at)
        if again_at is not None and control.request not in ("pause", "cancel"):
            launches.want(self._db, self._job, self._project, at, not_before=again_at)

    def set_limit(self, budget: Budget) -> None:
        self._account = None
        jobs.set_budget(self._db, self._job, budget)


def nodes_assigned_at(db: Connection, job: str) -> AssignedAt:
    """Return when each attempt that has not ended got its machine, by (trial, attempt).

    The time is None for an attempt that still waits for a machine.
    """
    a = attempts.c
    query = select(a.trial, a.attempt, a.landed_at).where(a.job == job, a.ended_at.is_(None))
    return {(trial, attempt): at for trial, attempt, at in db.execute(query)}


def close_open(db: Connection, project: str, job: str, *, died_at: Instant, at: Instant) -> None:
    """Settle the open holds of a job that will not get another driver, and end its attempts and trials (see `end_open`).

    For each open hold, the time up to `died_at` is posted as lost, and the rest is released.

    Args:
        died_at: When the driver's workers are known to have stopped.
        at: The current time, which is recorded as the time of the entries and the ends.
    """
    assigned_at = nodes_assigned_at(db, job)
    ledger.settle_open(db, project, job, lambda hold: lost_of(hold, assigned_at, died_at, at), at)
    end_open(db, job, at)


def end_open(db: Connection, job: str, at: Instant) -> None:
    """End the attempts and trials of a job that will not get another driver.

    Attempts that have not ended become `lost`. Running and pending trials become `stopped`.
    """
    a, t, why = attempts.c, trials.c, DRIVER_ENDED
    open_ones = (a.job == job) & a.ended_at.is_(None)
    for trial, attempt in db.execute(select(a.trial, a.attempt).where(open_ones)).all():
        ended = {"ended_at": at, "end": "lost", "reason": why, "cause": "driver"}
        posted = ledger.posted_by_kind(db, job, trial, attempt)
        mine = (a.job == job) & (a.trial == trial) & (a.attempt == attempt)
        db.execute(update(attempts).where(mine).values(**ended, costs=costs_text(posted)))
    live = (t.job == job) & t.state.in_(("running", "pending"))
    db.execute(update(trials).where(live).values(state="stopped", reason=why, updated_at=at))
