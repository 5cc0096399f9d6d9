"""Test that queries for the best result under limits return the same from the Pareto front of a job as from all
of its reports.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, select

from tests.fakes import database_in
from tests.store.builders import PROJECT, budget, create, new_job, spec
from tests.strategies import examples
from tuner.database.database import Connection, Database
from tuner.database.tables import reports
from tuner.domain.money import Cost, Money
from tuner.domain.objective import Fidelity, Mode, Objective
from tuner.domain.records import ReportRow
from tuner.domain.time import Instant
from tuner.store import best
from tuner.store.best import CostLimits
from tuner.store.journal import SqlJournal

NUMBERS = iter(range(10**9))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    sqlite_database = database_in(tmp_path_factory.mktemp("front"))
    yield sqlite_database
    sqlite_database.dispose()


@dataclass(frozen=True)
class Given:
    """A report: its trial and step, its value and its cost."""

    trial: int
    step: int
    value: float | None
    usd: int
    gpu_ms: int
    ns: int
    second: int = 0


FEW = st.integers(0, 4)
VALUES = st.none() | FEW.map(float) | st.sampled_from([float("nan"), float("inf"), -0.0, -1.5])
REPORTS = st.lists(st.builds(Given, FEW, FEW, VALUES, FEW, FEW, FEW, FEW), max_size=20)
MODES = st.sampled_from(["max", "min"])
SECONDS = st.sampled_from([None, Objective("latency", "min"), Objective("recall", "max")])
FIDELITIES = st.sampled_from(
    [Fidelity(), Fidelity(max=4, reduction_factor=2, proxies={"resolution": (16, 32)})]
)
SOME = (None, 0, 2)
LIMITS = [
    CostLimits(None if usd is None else Money(usd), gpu, ns) for usd, gpu, ns in product(SOME, SOME, SOME)
]


def job_with(
    database: Database,
    mode: Mode,
    given_reports: list[Given],
    fidelity: Fidelity,
    second: Objective | None = None,
) -> str:
    """Create a job with these reports. If several reports are of the same trial and step, the first counts."""
    job = f"job_{next(NUMBERS):016d}"
    new = new_job(job)
    wanted = replace(spec(budget()), objective=Objective("acc", mode), second=second, fidelity=fidelity)
    create(database, replace(new, spec=wanted))
    journal = SqlJournal(database, job, PROJECT, 1, Instant(0))
    with journal.transaction() as tx:
        for number in range(5):
            tx.put_trial(f"trial_{number:05d}", "running", at=Instant(0), config={"lr": 0.1})
        for report in given_reports:
            cost, trial = Cost(Money(report.usd), report.gpu_ms), f"trial_{report.trial:05d}"
            where, metrics = (
                (trial, 1, report.step, Instant(0)),
                {"latency": report.second, "recall": report.second},
            )
            if tx.put_report(ReportRow(*where, report.value, metrics, cost, report.ns)):
                tx.seq += 1
    return job


def loss(mode: str, row: Any) -> float:
    return -row.value if mode == "max" else float(row.value)


def second_loss(second: Objective | None, row: Any) -> float:
    return 0.0 if second is None else -second.score(json.loads(row.metrics)[second.metric])


def recorded(db: Connection, job: str) -> list[Any]:
    r = reports.c
    return list(db.execute(select(reports).where(r.job == job, r.value.is_not(None))))


def place(report: Any) -> tuple[str, int] | None:
    return None if report is None else (report.trial, report.step)


@examples(60, gate=30)
@given(given_reports=REPORTS, mode=MODES, fidelity=FIDELITIES, second=SECONDS)
def test_answers_equal_a_search_through_all_reports(
    database: Database, given_reports: list[Given], mode: Mode, fidelity: Fidelity, second: Objective | None
) -> None:
    check_answers(database, given_reports, mode, fidelity, second)


def check_answers(
    database: Database,
    given_reports: list[Given],
    mode: Mode,
    fidelity: Fidelity = Fidelity(),
    second: Objective | None = None,
) -> None:
    """Check all answers. With proxies, they are those of the reports of the highest stage."""
    job = job_with(database, mode, given_reports, fidelity, second)
    with database.read() as db:
        rows = recorded(db, job)
        highest = max((fidelity.stage(row.step) for row in rows), default=0)
        rows = [row for row in rows if fidelity.stage(row.step) == highest]

        def best_first(row: Any) -> Any:
            return loss(mode, row), row.usd, second_loss(second, row), row.duration_ns, row.gpu_ms, row.seq

        for limits in LIMITS:
            within = [row for row in rows if limits.allow(Money(row.usd), row.gpu_ms, row.duration_ns)]
            assert place(best.best(db, job, limits)) == place(min(within, key=best_first, default=None))

        def cheapest_first(row: Any) -> Any:
            return row.usd, loss(mode, row), second_loss(second, row), row.duration_ns, row.gpu_ms, row.seq

        for row in rows:
            better = [other for other in rows if loss(mode, other) < loss(mode, row)]
            wanted = min(better, key=cheapest_first, default=None)
            assert place(best.next_better(db, job, mode, row.value)) == place(wanted)
        least = min(
            rows, key=lambda row: (row.usd, row.gpu_ms, row.duration_ns, loss(mode, row)), default=None
        )
        cheap = best.cheapest(db, job)
        assert (cheap and cheap.cost.usd) == (least and Money(least.usd))
        points = {place(row): (row.usd, loss(mode, row), second_loss(second, row)) for row in rows}
        assert [points[place(report)] for report in best.pareto(db, job)] == sorted(
            {mine for mine in points.values() if not any(beats(other, mine) for other in points.values())}
        )


def beats(point: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return point != other and all(mine <= theirs for mine, theirs in zip(point, other, strict=True))


def test_queries_use_only_the_index_of_the_pareto_front(database: Database) -> None:
    job = job_with(
        database, "max", [Given(n % 5, n // 5 + 1, n / 10, n, n, n) for n in range(20)], Fidelity()
    )
    asked: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, _many: object) -> None:
        asked.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        with database.read() as db:
            best.best(db, job, CostLimits(Money(7), 9, 11))
            best.next_better(db, job, "max", 0.5)
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    selects = [query for query in asked if query[0].startswith("SELECT")]
    with database.read() as db:
        for statement, parameters in selects:
            plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            searched = [str(row[3]) for row in plan if row[3] != "USE TEMP B-TREE FOR ORDER BY"]
            assert all(step.startswith("SEARCH ") and " INDEX " in step for step in searched), plan
    assert any("front" in statement for statement, _ in selects)
