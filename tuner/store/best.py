"""Queries for the best reports and trials of a job: the Pareto front, the best report within cost limits, and the best learning curves."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, Select, bindparam, case, func, select, tuple_

from tuner.database.codec import decode, stored_name
from tuner.database.tables import checkpoints, events, front, jobs, reports, same_step, same_trial, trials
from tuner.domain.events import Reported, Suggested
from tuner.domain.ids import trial_number
from tuner.domain.job import JobSpec
from tuner.domain.money import ZERO, Money
from tuner.domain.objective import Mode
from tuner.domain.records import CostPoint
from tuner.domain.space import Config
from tuner.domain.trial import TrialState
from tuner.store.answers import CostedReport, step_report
from tuner.store.pareto_front import BEST_FIRST, CHEAPEST_FIRST, loss_of, skyline


@dataclass(frozen=True, slots=True)
class BestTrial:
    """One of the best trials, with its learning curve."""

    trial: str
    number: int
    state: TrialState
    config: Config
    curve: tuple[CostPoint, ...]  #: The reports with a metric, ascending by step. Never empty.
    saved: int  #: The step of the newest checkpoint, or 0 if there is none.


def best_trials(db: Connection, job: str, spec: JobSpec, limit: int) -> list[BestTrial]:
    """Return up to `limit` trials, sorted by the metric of their newest report, best first.

    A proxy is a setting with a cheaper value in early steps, and a stage is a range of steps with the same values of the proxies. If the
    job has proxies, trials that have reached a later stage come first, because metrics of different stages are not comparable.

    Trials without a metric, and trials whose newest report violates a constraint, are left out.
    """
    query = _best_trials(spec.objective.mode, spec.fidelity.stage_ends)
    rows = db.execute(query, {"of": job, "most": limit}).all()
    names = [row.trial for row in rows]
    points = db.execute(_METRICS, {"of": job, "trials": names})
    curves = {
        trial: tuple(CostPoint(row.step, row.value, row.usd) for row in group)
        for trial, group in groupby(points, key=lambda row: str(row.trial))
    }
    newest = db.execute(_NEWEST_CHECKPOINTS, {"of": job, "trials": names})
    saved: dict[str, int] = {trial: step for trial, step in newest}
    return [
        BestTrial(
            row.trial,
            row.number,
            row.state,
            json.loads(row.config),
            curves[row.trial],
            saved.get(row.trial, 0),
        )
        for row in rows
        if row.trial in curves
    ]


@cache
def _best_trials(mode: Mode, stage_ends: tuple[int, ...]) -> Select[Any]:
    t = trials.c
    stages = [case((t.steps > end, 0), else_=1) for end in reversed(stage_ends)]
    order = (*stages, t.value.desc() if mode == "max" else t.value.asc(), t.number)
    known = select(trials).where(t.job == bindparam("of"), t.value.is_not(None), t.violation == 0)
    return known.order_by(*order).limit(bindparam("most"))


_R, _C = reports.c, checkpoints.c
_TRIALS: BindParameter[Any] = bindparam("trials", expanding=True)
_METRICS = (
    select(_R.trial, _R.step, _R.value, _R.usd)
    .where(_R.job == bindparam("of"), _R.trial.in_(_TRIALS), _R.value.is_not(None))
    .order_by(_R.trial, _R.step)
)
_NEWEST_CHECKPOINTS = (
    select(_C.trial, func.max(_C.step))
    .where(_C.job == bindparam("of"), _C.trial.in_(_TRIALS))
    .group_by(_C.trial)
)
_COMPLETE = (
    select(trials.c.trial, trials.c.config, trials.c.value, trials.c.violation, trials.c.steps, _R.usd)
    .join(reports, same_trial(reports, trials) & (_R.step == trials.c.steps))
    .where(trials.c.job == bindparam("of"), trials.c.state == "completed", trials.c.value.is_not(None))
    .order_by(trials.c.number)
)


@dataclass(frozen=True, slots=True)
class RepeatedConfig:
    """A configuration that was trained to its last step with several seeds."""

    trial: str  #: The trial of the search that was repeated: the first feasible one with this configuration.
    step: int
    usd: int  #: Cost of training `trial`, in micro-dollars.
    values: tuple[float, ...]  #: The metric for each seed. The first is the metric of `trial`.


_CONFIGS = (
    select(trials.c.trial, trials.c.config).where(trials.c.job == bindparam("of")).order_by(trials.c.number)
)
_SUGGESTIONS = 100  # how many suggestions are read at once
_SUGGESTED_BEFORE = (
    select(events.c.seq, events.c.body)
    .where(
        events.c.job == bindparam("of"),
        events.c.type == stored_name(Suggested),
        events.c.seq < bindparam("before"),
    )
    .order_by(events.c.seq.desc())
    .limit(_SUGGESTIONS)
)


def repeats(db: Connection, job: str) -> set[str]:
    """Return the trials with which a job confirmed its best configurations.

    They have the configuration of an earlier trial, and the search did not suggest them.
    """
    seen, again = set[str](), set[str]()
    for trial, config in db.execute(_CONFIGS, {"of": job}):
        if config in seen:
            again.add(trial)
        seen.add(config)
    return again - _suggested_from(db, job, min(map(trial_number, again))) if again else again


def _suggested_from(db: Connection, job: str, first: int) -> set[str]:
    """Return the trials that the search suggested, from trial number `first` on.

    Trials are suggested in the order of their numbers. The newest suggestions are read first, so that the events before that of trial
    `first` are not read: a job may have a million events.
    """
    suggested, before = set[str](), 2**31 - 1
    while True:
        rows = db.execute(_SUGGESTED_BEFORE, {"of": job, "before": before}).all()
        trials_of_rows = [decode(row.body).trial for row in rows]
        suggested.update(trials_of_rows)
        if len(rows) < _SUGGESTIONS or trial_number(trials_of_rows[-1]) < first:
            return suggested
        before = rows[-1].seq


def repeated(db: Connection, job: str) -> list[RepeatedConfig]:
    """Return the configurations that a job trained again with other seeds, if these trials are complete and feasible."""
    again = repeats(db, job)
    first: dict[str, Any] = {}
    others: dict[str, list[Any]] = {}
    for row in db.execute(_COMPLETE, {"of": job}):
        if row.trial in again:
            others.setdefault(row.config, []).append(row)
        elif row.violation == 0:
            first.setdefault(row.config, row)
    return [
        RepeatedConfig(row.trial, row.steps, row.usd, (row.value, *(other.value for other in others[config])))
        for config, row in first.items()
        if config in others and all(other.violation == 0 for other in others[config])
    ]


def report_at(db: Connection, job: str, trial: str, step: int) -> CostedReport:
    """Return the report of a trial at a step, with its configuration and checkpoint. The report must exist."""
    return _in_whole(db.execute(_AT_PLACES, {"places": [(job, trial, step)]}).one())


_RESULTS = (
    select(trials.c.trial, trials.c.value)
    .where(trials.c.job == bindparam("of"), trials.c.value.is_not(None), trials.c.violation == 0)
    .order_by(trials.c.number)
)
_NEWEST_REPORT = (
    select(events.c.body)
    .where(events.c.job == bindparam("of"), events.c.type == stored_name(Reported))
    .order_by(events.c.seq.desc())
    .limit(1)
)
_BODIES = select(events.c.seq, events.c.body).where(
    events.c.job == bindparam("of"), events.c.seq.in_(bindparam("seqs", expanding=True))
)
_REPEATS: BindParameter[Any] = bindparam("repeats", expanding=True)
_NEWEST_SEARCHED = (
    select(_R.seq)
    .where(_R.job == bindparam("of"), _R.trial.not_in(_REPEATS))
    .order_by(_R.seq.desc())
    .limit(1)
)
_BEFORE = reports.alias("before")
_REPEATS_AND_BEFORE = select(
    _R.seq,
    select(func.max(_BEFORE.c.seq))
    .where(_BEFORE.c.job == _R.job, _BEFORE.c.seq < _R.seq, _BEFORE.c.value.is_not(None))
    .scalar_subquery(),
).where(
    _R.job == bindparam("of"),
    _R.trial.in_(_REPEATS),
    _R.value.is_not(None),
    _R.seq < bindparam("until"),
)


def results(db: Connection, job: str, spec: JobSpec) -> tuple[list[float], Money]:
    """Return the results of the search: the newest metric of each feasible trial, oldest trial first, and what the job had spent.

    That is what it had spent at the newest report. Trials without a metric are left out. So are repeats, with which the job confirmed its
    best configurations, their reports, and what they cost.
    """
    again = repeats(db, job) if spec.confirm is not None else set[str]()
    newest, for_repeats = _NEWEST_REPORT, ZERO
    if again:
        seq = db.execute(_NEWEST_SEARCHED, {"of": job, "repeats": list(again)}).scalar() or 0
        newest = newest.where(events.c.seq <= seq)
        for_repeats = _spent_on_repeats(db, job, again, seq)
    body = db.execute(newest, {"of": job}).scalar()
    spent = ZERO if body is None else decode(body).spent - for_repeats
    return [value for trial, value in db.execute(_RESULTS, {"of": job}) if trial not in again], spent


def _spent_on_repeats(db: Connection, job: str, again: Collection[str], until: int) -> Money:
    """Return what the job spent between each report of a repeat and the report before it, as `State.spent_on_repeats` does.

    Args:
        again: The trials that are repeats.
        until: Reports from this event on do not count.
    """
    # In a row of repeats, only the spend at its last report, and at the report before its first, does not cancel out.
    signs = Counter[int]()
    for seq, before in db.execute(_REPEATS_AND_BEFORE, {"of": job, "repeats": list(again), "until": until}):
        signs[seq] += 1
        signs[before] -= 1
    wanted = [seq for seq, sign in signs.items() if sign]
    rows = db.execute(_BODIES, {"of": job, "seqs": wanted})
    return Money(sum(signs[row.seq] * decode(row.body).spent.micro_usd for row in rows))


def values_at(curve: Sequence[CostPoint], levels: Sequence[int]) -> list[float]:
    """Return the metric of a trial at each of the steps `levels` that the trial has reached.

    The metric at a level is that of the first report at or after this step. If the trial has reached no level, return a list with only
    the metric of its last report.

    Args:
        curve: The reports of the trial with a metric, in ascending order of steps.
        levels: The steps at which trials are compared, in ascending order.
    """
    values = []
    for level in levels:
        value = next((point.value for point in curve if point.step >= level), None)
        if value is None:
            break
        values.append(value)
    return values or [curve[-1].value]


@dataclass(frozen=True, slots=True)
class CostLimits:
    """The most that training a configuration may cost. None means no limit."""

    usd: Money | None = None
    gpu_ms: int | None = None
    duration_ns: int | None = None

    def allow(self, usd: Money, gpu_ms: int, duration_ns: int) -> bool:
        return (
            (self.usd is None or usd <= self.usd)
            and (self.gpu_ms is None or gpu_ms <= self.gpu_ms)
            and (self.duration_ns is None or duration_ns <= self.duration_ns)
        )

    def given(self) -> dict[str, int]:
        """Return the limits that are not None, by the name of their column in the table `front`."""
        usd = None if self.usd is None else self.usd.micro_usd
        each = {"usd": usd, "gpu_ms": self.gpu_ms, "duration_ns": self.duration_ns}
        return {name: most for name, most in each.items() if most is not None}


ANY = CostLimits()

_POINTS: Select[Any] = select(front).where(front.c.job == bindparam("of"))
_NEXT_BETTER = _POINTS.where(front.c.loss < bindparam("below")).order_by(*CHEAPEST_FIRST).limit(1)
_CHEAPEST = _POINTS.order_by(
    front.c.usd, front.c.gpu_ms, front.c.duration_ns, front.c.loss, front.c.seq
).limit(1)


@cache
def _best_within(limited: tuple[str, ...]) -> Select[Any]:
    within = (front.c[name] <= bindparam(f"most_{name}") for name in limited)
    return _POINTS.where(*within).order_by(*BEST_FIRST).limit(1)


def _places() -> Select[Any]:
    f = front.c
    trial, step = (
        select(column)
        .where(f.job == jobs.c.id)
        .order_by(*BEST_FIRST, f.trial, f.step)
        .limit(1)
        .scalar_subquery()
        for column in (f.trial, f.step)
    )
    return select(jobs.c.id, trial, step).where(jobs.c.id.in_(bindparam("jobs", expanding=True)))


def _at_places() -> Select[Any]:
    r, t, c = reports.c, trials.c, checkpoints.c
    return (
        select(reports, t.config, c.uri)
        .join(trials, same_trial(trials, reports))
        .outerjoin(checkpoints, same_step(checkpoints, reports))
        .where(tuple_(r.job, r.trial, r.step).in_(bindparam("places", expanding=True)))
    )


_PLACES, _AT_PLACES = _places(), _at_places()


def best(db: Connection, job: str, limits: CostLimits = ANY) -> CostedReport | None:
    """Return the report with the best metric whose costs are within the limits, or None if there is none.

    Of reports with equal metrics, return the cheapest. If they also cost the same, the better second objective decides, then the shorter
    training duration, the smaller GPU time, and last the earlier report.
    """
    given = limits.given()
    return _first(
        db, job, _best_within(tuple(given)), **{f"most_{name}": most for name, most in given.items()}
    )


def best_of_each(db: Connection, names: Collection[str]) -> dict[str, CostedReport]:
    """Return the report with the best metric of each of these jobs, by job. A job whose Pareto front is empty is left out."""
    places = [tuple(row) for row in db.execute(_PLACES, {"jobs": list(names)}) if row[1] is not None]
    if not places:
        return {}
    return {row.job: _in_whole(row) for row in db.execute(_AT_PLACES, {"places": places})}


@dataclass(frozen=True, slots=True)
class JobExtremes:
    """The best metric within cost limits and the lowest cost of a job."""

    loss: float | None  #: The metric, negated if larger is better. None if no point is within the limits.
    usd: Money  #: Cost of the cheapest point.


def extremes_of_each(
    db: Connection, project: str, trainable: str, limits: CostLimits = ANY
) -> dict[str, JobExtremes]:
    """Return the best metric within the limits and the lowest cost of each of the project's jobs that tune this trainable, by job.

    A job whose Pareto front is empty is left out.
    """
    f, within = front.c, [front.c[name] <= most for name, most in limits.given().items()]
    losses = select(f.loss).where(f.job == jobs.c.id, *within).order_by(f.loss).limit(1)
    costs = select(f.usd).where(f.job == jobs.c.id).order_by(f.usd).limit(1)
    query = select(jobs.c.id, losses.scalar_subquery(), costs.scalar_subquery())
    rows = db.execute(query.where(jobs.c.project == project, jobs.c.trainable == trainable))
    return {job: JobExtremes(loss, Money(usd)) for job, loss, usd in rows if usd is not None}


def points_of_each(db: Connection, project: str, trainable: str) -> Iterator[tuple[str, list[Row[Any]]]]:
    """Yield each of the project's jobs that tune this trainable, with the points of its Pareto front in any order.

    The columns of a point are those of `points`. A job whose front is empty is left out.
    """
    mine = (jobs.c.project == project) & (jobs.c.trainable == trainable)
    rows = db.execute(select(front).join(jobs, jobs.c.id == front.c.job).where(mine).order_by(front.c.job))
    for job, group in groupby(rows, key=lambda row: str(row.job)):
        yield job, list(group)


def next_better(db: Connection, job: str, mode: Mode, than: float) -> CostedReport | None:
    """Return the cheapest report of the Pareto front whose metric is better than `than`, or None if there is none."""
    return _first(db, job, _NEXT_BETTER, below=loss_of(mode, than))


def nearest(db: Connection, job: str) -> CostedReport | None:
    """Return the report that violates the constraints least. The result does not contain its configuration.

    Return None if no report has the metrics of all objectives and constraints.
    """
    r = reports.c
    known = (r.job == job, r.value.is_not(None), r.violation.is_not(None))
    row = db.execute(select(reports).where(*known).order_by(r.violation, r.seq, r.step).limit(1)).first()
    return None if row is None else step_report(row)


def cheapest(db: Connection, job: str) -> CostedReport | None:
    """Return the cheapest report of the Pareto front, or None if it is empty."""
    return _first(db, job, _CHEAPEST)


def points(db: Connection, job: str) -> list[Row[Any]]:
    """Return all points of the Pareto front, cheapest first. Columns: trial, step, loss, second_loss, usd, gpu_ms, duration_ns, seq."""
    return list(db.execute(_POINTS.order_by(*CHEAPEST_FIRST), {"of": job}))


def pareto(db: Connection, job: str) -> list[CostedReport]:
    """Return the Pareto front of dollars and metrics, cheapest first.

    Each report is better than every cheaper report in at least one of the job's one or two objectives.
    """
    return whole(db, job, [(row.trial, row.step) for row in skyline(points(db, job))])


def whole(db: Connection, job: str, places: Sequence[tuple[str, int]]) -> list[CostedReport]:
    """Return the reports at these (trial, step) points of the Pareto front, in the same order, with configurations and checkpoints."""
    if len(places) == 1:
        rows = db.execute(_ONE_IN_WHOLE, {"of": job, "trial": places[0][0], "step": places[0][1]})
    else:
        rows = db.execute(_IN_WHOLE, {"of": job})
    wanted = set(places)
    by_place = {(row.trial, row.step): _in_whole(row) for row in rows if (row.trial, row.step) in wanted}
    return [by_place[place] for place in places]


def _all_in_whole() -> Select[Any]:
    f, t, c = front.c, trials.c, checkpoints.c
    return (
        select(reports, t.config, c.uri)
        .select_from(front)
        .join(reports, same_step(reports, front))
        .join(trials, same_trial(trials, front))
        .outerjoin(checkpoints, same_step(checkpoints, front))
        .where(f.job == bindparam("of"))
    )


_IN_WHOLE = _all_in_whole()
_ONE_IN_WHOLE = _IN_WHOLE.where(front.c.trial == bindparam("trial"), front.c.step == bindparam("step"))


def _in_whole(row: Row[Any]) -> CostedReport:
    return replace(step_report(row), config=json.loads(row.config), checkpoint_uri=row.uri)


def _first(db: Connection, job: str, query: Select[Any], **given: float) -> CostedReport | None:
    row = db.execute(query, {"of": job, **given}).first()
    return None if row is None else whole(db, job, [(row.trial, row.step)])[0]
