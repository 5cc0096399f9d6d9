"""A service without Ray: a fake cluster, a fake prober, a fake clock, and jobs whose results come from the
simulator.
"""

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from fastapi import FastAPI
from sqlalchemy import event
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from tests.one_loop import OneLoopClient
from tuner.api.app import create_app
from tuner.api.response_cache import AnswerCache
from tuner.api.routers.curves import CurvesText
from tuner.cluster.dashboard import RayUnavailable
from tuner.cluster.jobs import JobStatus
from tuner.cluster.nodes import Node
from tuner.cluster.versions import RayUnfit
from tuner.database.database import Database
from tuner.database.sqlite import sqlite3
from tuner.domain.space import Config
from tuner.domain.time import NS, Instant
from tuner.driver.ports import LoopConfig
from tuner.driver.warm_starts import NO_WARM_STARTS, WarmStarts
from tuner.service.bootstrap import Service
from tuner.service.cluster import DashboardAccess
from tuner.service.cluster_meter import ClusterMeter
from tuner.service.trainables import Described
from tuner.settings import Settings
from tuner.simulator.journal import Tables
from tuner.simulator.traces import UpTimes
from tuner.simulator.worker import EPOCH_NS, Overheads, SimulatedClock, Training
from tuner.simulator.world import NONE, NORMAL, Faults, SimulatedRun, SpotMachines
from tuner.store import jobs, launches
from tuner.store.journal import SqlJournal
from tuner.store.queue import QueuePlaces
from tuner.tuning.samplers import Sampler

KEY = "tk_of_a_test"
ENTRY = "trainables.digits_mlp:train"
EPOCH = Instant(EPOCH_NS)
RAY = DashboardAccess("http://127.0.0.1:8265", "token of Ray")
SMALL = Node("n1", cpus=2, gpus=0, memory_bytes=8 << 30)


class FakeClock:
    """A clock that moves only when a test calls `pass_s`."""

    def __init__(self) -> None:
        self.at = EPOCH_NS

    def __call__(self) -> Instant:
        return Instant(self.at)

    def pass_s(self, seconds: float) -> None:
        self.at += round(seconds * NS)


@dataclass
class FakeCluster:
    """Implement `Cluster` in memory. `submitted` records every call, including repeated ones. A driver is
    pending until a test sets its status.
    """

    fake_nodes: list[Node] = field(default_factory=lambda: [SMALL])
    submitted: list[str] = field(default_factory=list)
    codes: list[str | None] = field(default_factory=list)
    told_about: dict[str, Mapping[str, str]] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    statuses: dict[str, JobStatus] = field(default_factory=dict)
    failures_left: int = 0
    is_down: bool = False
    unfit: str = ""
    log: str = "the driver's last words"
    ensured: int = 0
    starts: bool = False
    door: DashboardAccess | None = RAY

    def ensure(self) -> None:
        self._reach()
        self.ensured += 1

    def is_starting(self) -> bool:
        return self.starts

    def nodes(self) -> list[Node]:
        self._reach()
        return list(self.fake_nodes)

    def check_fit(self) -> None:
        if self.unfit:
            raise RayUnfit(self.unfit)

    def submit(
        self, submission_id: str, *, job: str, epoch: int, about: Mapping[str, str], code: str | None
    ) -> None:
        self._reach()
        self.check_fit()
        self.codes.append(code)
        assert submission_id == f"{job}-{epoch}"
        self.told_about[submission_id] = about
        self.submitted.append(submission_id)
        self.statuses.setdefault(submission_id, "pending")
        if self.failures_left:
            self.failures_left -= 1
            raise RayUnavailable("the answer was lost on its way")

    def submit_export(self, submission_id: str, *, job: str, export: str) -> None:
        self._reach()
        assert submission_id.startswith(f"{job}-{export}-")
        self.submitted.append(submission_id)
        self.statuses.setdefault(submission_id, "pending")

    def status(self, submission_id: str) -> JobStatus:
        self._reach()
        return self.statuses.get(submission_id, "unknown")

    def stop(self, submission_id: str) -> None:
        self.stopped.append(submission_id)

    def log_tail(self, submission_id: str) -> str:
        return self.log

    def dashboard_access(self) -> DashboardAccess | None:
        return self.door

    def end_start(self) -> bool:
        return True

    def shut_down(self) -> bool:
        self.is_down = True
        return True

    def _reach(self) -> None:
        if self.is_down:
            raise RayUnavailable("the cluster is down")


