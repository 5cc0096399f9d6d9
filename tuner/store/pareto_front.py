"""The Pareto front of a job: an index of its reports, used to find the best report within cost limits.

A report is on the front unless another report is at least as good in all of these: metrics, dollars, GPU time and duration
(the skyline of Börzsönyi, Kossmann & Stocker, ICDE 2001). The metrics are those of the job's one or two objectives. Therefore
the best report within any cost limits is on the front.

A proxy is a setting with a cheaper value in early steps. If the job has proxies, its steps are divided into stages: a stage consists of
the steps that are trained with the same values of the proxies. Metrics of different stages are not comparable, so only reports of the
highest stage that any report has reached are on the front. Reports that violate a constraint of the job are not on the front.

Queries read the front instead of all reports: of a million reports, only some hundreds are on the front. The front is derived from
the reports alone, and is updated in the transaction that records each report.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Function, Row, bindparam, delete, func, insert, select

from tuner.database.prepared import PreparedStatement
from tuner.database.tables import front
from tuner.domain.job import JobSpec
from tuner.domain.objective import Mode, number
from tuner.domain.records import ReportRow

_F = front.c
_TIES = (_F.second_loss, _F.duration_ns, _F.gpu_ms, _F.seq)
# The order of the reports on the front, also for the choice of the files that are kept.
BEST_FIRST = (_F.loss, _F.usd, *_TIES)
CHEAPEST_FIRST = (_F.usd, _F.loss, *_TIES)
_OF_JOB = _F.job == bindparam("of_job")
_LOAD = select(_F.step, _F.loss, _F.second_loss, _F.usd, _F.gpu_ms, _F.duration_ns).where(_OF_JOB)
_REMOVE_ALL = PreparedStatement(delete(front).where(_OF_JOB))
_REMOVE_WORSE = PreparedStatement(
    delete(front).where(
        _OF_JOB,
        _F.loss >= bindparam("of_loss"),
        _F.second_loss >= bindparam("of_second_loss"),
        _F.usd >= bindparam("of_usd"),
        _F.gpu_ms >= bindparam("of_gpu_ms"),
        _F.duration_ns >= bindparam("of_duration_ns"),
    )
)
_INSERT = PreparedStatement(insert(front))
_NAMES = ("loss", "second_loss", "usd", "gpu_ms", "duration_ns")
Point = tuple[float, float, int, int, int]


@dataclass
class ParetoFront:
    """The front of one job, kept in memory. Only the job's driver changes it.

    Attributes:
        job: The job.
        project: Its project.
        spec: Its spec.
        stage: The stage of all reports on the front. It is 0 for a job without proxies.
        points: The losses and costs of each report on the front, in the order of `_NAMES`.
    """

    job: str
    project: str
    spec: JobSpec
    stage: int
    points: list[Point]

    @classmethod
    def load(cls, db: Connection, job: str, project: str, spec: JobSpec) -> Self:
        rows = db.execute(_LOAD, {"of_job": job}).all()
        stage = spec.fidelity.stage(rows[0].step) if rows else 0
        return cls(job, project, spec, stage, [tuple(row[1:]) for row in rows])

    def note(self, db: Connection, report: ReportRow, *, seq: int) -> None:
        """Add a report to the front unless a report on it is at least as good, and remove the reports that the new one beats.

        A report of a higher stage than the front's removes all reports from the front. A report of a lower stage changes nothing. The
        report must have a metric and be feasible. Call this in the order of the job's events, because the first of several equal reports
        stays on the front.
        """
        assert report.value is not None
        cost, stage = report.cost, self.spec.fidelity.stage(report.step)
        if stage < self.stage:
            return
        if stage > self.stage:
            _REMOVE_ALL.run(db, {"of_job": self.job})
            self.stage, self.points = stage, []
        losses = loss_of(self.spec.objective.mode, report.value), self._second_loss(report)
        new = (*losses, cost.usd.micro_usd, cost.gpu_ms, report.duration_ns)
        if any(_is_as_good(point, new) for point in self.points):
            return
        stay = [point for point in self.points if not _is_as_good(new, point)]
        if len(stay) < len(self.points):
            limits = {f"of_{name}": value for name, value in zip(_NAMES, new, strict=True)}
            _REMOVE_WORSE.run(db, {"of_job": self.job, **limits})
        self.points = [*stay, new]
        row = {"job": self.job, "project": self.project, "trial": report.trial, "step": report.step}
        _INSERT.run(db, {**row, "seq": seq, **dict(zip(_NAMES, new, strict=True))})

    def _second_loss(self, report: ReportRow) -> float:
        if self.spec.second is None:
            return 0.0
        value = number(report.metrics.get(self.spec.second.metric))
        assert value is not None, "the report lacks the second objective's metric; pass only feasible reports"
        return loss_of(self.spec.second.mode, value)


def _is_as_good(point: Point, other: Point) -> bool:
    return (
        point[0] <= other[0]
        and point[1] <= other[1]
        and point[2] <= other[2]
        and point[3] <= other[3]
        and point[4] <= other[4]
    )


def skyline(points: Iterable[Row[Any]]) -> list[Row[Any]]:
    """Return the points for which no earlier point is at least as good in both metrics.

    If the points are in the order of their cost, the result is the Pareto front of metrics and cost.
    """
    # The pairs of losses that no other pair beats so far. The first loss ascends and the second descends, so bisection finds the place
    # of a new point.
    kept, stairs = [], list[tuple[float, float]]()
    for point in points:
        start = end = bisect_right(stairs, (point.loss, inf))
        if start and stairs[start - 1][1] <= point.second_loss:
            continue
        while end < len(stairs) and stairs[end][1] >= point.second_loss:
            end += 1
        stairs[start:end] = [(point.loss, point.second_loss)]
        kept.append(point)
    return kept


def loss_of(mode: Mode, value: float) -> float:
    """Return the metric as a loss, for which lower is better."""
    return -value if mode == "max" else value


def best_of(mode: Mode, values: ColumnElement[Any]) -> Function[Any]:
    """Return the SQL aggregate of the best of these metrics."""
    return func.max(values) if mode == "max" else func.min(values)


def is_better(mode: Mode, value: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the SQL condition that a metric is better than another."""
    return value > other if mode == "max" else value < other
