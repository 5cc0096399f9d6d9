"""The front of a job: an index of its reports, used to find the best report within cost limits.

A report is on the front unless another report is at least as good in metric, dollars, GPU time and duration all at once
(the skyline of Börzsönyi, Kossmann & Stocker, ICDE 2001). The best report within any limits is therefore on the front.
Queries read the front instead of all reports, because of a million reports only some hundreds are on it. It is derived
from the reports alone, and updated in the transaction that records each report.
"""

from sqlalchemy import Connection, delete, insert, select

from tuner.domain.objective import Mode
from tuner.domain.records import ReportRow
from tuner.store.tables import front


def note(db: Connection, job: str, project: str, mode: Mode, report: ReportRow, *, seq: int) -> None:
    """Add the report to the front unless a report there is at least as good, and remove the reports that it beats.

    The report must have a metric. Call this in the order of the job's events: of equal reports, the first stays.
    """
    assert report.value is not None
    f, loss = front.c, loss_of(mode, report.value)
    usd, gpu_ms, duration_ns = report.cost.usd.micro_usd, report.cost.gpu_ms, report.duration_ns
    beats = (f.loss <= loss) & (f.usd <= usd) & (f.gpu_ms <= gpu_ms) & (f.duration_ns <= duration_ns)
    if db.execute(select(f.seq).where(f.job == job, beats).limit(1)).first() is not None:
        return
    beaten = (f.loss >= loss) & (f.usd >= usd) & (f.gpu_ms >= gpu_ms) & (f.duration_ns >= duration_ns)
    db.execute(delete(front).where(f.job == job, beaten))
    where = {"job": job, "project": project, "trial": report.trial, "step": report.step, "seq": seq}
    costs = {"usd": usd, "gpu_ms": gpu_ms, "duration_ns": duration_ns}
    db.execute(insert(front).values(**where, **costs, loss=loss))


def loss_of(mode: Mode, value: float) -> float:
    """Return the metric as a loss, for which lower is better."""
    return -value if mode == "max" else value
