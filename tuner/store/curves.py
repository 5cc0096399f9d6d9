"""Learning curves: how a job's best metric improved with its spend, and each trial's metric by step and cost."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, case, func, or_, select

from tuner.database.codec import decode, spent_of
from tuner.database.database import Database
from tuner.database.tables import attempts, events, reports, trials
from tuner.domain.events import Reported
from tuner.domain.job import JobSpec
from tuner.domain.money import Money
from tuner.domain.objective import Mode, number
from tuner.domain.records import CostPoint
from tuner.domain.trial import TrialState
from tuner.ledger.readable import entries
from tuner.store.pareto_front import best_of, is_better

TRIALS_PAGE = 200
NAMES_SAMPLE = 20


@dataclass(frozen=True, slots=True)
class Improvement:
    """A report that was better than all earlier reports of the job."""

    spent: Money  #: The job's spend at the time of the report.
    value: float
    trial: str
    step: int


@dataclass(frozen=True, slots=True)
class TrainedTrial:
    """A trial with the reports that show its progress, ascending by step.

    A report with a metric is included if it is the trial's first or last, if it is better than all before it of the same
    stage of the proxies, or if it is the first at or after a rung.
    """

    state: TrialState
    setup: int  #: Micro-dollars that the attempt of the first report spent on its setup.
    curve: tuple[CostPoint, ...]


def improvements(db: Connection, job: str, spec: JobSpec) -> list[Improvement]:
    """Return the feasible reports that improved the job's best metric, in the order of their events.

    If the job has proxies, only reports of the highest stage that any feasible report has reached are compared, as on the Pareto front.
    Metrics of different stages are not comparable.

    The `spent` of each improvement is at least that of the improvement before it. A report that a trial inherited from an earlier job was
    not paid for by this job: its `spent` is that of the improvement before it, or 0 if it is the first.
    """
    r, e, mode = reports.c, events.c, spec.objective.mode
    feasible = [r.job == job, r.value.is_not(None), r.violation == 0]
    if spec.fidelity.stage_ends:
        farthest = db.execute(select(func.max(r.step)).where(*feasible)).scalar() or 0
        ends_before = (0, *spec.fidelity.stage_ends)
        feasible.append(r.step > ends_before[spec.fidelity.stage(farthest)])
    best = best_of(mode, r.value)
    before = best.over(order_by=(r.seq, r.step), rows=(None, -1))
    ranked = select(r.trial, r.step, r.value, r.seq, before.label("before")).where(*feasible).subquery()
    n = ranked.c
    better = is_better(mode, n.value, n.before)
    query = (
        select(n.trial, n.step, n.value, e.body)
        .join(events, (e.job == job) & (e.seq == n.seq))
        .where(n.before.is_(None) | better)
        .order_by(n.seq, n.step)
    )
    curve: list[Improvement] = []
    for row in db.execute(query):
        event = decode(row.body)
        # An inherited report has the number of the event that suggested its trial.
        spent = event.spent if isinstance(event, Reported) else Money(0)
        if curve:
            spent = max(spent, curve[-1].spent)
        curve.append(Improvement(spent, row.value, row.trial, row.step))
    return curve


def trained(
    database: Database, job: str, mode: Mode, rungs: Sequence[int], stage_ends: Sequence[int] = ()
) -> Iterator[TrainedTrial]:
    """Yield every trial that has reported a metric, sorted by name, with its learning curve.

    If the job has proxies, `stage_ends` are the last steps of their stages, except that of the last stage.

    The reports are read page by page, because with SQLite's rollback journal no process can commit during a read.
    """
    e, t = entries.c, trials.c
    setups = (
        select(e.trial, e.attempt, func.sum(e.usd).label("usd"))
        .where(e.job == job, e.kind == "setup")
        .group_by(e.trial, e.attempt)
    )
    with database.read() as db:
        setup = {(row.trial, row.attempt): int(row.usd) for row in db.execute(setups)}
        state_of = {row.trial: row.state for row in db.execute(select(t.trial, t.state).where(t.job == job))}
    names = sorted(state_of)
    for first in range(0, len(names), TRIALS_PAGE):
        query = _curve_reports(job, names[first : first + TRIALS_PAGE], mode, rungs, stage_ends)
        with database.read() as db:
            rows = db.execute(query).all()
        for trial, group in groupby(rows, key=lambda row: str(row.trial)):
            curve = list(group)
            begun = min(setup.get((trial, curve[0].attempt), 0), curve[0].usd)
            points = tuple(CostPoint(row.step, row.value, row.usd) for row in curve)
            yield TrainedTrial(state_of[trial], begun, points)


def _curve_reports(
    job: str, names: Sequence[str], mode: Mode, rungs: Sequence[int], stage_ends: Sequence[int]
) -> Select[Any]:
    """Return a query for the reports of these trials that belong in `TrainedTrial.curve`, ordered by trial and step."""
    r = reports.c
    of_trial: dict[str, Any] = {"partition_by": r.trial, "order_by": r.step}
    stage = [case((r.step > end, 1), else_=0) for end in stage_ends]
    of_stage: dict[str, Any] = {"partition_by": [r.trial, *stage], "order_by": r.step}
    best = best_of(mode, r.value)
    window = (
        select(
            r.trial,
            r.step,
            r.attempt,
            r.value,
            r.usd,
            best.over(**of_stage, rows=(None, -1)).label("before"),
            func.lag(r.step).over(**of_trial).label("from_step"),
            func.lead(r.step).over(**of_trial).label("to_step"),
        )
        .where(r.job == job, r.trial.in_(names), r.value.is_not(None))
        .subquery()
    )
    w = window.c
    better = is_better(mode, w.value, w.before)
    crosses = (and_(w.from_step < rung, w.step >= rung) for rung in rungs)
    return (
        select(w.trial, w.step, w.attempt, w.value, w.usd)
        .where(or_(w.before.is_(None), better, w.to_step.is_(None), *crosses))
        .order_by(w.trial, w.step)
    )


@dataclass(frozen=True, slots=True)
class ReportSeries:
    """The reports of a trial up to a given event of the job, as parallel lists in ascending order of steps."""

    steps: list[int]
    values: list[float | None]
    usd: list[int]  #: Cost of training the configuration up to each step, in micro-dollars.
    #: The job's spend at each report, in micro-dollars. None for reports inherited from an earlier job.
    spent: list[int | None]


def _select_trial_curves() -> Select[Any]:
    r, e = reports.c, events.c
    return (
        select(r.trial, r.step, r.value, r.usd, e.body)
        .outerjoin(events, (e.job == r.job) & (e.seq == r.seq))
        .where(r.job == bindparam("of"), r.seq <= bindparam("until"))
        .order_by(r.trial, r.step)
    )


_TRIAL_CURVES = _select_trial_curves()


def report_series(db: Connection, job: str, until: int) -> dict[str, ReportSeries]:
    """Return the reports up to event number `until`, by trial. A trial without a report up to this event is left out."""
    by_trial: dict[str, ReportSeries] = {}
    for trial, step, value, usd, body in db.execute(_TRIAL_CURVES, {"of": job, "until": until}):
        course = by_trial.get(trial)
        if course is None:
            course = by_trial[trial] = ReportSeries([], [], [], [])
        course.steps.append(step)
        course.values.append(value)
        course.usd.append(usd)
        course.spent.append(None if body is None else spent_of(body))
    return by_trial


def losses(db: Connection, job: str) -> dict[str, list[int]]:
    """Return the last step of each preempted attempt, by trial, in the order of the attempts."""
    a = attempts.c
    query = select(a.trial, a.to_step).where(a.job == job, a.end == "preempted").order_by(a.trial, a.attempt)
    steps: dict[str, list[int]] = {}
    for trial, step in db.execute(query):
        steps.setdefault(trial, []).append(step)
    return steps


def metric_names(db: Connection, job: str) -> list[str]:
    """Return the sorted names of the numeric metrics in the job's first and newest reports.

    Other reports are not read, because a job may have a million reports, and the names hardly ever differ between them.
    """
    r = reports.c
    names: set[str] = set()
    for order in (r.seq, r.seq.desc()):
        query = select(r.metrics).where(r.job == job).order_by(order).limit(NAMES_SAMPLE)
        for (text,) in db.execute(query):
            names.update(name for name, value in json.loads(text).items() if _number(value) is not None)
    return sorted(names)


def metric_values(db: Connection, job: str, until: int, name: str) -> dict[str, list[float | None]]:
    """Return the values of one metric in all reports up to event number `until`, by trial, in ascending order of steps.

    The value is None if a report does not have the metric, or if the reported value is not a number.
    """
    r = reports.c
    query = select(r.trial, r.metrics).where(r.job == job, r.seq <= until).order_by(r.trial, r.step)
    values: dict[str, list[float | None]] = {}
    for trial, text in db.execute(query):
        values.setdefault(trial, []).append(_number(json.loads(text).get(name)))
    return values


def _number(value: Any) -> float | None:
    """Convert a reported value to a float. Return None if it is not a finite number. True and False do not count as numbers."""
    converted = number(value)
    return converted if converted is not None and math.isfinite(converted) else None
