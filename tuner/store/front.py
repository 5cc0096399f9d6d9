"""Which report is best within limits on what it costs, answered from a job's front.

The front of a job is the set of its reports that no other beats or equals in its metric, its dollars, its GPU time and its duration
at once (the skyline of Börzsönyi, Kossmann & Stocker, ICDE 2001). Whatever the limits, the best report within them is one
of it. It is an index: written in the transaction of each report, from the reports alone, and read in their stead, since of a
million reports some hundreds are left.
"""

from sqlalchemy import Connection, delete, insert, select

from tuner.domain.objective import Mode
from tuner.domain.records import ReportRow
from tuner.store.tables import front


def note(db: Connection, job: str, project: str, mode: Mode, report: ReportRow, *, seq: int) -> None:
    """Takes in a report with a metric, in the order of the job's events: of equal ones the first stays."""
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
    """Lower is better."""
    return -value if mode == "max" else value
