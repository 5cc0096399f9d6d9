"""Answers as queries over recorded reports, ledger entries and trials. No total is maintained by hand."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from sqlalchemy import BindParameter, ColumnElement, Connection, Row, Select, bindparam, case, func, select

from tuner.database.tables import attempts, checkpoints, events, reports, trials
from tuner.domain.cost import CostKind
from tuner.domain.money import FREE, Cost, Money, Price
from tuner.domain.objective import Mode
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.domain.trial import TrialState
from tuner.ledger.readable import entries

Sort = Literal["number", "metric", "cost_usd", "steps"]
_JOBS: Any = bindparam("jobs", expanding=True)
_STATES = (
    select(trials.c.job, trials.c.state, func.count())
    .where(trials.c.job.in_(_JOBS))
    .group_by(trials.c.job, trials.c.state)
)
_STEPS = select(reports.c.job, func.count()).where(reports.c.job.in_(_JOBS)).group_by(reports.c.job)


@dataclass(frozen=True, slots=True)
class Reached:
    """A trial at a step: its metric there, and the cost of training its configuration up to that step."""

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


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial with its cost and the numbers of its attempts and preemptions."""

    trial: str
    number: int
    config: Config
    state: TrialState
    reason: str
    steps: int
    value: float | None  #: The metric of the newest step that has one.
    best: float | None  #: The best metric of all steps.
    cost: Cost
    attempts: int
    preemptions: int
    seq: int
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A durable checkpoint of a trial."""

    step: int
    attempt: int
    uri: str
    size_bytes: int
    at: Instant
    value: float | None  #: The objective's metric at this step. None if the step reported none.


@dataclass(frozen=True, slots=True)
class After:
    """The position in a listing of trials after which a page begins."""

    key: float
    number: int


@dataclass(frozen=True, slots=True)
class JobChanges:
    """The changes of a job after an event: new reports, and the changed trials in their current state."""

    seq: int  #: The newest event that is included.
    reports: list[Reached]
    trials: list[TrialRow]
    more: bool = False  #: Whether later events may have been left out because of the limit.


def curve(db: Connection, job: str, trial: str) -> list[Row[Any]]:
    """Return all reports of a trial by step, including those without a metric."""
    r = reports.c
    return list(db.execute(select(reports).where(r.job == job, r.trial == trial).order_by(r.step)))


def checkpoints_of(db: Connection, job: str, trial: str) -> list[StoredCheckpoint]:
    """Return the trial's durable checkpoints by step, each with the objective's value there."""
    c, r = checkpoints.c, reports.c
    query = (
        select(c.step, c.attempt, c.uri, c.size_bytes, c.at, r.value)
        .outerjoin(reports, (c.job == r.job) & (c.trial == r.trial) & (c.step == r.step))
        .where(c.job == job, c.trial == trial)
        .order_by(c.step)
    )
    return [StoredCheckpoint(**row._mapping) for row in db.execute(query)]


def page_of_trials(
    db: Connection, job: str, mode: Mode, *, sort: Sort, descending: bool, after: After | None, limit: int
) -> list[TrialRow]:
    """Return a page of trials. When sorted by the best metric, trials without one come last in either order."""
    given = {} if after is None else {"key": after.key, "number": after.number}
    query = _page_of_trials(mode, sort, descending, after is not None)
    return [_trial(row) for row in db.execute(query, {"of": job, "most": limit, **given})]


@cache
def _page_of_trials(mode: Mode, sort: Sort, descending: bool, goes_on: bool) -> Select[Any]:
    costs = _costs_by_trial()
    key, t = _sort_key(sort, costs.c, mode, descending), trials.c
    query = _trial_rows(costs, mode)
    if goes_on:
        place: BindParameter[float] = bindparam("key", type_=key.type)
        beyond = key < place if descending else key > place
        query = query.where(beyond | ((key == place) & (t.number > bindparam("number"))))
    return query.order_by(key.desc() if descending else key, t.number).limit(bindparam("most"))


def sort_key_of(row: TrialRow, sort: Sort, *, descending: bool) -> float:
    """Return the key by which a row is sorted in a listing, as the database computes it."""
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
    row = db.execute(_one_trial(mode), {"of": job, "only": name}).first()
    return None if row is None else _trial(row)


@cache
def _one_trial(mode: Mode) -> Select[Any]:
    return _trial_rows(_costs_by_trial(one=True), mode, one=True)


def all_trials(db: Connection, job: str, mode: Mode) -> list[TrialRow]:
    return [_trial(row) for row in db.execute(_all_trials(mode), {"of": job})]


@cache
def _all_trials(mode: Mode) -> Select[Any]:
    return _trial_rows(_costs_by_trial(), mode).order_by(trials.c.number)


def spent_by_market(db: Connection, job: str) -> list[tuple[str, Price, Money]]:
    """Return the spend for each market and price. The price is per trial: that of its share of a machine."""
    found = db.execute(_spent_by_market(), {"of": job})
    return [(market, Price(price), Money(int(usd))) for market, price, usd in found]


@cache
def _spent_by_market() -> Select[Any]:
    e, a = entries.c, attempts.c
    return (
        select(a.market, a.price, func.sum(e.usd))
        .join(attempts, (a.job == e.job) & (a.trial == e.trial) & (a.attempt == e.attempt))
        .where(e.job == bindparam("of"), e.kind.is_not(None))
        .group_by(a.market, a.price)
    )


def bill_by_trial(db: Connection, job: str) -> dict[str, dict[CostKind, Cost]]:
    """Return what each trial was billed, by trial and kind of cost: the sums of its `post` and `correct` ledger entries."""
    found: dict[str, dict[CostKind, Cost]] = {}
    for name, kind, usd, gpu_ms in db.execute(_bill_by_trial(), {"of": job}):
        found.setdefault(name, {})[kind] = Cost(Money(int(usd)), int(gpu_ms))
    return found


@cache
def _bill_by_trial() -> Select[Any]:
    e = entries.c
    return (
        select(e.trial, e.kind, func.sum(e.usd), func.sum(e.gpu_ms))
        .where(e.job == bindparam("of"), e.kind.is_not(None))
        .group_by(e.trial, e.kind)
        .order_by(e.trial)
    )


def states_of(db: Connection, names: Collection[str]) -> dict[str, dict[TrialState, int]]:
    """Return how many trials of each job are in each state."""
    found: dict[str, dict[TrialState, int]] = {name: {} for name in names}
    for job, state, count in db.execute(_STATES, {"jobs": list(names)}):
        found[job][state] = count
    return found


def steps_of(db: Connection, names: Collection[str]) -> dict[str, int]:
    """Return how many steps of each job have been reported."""
    return dict.fromkeys(names, 0) | {job: count for job, count in db.execute(_STEPS, {"jobs": list(names)})}


def has_reported_since(db: Connection, job: str, at: Instant) -> bool:
    r = reports.c
    return db.execute(select(r.step).where(r.job == job, r.at >= at).limit(1)).first() is not None


def changes_after(
    db: Connection, job: str, mode: Mode, seq: int, *, until: int | None = None, limit: int = 500
) -> JobChanges:
    """Return what changed after event `seq`.

    Args:
        until: The last event to consider. None means the newest event.
        limit: About how many reports to return at most. All reports of one event are returned together.
    """
    r = reports.c
    # Read the newest event's number first. If a later query sees newer commits, as on PostgreSQL, `last` leaves them for the next call.
    last = until
    if last is None:
        last = db.execute(select(func.max(events.c.seq)).where(events.c.job == job)).scalar() or 0
    query = select(reports).where(r.job == job).order_by(r.seq, r.step)
    rows = list(db.execute(query.where(r.seq > seq, r.seq <= last).limit(limit)))
    upper, more = last, len(rows) == limit
    if more:  # one event may have several reports, which are returned together
        upper = rows[-1].seq
        rows = [row for row in rows if row.seq < upper] + list(db.execute(query.where(r.seq == upper)))
    changed = db.execute(_changed_trials(mode), {"of": job, "after": seq, "until": upper})
    return JobChanges(upper, [reached(row) for row in rows], [_trial(row) for row in changed], more)


@cache
def _changed_trials(mode: Mode) -> Select[Any]:
    t = trials.c
    query = _trial_rows(_costs_by_trial(), mode)
    return query.where(t.seq > bindparam("after"), t.seq <= bindparam("until")).order_by(t.seq, t.number)


def reached(row: Row[Any]) -> Reached:
    cost = Cost(Money(row.usd), row.gpu_ms)
    metrics = json.loads(row.metrics)
    return Reached(row.trial, row.step, row.value, cost, row.duration_ns, Instant(row.at), row.seq, metrics)


def _costs_by_trial(*, one: bool = False) -> Any:
    """Return a subquery of the costs by trial of the job `of`, or only of the trial `only` if `one` is set."""
    e = entries.c
    costs = select(e.trial, func.sum(e.usd).label("usd"), func.sum(e.gpu_ms).label("gpu_ms"))
    wanted = [e.job == bindparam("of"), e.kind.is_not(None), *([e.trial == bindparam("only")] if one else [])]
    return costs.where(*wanted).group_by(e.trial).subquery()


def _trial_rows(costs: Any, mode: Mode, *, one: bool = False) -> Select[Any]:
    t, a = trials.c, attempts.c
    counts = select(a.trial, func.count().label("attempts"), func.sum(_preempted()).label("preemptions"))
    of_these = [a.job == bindparam("of"), *([a.trial == bindparam("only")] if one else [])]
    runs = counts.where(*of_these).group_by(a.trial).subquery()
    return (
        select(
            trials,
            costs.c.usd,
            costs.c.gpu_ms,
            runs.c.attempts,
            runs.c.preemptions,
            _best(mode).label("best"),
        )
        .outerjoin(costs, costs.c.trial == t.trial)
        .outerjoin(runs, runs.c.trial == t.trial)
        .where(t.job == bindparam("of"), *([t.trial == bindparam("only")] if one else []))
    )


def _best(mode: Mode) -> ColumnElement[float | None]:
    """Return a subquery of the best metric that a trial reported, correlated with the row of `trials`."""
    r = reports.c
    # Adding 0.0 keeps SQLite from using the index on (job, value): it would walk through the reports of the whole job
    # until it finds one of this trial. With 10,000 trials of 27 reports each, a page then took 52 s instead of 0.07 s.
    value = r.value + 0.0
    best = func.max(value) if mode == "max" else func.min(value)
    return select(best).where(r.job == trials.c.job, r.trial == trials.c.trial).scalar_subquery()


def _preempted() -> ColumnElement[int]:
    return case((attempts.c.end == "preempted", 1), else_=0)


def _sort_key(sort: Sort, costs: Any, mode: Mode, descending: bool) -> ColumnElement[Any]:
    t = trials.c
    match sort:
        case "number":
            return t.number
        case "steps":
            return t.steps
        case "cost_usd":
            return func.coalesce(costs.usd, 0)
        case "metric":
            return func.coalesce(_best(mode), _worst(descending))


def _worst(descending: bool) -> float:
    return -1.7e308 if descending else 1.7e308


def _trial(row: Row[Any]) -> TrialRow:
    cost = FREE if row.usd is None else Cost(Money(int(row.usd)), int(row.gpu_ms))
    return TrialRow(
        row.trial,
        row.number,
        json.loads(row.config),
        row.state,
        row.reason,
        row.steps,
        row.value,
        row.best,
        cost,
        int(row.attempts or 0),
        int(row.preemptions or 0),
        row.seq,
        Instant(row.created_at),
        Instant(row.updated_at),
    )


def last_reports(db: Connection, job: str) -> Iterator[Row[Any]]:
    """Return the report with the highest step of each trial. It has the trial's progress and the cost of reaching it."""
    r = reports.c
    last = select(r.trial, func.max(r.step).label("step")).where(r.job == job).group_by(r.trial).subquery()
    return iter(
        db.execute(
            select(reports)
            .join(last, (r.trial == last.c.trial) & (r.step == last.c.step))
            .where(r.job == job)
        )
    )
