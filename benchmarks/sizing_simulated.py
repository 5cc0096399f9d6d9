"""`python -m benchmarks.sizing --simulated`: the service with a cluster of 1,000 nodes and a database of 10,000 jobs.

The database (PostgreSQL, then SQLite), controller, reconciler, admission and REST are real. Only the cluster is simulated: it lists nodes
that do not exist, and reports that all drivers run. 250 jobs of 4 trials each fill the cluster, 1,000 wait in the queue, and the others
have ended. Finally, the tuning core is measured alone: one job with 1,000 trials at once.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import event, func, select, text

from benchmarks.decisions import Job
from tests import fakes, postgres
from tests.copies import copy_job
from tests.fakes import FakeCluster, FakeService
from tuner.cluster.jobs import JobStatus
from tuner.cluster.nodes import Node
from tuner.database.database import Database
from tuner.database.tables import jobs, reports, trials
from tuner.domain.job import SamplerName, SchedulerName
from tuner.domain.time import NS
from tuner.ledger.readable import entries
from tuner.service.cluster_room import has_room
from tuner.service.controller import Controller
from tuner.service.offers import offers_of
from tuner.service.reconciler import Reconciler
from tuner.service.simulation import simulate
from tuner.store import jobs as rows

NODES, RUNNING, WAITING, OWNERS = 1000, 250, 1000, 10
PER_JOB = NODES // RUNNING
TIMES = 20
# The time Ray's dashboard takes to return the state of a job, from the real run.
STATUS_S = 0.004
TABLE = Path(__file__).parent / "data" / "lcbench_adult_300.npz"
SIZE = {"cpus": 1, "max_concurrent_trials": PER_JOB}


@dataclass
class LargeCluster(FakeCluster):
    """A cluster on which every driver runs. Each status query takes `STATUS_S`, as over HTTP."""

    fake_nodes: list[Node] = field(
        default_factory=lambda: [Node(f"n{n}", cpus=1, gpus=0, memory_bytes=8 << 30) for n in range(NODES)]
    )
    status_queries: int = 0

    def status(self, submission_id: str) -> JobStatus:
        self.status_queries += 1
        time.sleep(STATUS_S)
        return "running"


def main(jobs: int) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="sizing-") as home:
        with postgres.server(durable=True) as url:
            Measured(Path(home) / "postgresql", url).run(jobs)
        Measured(Path(home) / "sqlite", f"sqlite:///{home}/sqlite/tuner.db").run(jobs)
    core()


class Measured:
    """One filled database and its service."""

    def __init__(self, home: Path, url: str) -> None:
        made = fakes.service_in(home)
        made.database.dispose()
        (home / "tuner.db").unlink()
        database = Database(url)
        database.migrate()
        self.service = FakeService(made.settings, database, cluster=LargeCluster(), now=made.now)
        self.client = fakes.client_of(self.service, own=True)
        self._statements = 0
        event.listen(database.engine, "before_cursor_execute", self._count)

    def _count(self, *_: Any) -> None:
        self._statements += 1

    def run(self, count: int) -> None:
        self._fill(count)
        self._size()
        running = next(iter(self._ids("running")))
        controller, reconciler = Controller(self.service), Reconciler(self.service)
        self._time("the first pass of the controller", controller.one_pass, times=1)
        self._time("a pass of the controller", controller.one_pass)
        self._time("a pass of the reconciler", reconciler.one_pass, pause_s=1)
        self._time("GET /metrics, the first of a process", self._get("/metrics"), times=1)
        self._time("GET /metrics", self._get("/metrics"), pause_s=15)
        for path, times in (
            ("/v1/jobs", 5),
            ("/v1/jobs?limit=500", 1),
            (f"/v1/jobs/{running}", TIMES),
            (f"/v1/jobs/{running}/best", TIMES),
        ):
            self._time(f"GET {path.replace(running, '{job}')}", self._get(path), times=times)
        self._time("POST /v1/jobs", lambda: fakes.submit(self.client, resources=SIZE))
        with self.service.database.read() as db:
            under_way = [rows.get(db, job) for job in self._ids("running")]
        row, nodes = under_way[0], self.service.cluster.nodes()
        wanted = row.spec.resources
        self._time("offers_of", lambda: offers_of(self.service.settings, nodes, wanted))
        self._time("has_room", lambda: has_room(nodes, under_way, row))
        print(f"  memory of this process: {psutil.Process().memory_info().rss / 2**20:.0f} MiB")
        self.service.database.dispose()

    def _fill(self, count: int) -> None:
        """Fill the database with copies of jobs that the simulator ran."""
        ended = fakes.submit(self.client, budget={"usd": 1, "trials": 5})
        fakes.simulate(self.service, ended)
        under_way = fakes.submit(self.client, resources=SIZE)
        fakes.simulate(self.service, under_way, messages=120)
        self.service.now.at += 60 * NS
        waiting = [
            fakes.submit(self.client, resources=SIZE, tags={"owner": f"owner-{n}"}) for n in range(OWNERS)
        ]
        database = self.service.database
        copy_job(database, ended, count - RUNNING - WAITING - 1)
        copy_job(database, under_way, RUNNING - 1, name="running")
        for n, job in enumerate(waiting):
            copy_job(database, job, WAITING // OWNERS - 1, name=f"waiting{n}x")
        if not database.is_sqlite:
            with closing(database.engine.raw_connection()) as raw:  # outside of a transaction
                raw.cursor().execute("ANALYZE")

    def _ids(self, state: str) -> Iterator[str]:
        with self.service.database.read() as db:
            yield from db.execute(select(jobs.c.id).where(jobs.c.state == state)).scalars().all()

    def _size(self) -> None:
        name = "SQLite" if self.service.database.is_sqlite else "PostgreSQL"
        with self.service.database.read() as db:
            counted = [
                f"{db.execute(select(func.count()).select_from(table)).scalar_one():,} {table.name}"
                for table in (jobs, trials, reports, entries)
            ]
            size = db.execute(text(SIZES[name])).scalar_one()
        print(f"{name}: {', '.join(counted)}, {int(size) / 2**20:.0f} MiB", flush=True)

    def _get(self, path: str) -> Callable[[], None]:
        return lambda: assert_ok(self.client.get(path).status_code)

    def _time(
        self, what: str, act: Callable[[], object], *, times: int = TIMES, pause_s: float = 0.0
    ) -> None:
        """Time `act` repeatedly, with `pause_s` seconds of the service's clock before each call."""
        cluster = self.service.cluster
        assert isinstance(cluster, LargeCluster)
        took_ms, statements, asked = [], self._statements, cluster.status_queries
        for _ in range(times):
            self._send_heartbeat()
            self.service.now.pass_s(pause_s)
            began = time.perf_counter()
            act()
            took_ms.append(1000 * (time.perf_counter() - began))
        statements, asked = self._statements - statements, cluster.status_queries - asked
        with_asking = f", {asked / times:.0f} drivers asked for" if asked else ""
        print(
            f"  {what}: median {statistics.median(took_ms):.1f} ms, slowest {max(took_ms):.1f}, "
            f"{statements / times:.0f} statements{with_asking}",
            flush=True,
        )

    def _send_heartbeat(self) -> None:
        """Record a fresh heartbeat for every driver."""
        with self.service.database.write() as db:
            db.execute(
                text("UPDATE launches SET heartbeat_at = :at WHERE state = 'running'"),
                {"at": self.service.now()},
            )


SIZES = {
    "PostgreSQL": "SELECT pg_database_size(current_database())",
    "SQLite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
}


def assert_ok(status: int) -> None:
    assert status == 200, status


def core() -> None:
    """Time the decisions of one job with a trial on each node."""
    began = time.perf_counter()
    job = Job(10_000, concurrency=NODES).run()
    seconds = time.perf_counter() - began
    took = sorted(job.took_ns)
    print(
        f"decisions alone, 10,000 trials, {NODES:,} at once: {len(took) / seconds:,.0f} a second; median {took[len(took) // 2] / 1000:.0f} "
        f"µs, 99 of 100 within {took[len(took) * 99 // 100] / 1000:.0f}"
    )
    policies: list[tuple[SchedulerName, SamplerName]] = [("asha", "random"), ("auto", "auto")]
    for scheduler, sampler in policies:
        began = time.process_time()
        done = simulate(TABLE, 1000, workers=NODES, scheduler=scheduler, sampler=sampler)
        seconds = time.process_time() - began
        print(
            f"a simulated job, {scheduler} and {sampler}, {NODES:,} workers: {done.trials:,} trials, {done.steps:,} steps, {seconds:.1f} s "
            f"of CPU, {done.steps / seconds:,.0f} steps a second"
        )
