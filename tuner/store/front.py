"""The front of a job, from which the best report within limits on its cost is answered.

The front is the set of the job's reports that no other report equals or beats in metric, dollars, GPU time and duration
at once (the skyline of Börzsönyi, Kossmann & Stocker, ICDE 2001). For all limits, the best report within them is on the
front. It is an index: it derives from the reports alone, is written in the transaction of each report, and is read
instead of the reports, because of a million reports only some hundreds are on it.
"""

from sqlalchemy import Connection, delete, insert, select

from tuner.domain.objective import Mode
from tuner.domain.records import ReportRow
from tuner.store.tables import front


def note(db: Connection, job: str, project: str, mode: Mode, report: ReportRow, *, seq: int) -> None:
    """Add a report with a metric to the front, in the order of the job's events. Of equal reports the first stays."""
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
    """Return the metric as a loss, of which lower is better."""
    return -value if mode == "max" else value
