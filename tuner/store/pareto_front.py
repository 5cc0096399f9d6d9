"""The Pareto front of a job: an index of its reports, used to find the best report within cost limits.

A report is on the front unless another report is at least as good in metric, dollars, GPU time and duration all at once
(the skyline of Börzsönyi, Kossmann & Stocker, ICDE 2001). The best report within any limits is therefore on the front.
If the job has proxies, only the reports of the highest stage that any report has reached count, because metrics of steps that were
trained with other values of the proxies are not comparable. Reports that violate a constraint of the job are not on the front.
Queries read the front instead of all reports, because of a million reports only some hundreds are on it. The front is
derived from the reports alone, and updated in the transaction that records each report.
"""

from dataclasses import dataclass
from typing import Self

from sqlalchemy import Connection, bindparam, delete, insert, select

from tuner.database.tables import front
from tuner.domain.objective import Fidelity, Mode
from tuner.domain.records import ReportRow

_F = front.c
_OF_JOB = _F.job == bindparam("of_job")
_LOAD = select(_F.step, _F.loss, _F.usd, _F.gpu_ms, _F.duration_ns).where(_OF_JOB)
_REMOVE_ALL = delete(front).where(_OF_JOB)
_REMOVE_WORSE = delete(front).where(
    _OF_JOB,
    _F.loss >= bindparam("of_loss"),
    _F.usd >= bindparam("of_usd"),
    _F.gpu_ms >= bindparam("of_gpu_ms"),
    _F.duration_ns >= bindparam("of_duration_ns"),
)
_INSERT = insert(front)
_NAMES = ("loss", "usd", "gpu_ms", "duration_ns")
Point = tuple[float, int, int, int]


@dataclass
class ParetoFront:
    """The front of one job, kept in memory. Only the job's driver changes it.

    Attributes:
        job: The job.
        project: Its project.
        mode: Whether the job's metric is minimised or maximised.
        fidelity: Its steps.
        stage: The stage of the reports of the front.
        points: The reports of the front, in the order of `_NAMES`.
    """

    job: str
    project: str
    mode: Mode
    fidelity: Fidelity
    stage: int
    points: list[Point]

    @classmethod
    def load(cls, db: Connection, job: str, project: str, mode: Mode, fidelity: Fidelity) -> Self:
        rows = db.execute(_LOAD, {"of_job": job}).all()
        stage = fidelity.stage(rows[0].step) if rows else 0
        return cls(job, project, mode, fidelity, stage, [tuple(row[1:]) for row in rows])

    def note(self, db: Connection, report: ReportRow, *, seq: int) -> None:
        """Add the report to the front unless a report there is at least as good, and remove the reports that it beats.

        A report of a higher stage removes all others. One of a lower stage changes nothing. The report must have a metric and be feasible.
        Call this in the order of the job's events: of equal reports, the first stays.
        """
        assert report.value is not None
        cost, stage = report.cost, self.fidelity.stage(report.step)
        if stage < self.stage:
            return
        if stage > self.stage:
            db.execute(_REMOVE_ALL, {"of_job": self.job})
            self.stage, self.points = stage, []
        new = (loss_of(self.mode, report.value), cost.usd.micro_usd, cost.gpu_ms, report.duration_ns)
        if any(_is_as_good(point, new) for point in self.points):
            return
        stay = [point for point in self.points if not _is_as_good(new, point)]
        if len(stay) < len(self.points):
            limits = {f"of_{name}": value for name, value in zip(_NAMES, new, strict=True)}
            db.execute(_REMOVE_WORSE, {"of_job": self.job, **limits})
        self.points = [*stay, new]
        row = {"job": self.job, "project": self.project, "trial": report.trial, "step": report.step}
        db.execute(_INSERT, {**row, "seq": seq, **dict(zip(_NAMES, new, strict=True))})


def _is_as_good(point: Point, other: Point) -> bool:
    return point[0] <= other[0] and point[1] <= other[1] and point[2] <= other[2] and point[3] <= other[3]


def loss_of(mode: Mode, value: float) -> float:
    """Return the metric as a loss, for which lower is better."""
    return -value if mode == "max" else value
