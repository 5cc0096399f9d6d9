"""Supervisors for tests, which leave no process behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest

from tests.engine.driving import Driver
from tests.engine.object_storage import Bucket, Proxy, moto_server
from tuner.engine.worker.supervisor import Supervisor


@pytest.fixture(scope="module")
def warm() -> Iterator[dict[str, Supervisor]]:
    """Supervisors with a ready fork server, by the module that they serve. A worker has one from its second
    attempt on.
    """
    found: dict[str, Supervisor] = {}
    yield found
    for supervisor in found.values():
        supervisor.close()


def _children_of(fork_server: int) -> list[psutil.Process]:
    """Return the descendants of a fork server, or an empty list if it is gone, because importing a module may
    have killed it.
    """
    try:
        return psutil.Process(fork_server).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def drive(tmp_path: Path, warm: dict[str, Supervisor]) -> Iterator[Any]:
    """Start drivers for a case of a module. With `fresh`, the driver gets a newly started worker."""
    drivers: list[Driver] = []
    fresh_ones: list[Supervisor] = []

    def start(
        case: str, module: str = "tests.engine.cases", *, fresh: bool = False, storage: str = ""
    ) -> Driver:
        entry = f"{module}:{case}"
        if fresh:
            fresh_ones.append(Supervisor(entry))
        elif module not in warm:
            warm[module] = Supervisor(entry)
        drivers.append(
            Driver(storage or tmp_path / "storage", entry, fresh_ones[-1] if fresh else warm[module])
        )
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.let_go()
        assert not _children_of(driver.supervisor.server._process.pid)
    for supervisor in fresh_ones:
        supervisor.close()
        assert not supervisor.server.alive


@pytest.fixture(scope="session")
def moto() -> Iterator[int]:
    with moto_server() as port:
        yield port


@pytest.fixture
def bucket(moto: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """An empty bucket, and a client whose requests all go through a proxy that does no harm yet."""
    proxy = Proxy(moto)
    environment = {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = Bucket(
        proxy, f"bucket-{proxy.server_address[1]}-{abs(hash(request.node.name)) % 10**6}", environment
    )
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    fs.mkdir(found.name)
    type(fs).clear_instance_cache()  # Clients of the previous test use another proxy.
    yield found
    type(fs).clear_instance_cache()
    proxy.close()
