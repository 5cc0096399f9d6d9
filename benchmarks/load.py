"""`python -m benchmarks.load`: 200 requests a second to a real `tuner serve` with 10,000 jobs and a million reports stored, Ray idle.

Nine in ten requests read. The moments at which requests are sent are random and drawn in advance (a Poisson process), so a request does not
wait for earlier answers. Its time is measured from the planned moment, so that one slow response counts for every request that waits behind
it. A warm-up sends fewer requests while Ray starts. At the end, the same rate of requests is sent to the peer: a bare application of
FastAPI and SQLAlchemy, which reads a job's row of the same database by its id.

The mirror to Optuna is off, because it would copy the million reports at the same time.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from random import Random

import psutil
from sqlalchemy import func, select, text

from benchmarks.open_loop import Answered, Client, planned
from benchmarks.start import HOST, ended, started
from tests import fakes, postgres
from tests.copies import copy_job
from tests.fakes import FakeService
from tuner.cluster.head import LocalHead
from tuner.cluster.launch import free_ports
from tuner.database.database import Database
from tuner.database.tables import jobs, reports, trials
from tuner.domain.time import DAY_NS
from tuner.ledger.readable import entries

PAUSED, DAYS = 200, 90
# Warm-up before the measurement: shares of the rate, each for a number of seconds. A service that has just started gets its callers back
# gradually, too.
WARM = ((0.25, 40.0), (0.5, 30.0), (1.0, 10.0))
JOBS_SHOWN = 400
PEER = """
import json, sys, uvicorn
from fastapi import FastAPI
from sqlalchemy import create_engine, text
app, engine = FastAPI(), create_engine(sys.argv[1])
ROW = text("SELECT id, name, trainable, spec, budget, state, created_at, ended_at FROM jobs WHERE id = :job")
@app.get("/readyz")
def ready(): return {}
@app.get("/v1/jobs/{job}")
def job(job: str):
    with engine.connect() as db:
        return dict(db.execute(ROW, {"job": job}).one()._mapping)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
"""


@dataclass(frozen=True)
class Asked:
    """One request. `route` is the name under which its time is listed."""

    route: str
    method: str
    path: str
    body: bytes = b""
    key: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"]
    )
    parser.add_argument(
        "--services",
        type=int,
        default=1,
        help="number of services that share the database; requests go to each in turn",
    )
    given = parser.parse_args()
    for name in given.databases:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            on = (
                postgres.server(durable=True)
                if name == "postgresql"
                else nullcontext(f"sqlite:///{folder}/tuner.db")
            )
            with on as url:
                print(f"{name}; load {os.getloadavg()[0]:.1f}", flush=True)
                known = fill(Path(folder), url, given.jobs, given.reports)
                measure(Path(folder), url, known, given.rate, given.seconds, given.services)


@dataclass(frozen=True)
class Known:
    """Ids of the filled database: ended jobs with a trial and the number of each one's last event, and paused jobs."""

    ended: Sequence[str]
    trial: str
    last_event: int
    paused: Sequence[str]


