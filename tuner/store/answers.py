"""Queries that answer questions about a job's trials, reports, checkpoints and spend.

Totals are computed from the recorded rows at each query. No total is stored.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from sqlalchemy import BindParameter, ColumnElement, Connection, Row, Select, bindparam, func, select

from tuner.database.tables import attempts, checkpoints, reports, same_attempt, same_step, same_trial, trials
from tuner.domain.cost import CostKind
from tuner.domain.money import Cost, Money, Price
from tuner.domain.objective import Mode
from tuner.domain.records import INHERITED
from tuner.domain.space import Config
from tuner.domain.time import NS, Instant
from tuner.domain.trial import TrialState
from tuner.ledger.readable import entries
from tuner.store import jobs
from tuner.store.pareto_front import best_of

Sort = Literal["number", "metric", "cost_usd", "steps"]
_JOBS: Any = bindparam("jobs", expanding=True)
_STATES = (
    select(trials.c.job, trials.c.state, func.count())
    .where(trials.c.job.in_(_JOBS))
    .group_by(trials.c.job, trials.c.state)
)
_STEPS = select(reports.c.job, func.count()).where(reports.c.job.in_(_JOBS)).group_by(reports.c.job)


@dataclass(frozen=True, slots=True)
class CostedReport:
    """The report of a trial at a step. Cost and duration are those of training the configuration from its first step to this step."""

    trial: str
    step: int
    value: float | None
    cost: Cost
    duration_ns: int
    at: Instant
    seq: int
    metrics: Mapping[str, Any]
    config: Config = field(default_factory=dict)
    checkpoint_uri: str | None = None
    violation: float | None = 0.0  #: See `ReportRow`. The report is feasible if it is 0.

    @property
    def duration_seconds(self) -> float:
        return round(self.duration_ns / NS, 6)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial with its cost, and how many attempts and preemptions it has had."""

    trial: str
    number: int
    config: Config
    state: TrialState
    reason: str
    steps: int
    value: float | None  #: The metric of the newest step that has a metric.
    best: float | None  #: The best metric of all feasible steps.
    violation: float | None  #: The violation of the constraints at the newest step that has a metric.
    cost: Cost
    attempts: int
    preemptions: int
    seq: int
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
    """A durable checkpoint of a trial."""

    step: int
    attempt: int
    uri: str
    size_bytes: int
    at: Instant
    value: float | None  #: The objective's metric at this step. None if the step reported none.
    violation: float | None  #: The violation of the constraints at this step. None if it is not known.


@dataclass(frozen=True, slots=True)
class After:
    """The position in a listing of trials after which a page begins."""

    key: float
    number: int


@dataclass(frozen=True, slots=True)
class ChangesSince:
    """The changes of a job after an event: new reports, and the changed trials in their current state."""

    seq: int  #: Number of the newest event that is included.
    reports: list[CostedReport]
    trials: list[TrialRow]
    more: bool = False  #: Whether later events may have been left out because of the limit.


def last_reports(db: Connection, job: str) -> list[Row[Any]]:
    """Return each trial's report with the highest step, as rows of the table `reports`."""
    r = reports.c
    last = select(r.trial, func.max(r.step).label("step")).where(r.job == job).group_by(r.trial).subquery()
    same = (r.trial == last.c.trial) & (r.step == last.c.step)
    return list(db.execute(select(reports).join(last, same).where(r.job == job)))


def setup_of_trials(db: Connection, job: str) -> dict[str, int]:
    """Return the micro-dollars of the setup that the costs in a trial's reports contain, by trial. Trials without such a setup are left out."""
    r, e = reports.c, entries.c
    first = select(r.trial, func.min(r.step).label("step")).where(r.job == job).group_by(r.trial).subquery()
    query = (
        select(r.trial, r.usd, func.sum(e.usd))
        .join(first, (r.trial == first.c.trial) & (r.step == first.c.step))
        .join(entries, same_attempt(entries, reports) & (e.kind == "setup"))
        .where(r.job == job)
        .group_by(r.trial, r.usd)
    )
    return {trial: min(int(usd), int(setup)) for trial, usd, setup in db.execute(query)}


def inherited_by_trials(db: Connection, job: str) -> dict[str, int]:
    """Return what earlier jobs paid for the steps that trials continue from, in micro-dollars by trial."""
    r = reports.c
    query = select(r.trial, func.max(r.usd)).where(r.job == job, r.attempt == INHERITED).group_by(r.trial)
    return {trial: int(usd) for trial, usd in db.execute(query)}


def curve(db: Connection, job: str, trial: str) -> list[CostedReport]:
    """Return all reports of a trial by step, including those without a metric."""
    r = reports.c
    rows = db.execute(select(reports).where(r.job == job, r.trial == trial).order_by(r.step))
    return [step_report(row) for row in rows]


