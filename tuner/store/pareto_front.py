"""The Pareto front of a job: an index of its reports, used to find the best report within cost limits.

A report is on the front unless another report is at least as good in metric, dollars, GPU time and duration all at once
(the skyline of Börzsönyi, Kossmann & Stocker, ICDE 2001). The best report within any limits is therefore on the front.
Queries read the front instead of all reports, because of a million reports only some hundreds are on it. The front is
derived from the reports alone, and updated in the transaction that records each report.
"""

from sqlalchemy import Connection, bindparam, delete, insert, select

from tuner.database.tables import front
from tuner.domain.objective import Mode
from tuner.domain.records import ReportRow

_F = front.c
_OF_JOB = _F.job == bindparam("of_job")
_BETTER = (
    select(_F.seq)
    .where(
        _OF_JOB,
        _F.loss <= bindparam("of_loss"),
        _F.usd <= bindparam("of_usd"),
        _F.gpu_ms <= bindparam("of_gpu_ms"),
        _F.duration_ns <= bindparam("of_duration_ns"),
    )
    .limit(1)
)
_REMOVE_WORSE = delete(front).where(
    _OF_JOB,
    _F.loss >= bindparam("of_loss"),
    _F.usd >= bindparam("of_usd"),
    _F.gpu_ms >= bindparam("of_gpu_ms"),
    _F.duration_ns >= bindparam("of_duration_ns"),
)
_INSERT = insert(front)


def note(db: Connection, job: str, project: str, mode: Mode, report: ReportRow, *, seq: int) -> None:
    """Add the report to the front unless a report there is at least as good, and remove the reports that it beats.

    The report must have a metric. Call this in the order of the job's events: of equal reports, the first stays.
    """
    assert report.value is not None
    values = {
        "loss": loss_of(mode, report.value),
        "usd": report.cost.usd.micro_usd,
        "gpu_ms": report.cost.gpu_ms,
        "duration_ns": report.duration_ns,
    }
    of_report = {"of_job": job, **{f"of_{name}": value for name, value in values.items()}}
    if db.execute(_BETTER, of_report).first() is not None:
        return
    db.execute(_REMOVE_WORSE, of_report)
    where = {"job": job, "project": project, "trial": report.trial, "step": report.step, "seq": seq}
    db.execute(_INSERT, {**where, **values})


def loss_of(mode: Mode, value: float) -> float:
    """Return the metric as a loss, for which lower is better."""
    return -value if mode == "max" else value