def fill(home: Path, url: str, count: int, many_reports: int) -> Known:
    """Fill the database with copies of one simulated job, spread over the last months."""
    began = time.perf_counter()
    made = fakes.service_in(home)
    made.database.dispose()
    made.now.at = time.time_ns()
    database = Database(url)
    database.migrate()
    service = FakeService(made.settings, database, cluster=made.cluster, now=made.now)
    client = fakes.client_of(service, own=True)
    first = fakes.submit(client, budget={"usd": 0.0037})
    fakes.simulate(service, first)
    paused = fakes.submit(client)
    assert client.post(f"/v1/jobs/{paused}/pause").is_success
    with database.read() as db:
        each = db.execute(select(func.count()).where(reports.c.job == first)).scalar_one()
    copies = max(count - PAUSED, many_reports // each)
    copy_job(database, first, copies, apart_ns=DAYS * DAY_NS // copies)
    copy_job(database, paused, PAUSED, name="paused")
    with database.write() as db:  # unique names, so that cached data of one job cannot serve another
        db.execute(
            text("""UPDATE jobs SET spec = replace(spec, '"name":"digits"', '"name":"' || id || '"')""")
        )
    if not database.is_sqlite:
        with closing(database.engine.raw_connection()) as raw:  # outside of a transaction
            raw.cursor().execute("VACUUM ANALYZE")
    with database.read() as db:
        counted = [
            f"{db.execute(select(func.count()).select_from(table)).scalar_one():,} {table.name}"
            for table in (jobs, trials, reports, entries)
        ]
        last = db.execute(text("SELECT max(seq) FROM events WHERE job = :job"), {"job": first}).scalar_one()
        trial = db.execute(select(trials.c.trial).where(trials.c.job == first).limit(1)).scalar_one()
    database.dispose()
    print(f"  {', '.join(counted)}, made in {time.perf_counter() - began:.0f} s", flush=True)
    many = min(JOBS_SHOWN, count - PAUSED - 1)
    some = Random(0).sample(range(1, count - PAUSED), many)
    return Known([f"job_copy{n}" for n in some], trial, last, [f"job_paused{n}" for n in range(1, PAUSED)])


def measure(home: Path, url: str, known: Known, rate: float, seconds: float, services: int) -> None:
    *ports, peer_port = free_ports(services + 1)
    (home / "head").mkdir()
    head = LocalHead(home / "head", cpus=2, gpus=0)
    environment = {
        **os.environ,
        "TUNER_RAY_ADDRESS": head.find_or_start().dashboard_url,
        "RAY_AUTH_TOKEN": head.token,
        "TUNER_STORAGE": str(home / "storage"),
        "TUNER_DATABASE_URL": url,
        "TUNER_API_KEY": fakes.KEY * 2,
        "TUNER_CLOUD": "none",
        "TUNER_NODE_PRICES": "local=0.2",
        "TUNER_OPTUNA_STORAGE": "off",
        "TUNER_RATE_LIMIT": "100000",
    }
    tuner = [sys.executable, "-m", "tuner.cli.main"]
    try:
        with ExitStack() as stack:
            served = [
                stack.enter_context(
                    running(
                        [*tuner, "serve"],
                        port,
                        {**environment, "TUNER_PORT": str(port), "TUNER_HOME": str(home / str(port))},
                    )
                )
                for port in ports
            ]
            ours = asyncio.run(load(served, ports, requests(known), rate, seconds, "tuner"))
    finally:
        head.stop()
    read = url.replace("postgresql:", "postgresql+psycopg:")
    with running([sys.executable, "-c", PEER, read, str(peer_port)], peer_port, environment) as peer:
        rows = (Asked("GET a row", "GET", f"/v1/jobs/{job}") for job in cycle(known.ended))
        theirs = asyncio.run(
            load([peer], [peer_port], rows, rate, seconds / 3, "a bare FastAPI reading one row")
        )
    print(f"  p99 against the bare application's: {ours / theirs:.1f} ×", flush=True)


@contextmanager
def running(command: Sequence[str], port: int, environment: dict[str, str]) -> Iterator[psutil.Process]:
    process, _ = started(command, port, environment)
    try:
        yield psutil.Process(process.pid)
    finally:
        ended(process)


def requests(known: Known) -> Iterator[Asked]:
    """Yield requests without end; one in ten writes.

    Submitted jobs have a window that opens in hours, so that Ray stays idle.
    """
    chance, opens = Random(1), datetime.now(UTC) + timedelta(hours=8)
    window = {"start": f"{opens:%H:%M}", "end": f"{opens + timedelta(hours=1):%H:%M}"}
    number = 0
    while True:
        number += 1
        job, paused = chance.choice(known.ended), chance.choice(known.paused)
        reads = (
            (20, "GET job", f"/v1/jobs/{job}"),
            (10, "GET jobs", "/v1/jobs"),
            (5, "GET jobs?state", "/v1/jobs?state=paused&limit=20"),
            (5, "GET jobs?limit=100", "/v1/jobs?limit=100"),
            (12, "GET trials", f"/v1/jobs/{job}/trials"),
            (6, "GET trial", f"/v1/jobs/{job}/trials/{known.trial}"),
            (10, "GET best", f"/v1/jobs/{job}/best"),
            (6, "GET bill", f"/v1/jobs/{job}/bill"),
            (4, "GET spend?since", f"/v1/spend?since={opens:%Y-%m-%d}"),
            (7, "GET events", f"/v1/jobs/{job}/events?after={known.last_event - 20}"),
            (5, "GET curves", f"/v1/jobs/{job}/curves"),
        )
        if chance.random() < 0.9:
            _, route, path = chance.choices(reads, [read[0] for read in reads])[0]
            yield Asked(route, "GET", path)
        elif chance.random() < 0.5:
            body = json.dumps(fakes.body(window=window, tags={"owner": f"owner-{number % 20}"})).encode()
            yield Asked("POST jobs", "POST", "/v1/jobs", body, f"key-{number}")
        else:
            body = json.dumps({"priority": number % 100, "tags": {"run": str(number)}}).encode()
            yield Asked("PATCH job", "PATCH", f"/v1/jobs/{paused}", body)


async def load(
    processes: Sequence[psutil.Process],
    ports: Sequence[int],
    requests: Iterator[Asked],
    rate: float,
    seconds: float,
    name: str,
) -> float:
    """Send the requests, print their times by route, and return the 99th percentile of all in seconds."""
    client = Client(HOST, ports, f"Bearer {fakes.KEY * 2}")

    def spent_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    # waits until the metrics are read for the first time
    series = await client.get("/metrics") if name == "tuner" else b""
    for share, warm_s in WARM:
        await planned(client, requests, share * rate, warm_s)
    gc.collect()
    gc.disable()
    before = spent_s()
    answers = await planned(client, requests, rate, seconds)
    used = spent_s() - before
    gc.enable()
    if name == "tuner":
        series = await client.get("/metrics")
        print(
            f"  series of /metrics: {sum(bool(line) and not line.startswith(b'#') for line in series.splitlines())}"
        )
    client.close()
    table(answers)
    high = percentile([answer.seconds for answer in answers], 0.99)
    wrong = sum(not answer.ok for answer in answers)
    print(
        f"  {name}: {len(answers) / seconds:.0f} a second, p99 {1000 * high:.1f} ms, {wrong} errors; "
        f"{1000 * used / len(answers):.2f} ms of processor time a request, {100 * used / seconds:.0f} % of a core; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return high


def table(answers: Sequence[Answered]) -> None:
    by_route: dict[str, list[Answered]] = defaultdict(list)
    for answer in answers:
        by_route[answer.route].append(answer)
    print(
        "  | route | requests | p50 ms | p95 | p99 | slowest | errors |\n  | --- | --- | --- | --- | --- | --- | --- |"
    )
    for route, those in [*sorted(by_route.items()), ("all", list(answers))]:
        ms = [
            1000 * percentile([answered_request.seconds for answered_request in those], share)
            for share in (0.5, 0.95, 0.99, 1)
        ]
        cells = " | ".join(f"{latency:.1f}" for latency in ms)
        wrong = [answered_request for answered_request in those if not answered_request.ok]
        print(f"  | {route} | {len(those)} | {cells} | {len(wrong)} |")
        for answer in wrong[:1]:
            print(f"    such as: {answer.status} {answer.body[:200]!r}")


def percentile(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


if __name__ == "__main__":
    main()
