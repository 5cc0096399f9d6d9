"""Reports as points of metric against cost, read from the database."""

from dataclasses import dataclass

from sqlalchemy import select

from tests.fakes import FakeService
from tuner.database.tables import reports
from tuner.domain.events import Reported
from tuner.domain.records import ReportRow
from tuner.store.journal import SqlTx


@dataclass(frozen=True)
class Point:
    trial: str
    step: int
    score: float
    usd: int
    gpu_ms: int
    ns: int
    seq: int

    @property
    def order(self) -> tuple[float, int, int, int, int]:
        """Sort key: the best first, then the cheapest, the fastest, the fewest GPU milliseconds and the oldest."""
        return -self.score, self.usd, self.ns, self.gpu_ms, self.seq

    @property
    def cheapest_first(self) -> tuple[int, float, int, int, int]:
        return self.usd, -self.score, self.ns, self.gpu_ms, self.seq


def points(service: FakeService, job: str, mode: str) -> list[Point]:
    sign = 1 if mode == "max" else -1
    with service.database.read() as db:
        rows = db.execute(select(reports).where(reports.c.job == job, reports.c.value.is_not(None))).all()
    return [Point(r.trial, r.step, sign * r.value, r.usd, r.gpu_ms, r.duration_ns, r.seq) for r in rows]


def put_report(tx: SqlTx, row: ReportRow) -> None:
    """Record the report with its event, as a driver does."""
    tx.put_report(row)
    tx.append(Reported(row.at, row.trial, row.step, row.value, row.cost.usd))
