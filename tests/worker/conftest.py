"""Supervisors for tests, which leave no process behind."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import fsspec
import psutil
import pytest

from tests.worker.driving import NODE, Driver
from tests.worker.object_storage import Bucket, Proxy, moto_server
from tuner.checkpoints.checkpoints import CheckpointStore, Published
from tuner.cluster.notices.node_board import NodeBoard
from tuner.worker.process_tree import descendants
from tuner.worker.supervisor import Supervisor

# Modules that one fork server serves, because a server that imports PyTorch and Ray costs 8 s of processor time.
PRELOADED = {
    *(f"tests.worker.{name}" for name in ("cases", "restoring", "tune_cases")),
    *(f"tests.frameworks.{name}" for name in ("with_optuna", "with_ray_tune", "with_sklearn")),
}


@pytest.fixture(scope="session")
def node_board(tmp_path_factory: pytest.TempPathFactory) -> NodeBoard:
    """The board with the preemption notices of the machine that the shared supervisors run on."""
    return NodeBoard(tmp_path_factory.mktemp("boards"))


@pytest.fixture(scope="session")
def supervisor_of(node_board: NodeBoard) -> Iterator[Callable[[str], Supervisor]]:
    """Return the supervisor that serves a module. All tests share it, and find its fork server ready, as a worker
    does from its second attempt on.
    """
    made: dict[str, Supervisor] = {}

    def get_supervisor(module: str) -> Supervisor:
        served = "tests.worker.preloaded" if module in PRELOADED else module
        if served not in made:
            made[served] = Supervisor(f"{served}:train", notice=lambda: node_board.earliest_notice(NODE))
        return made[served]

    yield get_supervisor
    for supervisor in made.values():
        supervisor.close()


def _living_descendants(pid: int) -> list[int]:
    """Return the descendants of a process, without those that have ended and wait to be reaped."""
    living = []
    for child in descendants(pid):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
                living.append(child)
    return living


@pytest.fixture
def drive(tmp_path: Path, supervisor_of: Callable[[str], Supervisor]) -> Iterator[Any]:
    """Start drivers for a case of a module. With `fresh`, the driver gets a newly started worker."""
    drivers: list[Driver] = []
    fresh_ones: list[Supervisor] = []

    def start(
        case: str = "counts",
        module: str = "tests.worker.cases",
        *,
        fresh: bool = False,
        storage: str = "",
        constants: dict[str, Any] | None = None,
    ) -> Driver:
        entry = f"{module}:{case}"
        if fresh:
            fresh_ones.append(Supervisor(entry, constants=constants))
        supervisor = fresh_ones[-1] if fresh else supervisor_of(module)
        drivers.append(Driver(storage or tmp_path / "storage", entry, supervisor))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.let_go()
        assert not _living_descendants(driver.supervisor.server.pid)
    for supervisor in fresh_ones:
        supervisor.close()
        assert not supervisor.server.alive


@pytest.fixture
def hanging_save(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """Let the first publication of a checkpoint hang. The first event is set when it does. Setting the second one releases it."""
    hangs, goes_on = Event(), Event()
    real = CheckpointStore.publish

    def publish(self: CheckpointStore, *args: Any, **more: Any) -> Published:
        if not hangs.is_set():
            hangs.set()
            goes_on.wait()
        return real(self, *args, **more)

    monkeypatch.setattr(CheckpointStore, "publish", publish)
    yield hangs, goes_on
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "publisher":
            thread.join()


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    with moto_server() as port:
        yield port


@pytest.fixture(scope="module")
def proxy(moto: int) -> Iterator[Proxy]:
    """A proxy in front of moto. Tests of a file share it, because a client is made for its address."""
    s3_proxy = Proxy(moto)
    yield s3_proxy
    # Other tests may use other addresses.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    s3_proxy.close()


@pytest.fixture
def bucket(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket, and the client's settings. All requests go through a proxy that does no harm yet."""
    environment = {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    empty_bucket = Bucket(proxy, f"bucket-{uuid4().hex}", environment)
    empty_bucket.fs.mkdir(empty_bucket.name)
    proxy.asked.clear()
    yield empty_bucket
    proxy.heal()
