"""Supervisors that leave no process behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.driving import Driver
from tuner.engine.worker.supervisor import Supervisor


@pytest.fixture(scope="module")
def warm() -> Iterator[dict[str, Supervisor]]:
    """Supervisors whose fork servers are ready, by the module that they serve, as a worker's is from its second attempt on."""
    found: dict[str, Supervisor] = {}
    yield found
    for supervisor in found.values():
        supervisor.close()


@pytest.fixture
def drive(tmp_path: Path, warm: dict[str, Supervisor]) -> Iterator[Any]:
    """A driver for a case of a module; `fresh`: with a worker that has only been born."""
    drivers: list[Driver] = []
    fresh_ones: list[Supervisor] = []

    def start(case: str, module: str = "tests.engine.cases", *, fresh: bool = False) -> Driver:
        entry = f"{module}:{case}"
        if fresh:
            fresh_ones.append(Supervisor(entry))
        elif module not in warm:
            warm[module] = Supervisor(entry)
        drivers.append(Driver(tmp_path / "storage", entry, fresh_ones[-1] if fresh else warm[module]))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.let_go()
        assert not psutil.Process(driver.supervisor._server._process.pid).children(recursive=True)
    for supervisor in fresh_ones:
        supervisor.close()
        assert not supervisor._server.alive