def checkpoints_of(db: Connection, job: str, trial: str) -> list[DurableCheckpoint]:
    """Return the trial's durable checkpoints, in ascending order of steps, each with the objective's metric at its step."""
    c, r = checkpoints.c, reports.c
    query = (
        select(c.step, c.attempt, c.uri, c.size_bytes, c.at, r.value, r.violation)
        .outerjoin(reports, same_step(checkpoints, reports))
        .where(c.job == job, c.trial == trial)
        .order_by(c.step)
    )
    return [DurableCheckpoint(**row._mapping) for row in db.execute(query)]


def page_of_trials(
    db: Connection, job: str, mode: Mode, *, sort: Sort, descending: bool, after: After | None, limit: int
) -> list[TrialRow]:
    """Return one page of a job's trials. If they are sorted by their best metric, trials without a metric come last in either order."""
    given = {} if after is None else {"key": after.key, "number": after.number}
    query = _page_of_trials(mode, sort, descending, after is not None)
    return [_trial(row) for row in db.execute(query, {"of": job, "most": limit, **given})]


@cache
def _page_of_trials(mode: Mode, sort: Sort, descending: bool, goes_on: bool) -> Select[Any]:
    key, t = _sort_key(sort, mode, descending), trials.c
    query = _trial_rows(mode)
    if goes_on:
        place: BindParameter[float] = bindparam("key", type_=key.type)
        beyond = key < place if descending else key > place
        query = query.where(beyond | ((key == place) & (t.number > bindparam("number"))))
    return query.order_by(key.desc() if descending else key, t.number).limit(bindparam("most"))


def sort_key_of(row: TrialRow, sort: Sort, *, descending: bool) -> float:
    """Return the key by which a listing sorts this row.

    It must equal the key by which the database sorts the row, because the next page begins after the key of the last row.
    """
    match sort:
        case "number":
            return row.number
        case "steps":
            return row.steps
        case "cost_usd":
            return row.cost.usd.micro_usd
        case "metric":
            return row.best if row.best is not None else _worst(descending)


def trial(db: Connection, job: str, mode: Mode, name: str) -> TrialRow | None:
    return next(iter(trials_named(db, job, mode, [name])), None)


def state_of(db: Connection, job: str, name: str) -> TrialState | None:
    """Return the state of a trial, or None if the job has no such trial."""
    t = trials.c
    state: TrialState | None = db.execute(select(t.state).where(t.job == job, t.trial == name)).scalar()
    return state


def trials_with(db: Connection, job: str, configs: Sequence[Config]) -> list[str | None]:
    """Return, for each of `configs`, the trial with the lowest number that has this configuration, or None if no trial has it.

    The parameters of each configuration must be in the order of the search space.
    """
    t, texts = trials.c, [json.dumps(config) for config in configs]
    query = select(t.config, t.trial).where(t.job == job, t.config.in_(texts))
    first = {config: trial for config, trial in db.execute(query.order_by(t.number.desc()))}
    return [first.get(text) for text in texts]


def trials_named(db: Connection, job: str, mode: Mode, names: Collection[str]) -> list[TrialRow]:
    return [_trial(row) for row in db.execute(_trials_named(mode), {"of": job, "names": list(names)})]


@cache
def _trials_named(mode: Mode) -> Select[Any]:
    return _trial_rows(mode).where(trials.c.trial.in_(bindparam("names", expanding=True)))


def all_trials(db: Connection, job: str, mode: Mode) -> list[TrialRow]:
    return [_trial(row) for row in db.execute(_trial_rows(mode).order_by(trials.c.number), {"of": job})]


def spent_by_machine(db: Connection, job: str) -> list[tuple[str, str | None, Price, Money]]:
    """Return the job's spend by market, instance type and price.

    The instance type is None if the attempts' machines were not checked. The price of an attempt is its share of the price of its machine,
    not the price of the whole machine.
    """
    e, a = entries.c, attempts.c
    query = (
        select(a.market, a.instance_type, a.price, func.sum(e.usd))
        .join(attempts, same_attempt(attempts, entries))
        .where(e.job == job, e.kind.is_not(None))
        .group_by(a.market, a.instance_type, a.price)
    )
    return [(market, kind, Price(price), Money(int(usd))) for market, kind, price, usd in db.execute(query)]


def bill_by_trial(db: Connection, job: str) -> dict[str, dict[CostKind, Cost]]:
    """Return the bill of each trial: the sums of its `post` and `correct` ledger entries, by trial and cost kind."""
    e = entries.c
    query = (
        select(e.trial, e.kind, func.sum(e.usd), func.sum(e.gpu_ms))
        .where(e.job == job, e.kind.is_not(None))
        .group_by(e.trial, e.kind)
        .order_by(e.trial)
    )
    bill: dict[str, dict[CostKind, Cost]] = {}
    for name, kind, usd, gpu_ms in db.execute(query):
        bill.setdefault(name, {})[kind] = Cost(Money(int(usd)), int(gpu_ms))
    return bill