@dataclass
class FakeProber:
    """Describe every trainable as valid, except those that `errors` contains."""

    errors: dict[str, str] = field(default_factory=dict)
    described: list[str] = field(default_factory=list)

    def describe(self, entry: str, package: Path | None = None, *, kind: str = "") -> Described:
        self.described.append(entry)
        space = {"lr": {"type": "float", "low": 0.0001, "high": 1.0, "log": True}}
        error = self.errors.get(entry)
        return Described(entry, "A fake.", space, {"metric": "acc", "mode": "max"}, error)


@dataclass(frozen=True)
class FakeService(Service):
    """A service whose cluster, prober and clock are the fakes. It reads the queue for each view, because its clock stands still."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    prober: FakeProber = field(default_factory=FakeProber)
    now: FakeClock = field(default_factory=FakeClock)
    queue_places: QueuePlaces = field(default_factory=lambda: QueuePlaces(kept_ns=0))


def _folder_of_this_run() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tuner-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _empty_database() -> Path:
    path = _folder_of_this_run() / "tuner.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.dispose()
    return path


def database_in(home: Path) -> Database:
    """Create a database in `home` by copying one that is migrated once for all tests. It does not sync to disk."""
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_empty_database(), home / "tuner.db")
    database = Database(f"sqlite:///{home}/tuner.db")
    event.listen(database.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    return database


def database_in_memory() -> Database:
    """Create an in-memory database as a copy of the migrated one."""
    database = Database("sqlite://")
    with (
        contextlib.closing(sqlite3.connect(_empty_database())) as empty,
        database.engine.connect() as db,
    ):
        empty.backup(db.connection.driver_connection)  # type: ignore[arg-type]
    return database


def service_in(home: Path) -> FakeService:
    environ = {"TUNER_HOME": str(home), "TUNER_API_KEY": KEY, "TUNER_NODE_PRICES": "local=0.2"}
    environ |= {"TUNER_RATE_LIMIT": "1000000", "TUNER_OPTUNA_STORAGE": "off"}
    return FakeService(Settings.from_env(environ), database_in(home))


class SharedApp:
    """Serve many services with one app, because creating an app takes 50 ms and its only state is its service."""

    def __init__(self, service: Service) -> None:
        self._app, self._service = shared_app(), service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._app.state.service = self._service
        await self._app(scope, receive, send)


@cache
def shared_app() -> FastAPI:
    return app_of(service_in(_folder_of_this_run()))


def app_of(service: Service, **options: Any) -> FastAPI:
    """Create an app that never returns an outdated answer. Otherwise a slow first answer would decide a test."""
    app = create_app(service, **options)
    app.state.responses = AnswerCache[bytes](len, oldest_s=0)
    app.state.curves = AnswerCache(CurvesText.size, oldest_s=0)
    return app


def stand_idle(service: FakeService, *workers: Node, looks: int, seconds: float) -> None:
    """Let `workers` stand idle while the meter looks `looks` times after the first, `seconds` apart. Restore
    the previous nodes at the end.
    """
    meter, before = ClusterMeter(service), service.cluster.fake_nodes
    service.cluster.fake_nodes = list(workers)
    meter.measure()
    for _ in range(looks):
        service.now.pass_s(seconds)
        meter.measure()
    service.cluster.fake_nodes = before


def client_of(
    service: Service, *, with_key: bool = True, raises: bool = True, own: bool = False
) -> TestClient:
    """Return a client of the service.

    Args:
        own: Create a separate app, so that its metrics count only this service's requests.
    """
    headers = {"Authorization": f"Bearer {KEY}"} if with_key else {}
    app = app_of(service) if own else SharedApp(service)
    return OneLoopClient(app, headers=headers, raise_server_exceptions=raises)


def fixtures(scope: Literal["function", "module"]) -> tuple[Any, Any]:
    """Return fixtures for a service and its client. A module assigns the first to `service` and the second to
    any name.
    """

    @pytest.fixture(scope=scope)
    def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeService]:
        made = service_in(tmp_path_factory.mktemp("home"))
        yield made
        made.database.dispose()

    @pytest.fixture(scope=scope)
    def client(service: FakeService) -> TestClient:
        return client_of(service)

    return service, client


def body(**changes: Any) -> dict[str, Any]:
    """Return the body of a valid job request, with `changes` applied."""
    right: dict[str, Any] = {
        "name": "digits",
        "trainable": ENTRY,
        "objective": {"metric": "acc", "mode": "max"},
        "search_space": {
            "lr": {"type": "float", "low": 0.0001, "high": 1.0, "log": True},
            "width": {"type": "int", "low": 8, "high": 64},
        },
        "fidelity": {"unit": "epoch", "min": 1, "max": 9, "reduction_factor": 3},
        "budget": {"usd": 0.001},
        "algorithm": {"scheduler": "asha", "sampler": "random", "seed": 1},
    }
    return {**right, **changes}


def submit(client: TestClient, **changes: Any) -> str:
    """Submit a job and return its id."""
    answer = client.post("/v1/jobs", json=body(**changes))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


class Curves:
    """Training curves: a step takes 0.6 to 1.5 s, and larger widths are slower. The learning rate does not
    affect the metric.
    """

    def step_ns(self, config: Config, step: int) -> int:
        return int((0.5 + int(str(config["width"])) / 64) * 1e9)

    def value(self, config: Config, step: int) -> float:
        noise = Random(f"{config}/{step}").uniform(-0.05, 0.05)
        return round(float(str(config["width"])) / 640 - 0.3 / step + noise, 3)


class SimulatedSqlJournal(SqlJournal):
    """The SQL journal, with what a simulated run needs in addition to the port."""

    def __init__(self, database: Database, job: str, project: str, at: Instant) -> None:
        with database.write() as db:
            launch = launches.get(db, job)
            assert launch is not None
            launches.record_heartbeat(db, job, launch.epoch, at)
            jobs.begin_running(db, job, at=at)
        super().__init__(database, job, project, launch.epoch, at)
        self.ran_ns, self.watchers = super().running_ns(), list[Any]()

    @property
    def tables(self) -> Tables:
        return Tables(self.account())

    def running_ns(self) -> int:
        return self.ran_ns


def simulate(
    service: FakeService,
    job: str,
    *,
    messages: int | None = None,
    training: Training | None = None,
    overheads: Overheads = NORMAL,
    faults: Faults = NONE,
    seed: int = 0,
    up_s: Sequence[tuple[float, float | None]] | None = None,
    at: Instant = EPOCH,
    warm_starts: WarmStarts = NO_WARM_STARTS,
    journal: Callable[[Database, str, str, Instant], SimulatedSqlJournal] = SimulatedSqlJournal,
    sampler: Callable[[], Sampler] | None = None,
) -> SimulatedRun:
    """Run a waiting job in the simulator, to its end or for `messages` messages, and write to the service's
    database.

    Args:
        up_s: The periods in which the machines exist, as (start, end) in seconds. Each ends with a notice of 2 s.
            If it is None, the machines always exist.
        at: The time of the clock at the start.
        sampler: Returns a new sampler of the job. If it is None, the sampler does not learn from earlier jobs.
    """
    with service.database.read() as db:
        row = jobs.get(db, job)
    rate = row.offer.rate(row.spec.resources)
    sql_journal: Any = journal(service.database, job, service.project, at)
    run = SimulatedRun(
        row.spec,
        LoopConfig(job, rate, row.concurrency, 10 * NS),
        training or Curves(),
        overheads=overheads,
        faults=faults,
        seed=seed,
        machines=SpotMachines(
            up_times=None if up_s is None else [_up_times(up_s) for _ in range(row.concurrency)],
            notice_ns=2 * NS,
        ),
        warm_starts=warm_starts,
        journal=sql_journal,
        clock=_clock(at),
        sampler=sampler,
    )
    if messages is None:
        run.run(turns_max=100_000)
    else:
        for _ in range(messages):
            run.clock.run_next()
    service.now.at = max(service.now.at, run.clock.now())
    return run


def _up_times(up_s: Sequence[tuple[float, float | None]]) -> Iterator[UpTimes]:
    return iter([UpTimes(round(a * NS), None if b is None else round(b * NS)) for a, b in up_s])


def _clock(at: Instant) -> SimulatedClock:
    clock = SimulatedClock()
    clock.offset_ns = at
    return clock


def begin(service: FakeService, job: str) -> None:
    """Record the first heartbeat of the job's driver and set the job to running."""
    with service.database.write() as db:
        launch = launches.get(db, job)
        assert launch is not None
        launches.record_heartbeat(db, job, launch.epoch, service.now())
        jobs.begin_running(db, job, at=service.now())


def move(service: FakeService, job: str, state: Any, reason: Any = None) -> None:
    """Move a job to `state` as the driver does: end its launch unless it is still running."""
    with service.database.write() as db:
        launch = launches.get(db, job)
        assert launch is not None
        jobs.move(db, job, state, reason, at=service.now())
        if state != "running":
            launches.end(db, job, launch.epoch)
