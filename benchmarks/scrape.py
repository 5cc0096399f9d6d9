"""`python -m benchmarks.scrape`: time of a /metrics scrape with 10,000 jobs and a million reports stored."""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, select

from tests import fakes
from tests.copies import copy_job
from tuner.database.tables import jobs, reports, trials
from tuner.ledger.readable import entries

RUNNING = 20
SCRAPES = 20


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--jobs", type=int, default=10_000)
    asked.add_argument("--reports", type=int, default=1_000_000)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-scrape-") as home:
        service = fakes.service_in(Path(home))
        client = fakes.client_of(service, own=True)
        ended = fakes.submit(client, budget={"usd": 0.0037})
        fakes.simulate(service, ended)
        under_way = fakes.submit(client)
        fakes.simulate(service, under_way, messages=120)
        with service.database.read() as db:
            each = db.execute(select(func.count()).where(reports.c.job == ended)).scalar_one()
        copy_job(service.database, ended, max(given.jobs - RUNNING, given.reports // each))
        copy_job(service.database, under_way, RUNNING, name="running")
        with service.database.read() as db:
            for table in (jobs, trials, reports, entries):
                print(f"{table.name}: {db.execute(select(func.count()).select_from(table)).scalar_one():,}")
        took = []
        for _ in range(1 + SCRAPES):
            service.now.pass_s(15)
            began = time.perf_counter()
            answer = client.get("/metrics")
            took.append(1000 * (time.perf_counter() - began))
            assert answer.status_code == 200
        print(f"series: {sum(not line.startswith('#') for line in answer.text.splitlines())}")
        print(f"first scrape of a process: {took[0]:.0f} ms")
        print(f"later ones: median {statistics.median(took[1:]):.0f} ms, slowest {max(took[1:]):.0f} ms")
        began = time.perf_counter()
        client.get("/metrics")
        print(f"within five seconds of another: {1000 * (time.perf_counter() - began):.1f} ms")


if __name__ == "__main__":
    main()
