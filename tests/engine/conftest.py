"""Supervisors that leave no process behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.driving import Driver


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Any]:
    drivers = []
    before = children()

    def start(case: str, module: str = "tests.engine.cases") -> Driver:
        drivers.append(Driver(tmp_path / "storage", case, module))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.supervisor.close()
    assert children() <= before


def children() -> set[int]:
    """Direct ones: a fork server takes its own with it, which tests of it watch."""
    return {process.pid for process in psutil.Process().children()}
