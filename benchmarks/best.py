"""`python -m benchmarks.best`: time to find the best trial within limits, for a job of 10,000 trials with 100 reports each.

Compares the stored Pareto front with a scan of all reports, on SQLite and on PostgreSQL. Also measures how much longer it takes to write a
report when the front is updated, too.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from random import Random
from typing import Any

from sqlalchemy import insert, select, text
from sqlalchemy.engine import Connection

from tests import postgres
from tests.store.builders import JOB, PROJECT, budget, create, new_job
from tuner.database.database import Database
from tuner.database.tables import front as front_table
from tuner.database.tables import reports, trials
from tuner.domain.ids import trial_id
from tuner.domain.job import JobSpec
from tuner.domain.money import Cost, Money
from tuner.domain.objective import Fidelity
from tuner.domain.records import ReportRow
from tuner.domain.time import NS, Instant
from tuner.service import next_dollar
from tuner.store import best, jobs, journal
from tuner.store.best import CostLimits
from tuner.store.pareto_front import ParetoFront

QUESTIONS, SCANS, WRITES = 300, 20, 500
MICRO_USD_PER_HOUR = 2_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=100)
    given = parser.parse_args()
    for name, database in databases():
        with database as url:
            measure(name, Database(url), given.trials, given.reports)


def front_of_reports(db: Connection, job: str) -> list[dict[str, Any]]:
    """Return the rows of the front of a job that maximizes its metric, for reports that were written without it.

    The best metric is read first, so only an earlier report can beat a later one.
    """
    ranked = (
        select(reports)
        .where(reports.c.job == job, reports.c.value.is_not(None))
        .order_by(
            reports.c.value.desc(), reports.c.usd, reports.c.duration_ns, reports.c.gpu_ms, reports.c.seq
        )
    )
    rows: list[dict[str, Any]] = []
    costs: list[tuple[int, int, int]] = []
    for row in db.execute(ranked).yield_per(5000):
        if not any(
            usd <= row.usd and gpu_ms <= row.gpu_ms and ns <= row.duration_ns for usd, gpu_ms, ns in costs
        ):
            costs.append((row.usd, row.gpu_ms, row.duration_ns))
            values = {name: getattr(row, name) for name in front_table.c.keys() if name != "loss"}  # noqa: SIM118
            rows.append({**values, "loss": -row.value})
    return rows


def databases() -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield "SQLite", nullcontext(f"sqlite:///{folder}/tuner.db")
    if postgres.programs() is not None:
        yield "PostgreSQL", postgres.server(durable=True)


def measure(name: str, database: Database, count: int, steps: int) -> None:
    database.migrate()
    asked = new_job(limits=budget(10**15))
    # All trials are cut short, so that there is much to forecast.
    create(database, replace(asked, spec=replace(asked.spec, fidelity=Fidelity(max=3 * steps))))
    began = time.perf_counter()
    with database.write() as db:
        fill(db, count, steps)
    print(f"{name}: {count * steps} reports written in {time.perf_counter() - began:.0f} s", flush=True)
    began = time.perf_counter()
    with database.write() as db:
        made = front_of_reports(db, JOB)
        db.execute(insert(front_table), made)
    seconds = time.perf_counter() - began
    print(f"  the front has {len(made)} of them; made afterwards, from all reports, in {seconds:.1f} s")
    with database.engine.connect() as db:
        if not database.is_sqlite:
            db.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))
    with database.read() as db:
        limits = list(questions(db))
        report("  best from the front", [timed(lambda at=at: best.best(db, JOB, at)) for at in limits])
        report("  next better", [timed(lambda: best.next_better(db, JOB, "max", 0.5)) for _ in limits])
        report("  the whole front", [timed(lambda: best.pareto(db, JOB)) for _ in range(SCANS)])
        report("  best by a scan", [timed(lambda at=at: scan(db, at)) for at in limits[:SCANS]])
        for at in limits[:SCANS]:
            best_point, wanted = best.best(db, JOB, at), scan(db, at)
            assert (best_point and (best_point.trial, best_point.step)) == (
                wanted and (wanted.trial, wanted.step)
            )
        row = jobs.get(db, JOB)
    report("  a forecast", [timed(lambda: next_dollar.forecast(database, row)) for _ in range(3)])
    writes(database, count, steps)
    database.dispose()


def report(what: str, seconds: list[float]) -> None:
    ms = sorted(1000 * duration for duration in seconds)
    print(
        f"{what}: median {statistics.median(ms):.2f} ms, 99 % {ms[math.ceil(0.99 * len(ms)) - 1]:.2f} ms, "
        f"slowest {ms[-1]:.2f} ms",
        flush=True,
    )


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def fill(db: Connection, count: int, steps: int) -> None:
    """Insert trials with noisy curves that rise to an asymptote.

    Steps take from a tenth of a second to a minute on one GPU, and some machines are more expensive than others.
    """
    rng = Random(0)
    for first in range(0, count, 100):
        numbers = range(first, min(count, first + 100))
        db.execute(insert(trials), [trial(number, steps) for number in numbers])
        db.execute(insert(reports), [row for number in numbers for row in curve(rng, number, steps)])


def trial(number: int, steps: int) -> dict[str, Any]:
    row = {"job": JOB, "project": PROJECT, "trial": trial_id(number), "number": number, "state": "completed"}
    times = {"seq": 0, "created_at": 0, "updated_at": 0}
    return {
        **row,
        **times,
        "config": '{"lr": 0.1}',
        "reason": "",
        "steps": steps,
        "value": number % 997 / 997,
    }


def curve(rng: Random, number: int, steps: int) -> Iterator[dict[str, Any]]:
    end, speed = rng.betavariate(2, 2), rng.uniform(0.02, 0.5)
    step_ns, setup_ns = (
        int(math.exp(rng.uniform(math.log(0.1), math.log(60))) * NS),
        int(rng.uniform(1, 5) * NS),
    )
    price = MICRO_USD_PER_HOUR * rng.choice((1, 1, 2))
    for step in range(1, steps + 1):
        ns = setup_ns + step * step_ns
        value = end * (1 - math.exp(-speed * step)) + rng.gauss(0, 0.01)
        yield {
            "job": JOB,
            "project": PROJECT,
            "trial": trial_id(number),
            "step": step,
            "attempt": 1,
            "at": 0,
            "value": value,
            "metrics": f'{{"acc": {value}}}',
            "usd": ns * price // (3600 * NS),
            "gpu_ms": ns // 10**6,
            "duration_ns": ns,
            "seq": number * steps + step,
        }


def questions(db: Connection) -> Iterator[CostLimits]:
    """Yield limits on dollars, GPU time, duration or several of them, between nothing and everything."""
    rng = Random(1)
    most_expensive = max(row.usd for row in best.points(db, JOB))
    longest = max(row.duration_ns for row in best.points(db, JOB))
    for _ in range(QUESTIONS):
        share = math.exp(rng.uniform(math.log(0.001), math.log(1.5)))
        usd, ns = int(most_expensive * share), int(longest * share * rng.uniform(0.3, 3))
        yield rng.choice(
            (
                CostLimits(),
                CostLimits(Money(usd)),
                CostLimits(gpu_ms=ns // 10**6),
                CostLimits(duration_ns=ns),
                CostLimits(Money(usd), duration_ns=ns),
                CostLimits(Money(usd), ns // 10**6, ns),
            )
        )


def scan(db: Connection, limits: CostLimits) -> Any:
    r = reports.c
    query = select(reports).where(r.job == JOB, r.value.is_not(None))
    for column, most in (
        (r.usd, limits.usd and limits.usd.micro_usd),
        (r.gpu_ms, limits.gpu_ms),
        (r.duration_ns, limits.duration_ns),
    ):
        if most is not None:
            query = query.where(column <= most)
    order = (r.value.desc(), r.usd, r.duration_ns, r.gpu_ms, r.seq)
    return db.execute(query.order_by(*order).limit(1)).first()


def writes(database: Database, count: int, steps: int) -> None:
    """Time the transactions that write one report each, with and without maintaining the front."""
    rng, number = Random(2), count
    kept = ParetoFront.note
    spec = new_job().spec
    with database.read() as db:
        recorded = journal._Recorded.load(db, JOB, PROJECT, spec)
    for words, note in (("with the front", kept), ("without it", lambda *_, **__: None)):
        with noting(note):
            seconds = []
            rows = [row for at in range(WRITES // steps) for row in curve(rng, number + at, steps)]
            for row in rows:
                made = ReportRow(
                    row["trial"], 1, row["step"], Instant(0), row["value"], {"acc": row["value"]},
                    Cost(Money(row["usd"]), row["gpu_ms"]), row["duration_ns"],
                )  # fmt: skip
                seconds.append(timed(lambda made=made: put(database, made, spec, recorded)))
            report(f"  a report written {words}", seconds)
        number += WRITES // steps


def put(database: Database, row: ReportRow, spec: JobSpec, recorded: journal._Recorded) -> None:
    with database.write() as db:
        journal.SqlTx(db, JOB, PROJECT, 1, 0, 0, spec=spec, recorded=recorded).put_report(row)


@contextmanager
def noting(note: Callable[..., None]) -> Iterator[None]:
    kept = ParetoFront.note
    ParetoFront.note = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        ParetoFront.note = kept  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