def states_of(db: Connection, names: Collection[str]) -> dict[str, dict[TrialState, int]]:
    """Return how many trials of each job are in each state."""
    states: dict[str, dict[TrialState, int]] = {name: {} for name in names}
    for job, state, count in db.execute(_STATES, {"jobs": list(names)}):
        states[job][state] = count
    return states


def steps_of(db: Connection, names: Collection[str]) -> dict[str, int]:
    """Return how many steps of each job have been reported."""
    return dict.fromkeys(names, 0) | {job: count for job, count in db.execute(_STEPS, {"jobs": list(names)})}


def has_reported_since(db: Connection, job: str, at: Instant) -> bool:
    r = reports.c
    return db.execute(select(r.step).where(r.job == job, r.at >= at).limit(1)).first() is not None


def changes_after(
    db: Connection, job: str, mode: Mode, seq: int, *, until: int | None = None, limit: int = 500
) -> ChangesSince:
    """Return the reports that a job recorded after event number `seq`, and the trials that changed after it.

    Args:
        until: Number of the last event to consider. None means the newest event.
        limit: How many reports to return at most. More are returned only if they belong to the same event as the last of them.
    """
    r = reports.c
    last = jobs.newest_event(db, job) if until is None else until
    query = select(reports).where(r.job == job).order_by(r.seq, r.step)
    rows = list(db.execute(query.where(r.seq > seq, r.seq <= last).limit(limit)))
    upper, more = last, len(rows) == limit
    if more:  # one event may have several reports, which are returned together
        upper = rows[-1].seq
        rows = [row for row in rows if row.seq < upper] + list(db.execute(query.where(r.seq == upper)))
    changed = db.execute(_changed_trials(mode), {"of": job, "after": seq, "until": upper})
    return ChangesSince(upper, [step_report(row) for row in rows], [_trial(row) for row in changed], more)


@cache
def _changed_trials(mode: Mode) -> Select[Any]:
    t = trials.c
    query = _trial_rows(mode).where(t.seq > bindparam("after"), t.seq <= bindparam("until"))
    return query.order_by(t.seq, t.number)


def step_report(row: Row[Any]) -> CostedReport:
    cost = Cost(Money(row.usd), row.gpu_ms)
    metrics = json.loads(row.metrics)
    return CostedReport(
        row.trial,
        row.step,
        row.value,
        cost,
        row.duration_ns,
        Instant(row.at),
        row.seq,
        metrics,
        violation=row.violation,
    )


def _trial_rows(mode: Mode) -> Select[Any]:
    """Return a query for the trials of one job, with their costs and counts. The query's parameter `of` is the job's id.

    Costs and counts are correlated subqueries, because the database computes such subqueries only for the rows that it returns.
    """
    t, a, e = trials.c, attempts.c, entries.c
    posted = same_trial(entries, trials) & e.kind.is_not(None)
    ran = same_trial(attempts, trials)
    return select(
        trials,
        _best(mode).label("best"),
        _spent_usd().label("usd"),
        select(func.coalesce(func.sum(e.gpu_ms), 0)).where(posted).scalar_subquery().label("gpu_ms"),
        select(func.count()).where(ran).scalar_subquery().label("attempts"),
        select(func.count()).where(ran, a.end == "preempted").scalar_subquery().label("preemptions"),
    ).where(t.job == bindparam("of"))


def _spent_usd() -> ColumnElement[int]:
    e = entries.c
    posted = same_trial(entries, trials) & e.kind.is_not(None)
    return select(func.coalesce(func.sum(e.usd), 0)).where(posted).scalar_subquery()


def _best(mode: Mode) -> ColumnElement[float | None]:
    """Return a subquery of the best metric of a trial's feasible reports, correlated with the row of `trials`."""
    r = reports.c
    # Adding 0.0 keeps SQLite from using the index on (job, value). With the index, it searches the reports of the whole job until
    # it finds one of this trial: with 10,000 trials of 27 reports each, a page took 52 s instead of 0.07 s.
    best = best_of(mode, r.value + 0.0)
    mine = same_trial(reports, trials) & (r.violation == 0)
    return select(best).where(mine).scalar_subquery()


def _sort_key(sort: Sort, mode: Mode, descending: bool) -> ColumnElement[Any]:
    t = trials.c
    match sort:
        case "number":
            return t.number
        case "steps":
            return t.steps
        case "cost_usd":
            return _spent_usd()
        case "metric":
            return func.coalesce(_best(mode), _worst(descending))


def _worst(descending: bool) -> float:
    return -1.7e308 if descending else 1.7e308


def _trial(row: Row[Any]) -> TrialRow:
    return TrialRow(
        row.trial,
        row.number,
        json.loads(row.config),
        row.state,
        row.reason,
        row.steps,
        row.value,
        row.best,
        row.violation,
        Cost(Money(int(row.usd)), int(row.gpu_ms)),
        row.attempts,
        row.preemptions,
        row.seq,
        row.created_at,
        row.updated_at,
    )
