"""Test the disk that can be filled, and the clock that can be moved for selected processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.clock import Clock
from tests.chaos.disk import Disk

WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(line.strip(), "wb") as file:
            file.write(bytes(100_000))
        print("written", flush=True)
    except OSError:
        print("refused", flush=True)
"""


@pytest.fixture
def writer() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("is_limit", [False, True])
def test_writes_fail_on_a_full_disk_until_it_is_freed(
    writer: "subprocess.Popen[str]", tmp_path: Path, is_limit: bool
) -> None:
    """`is_limit` simulates a machine on which the process may not mount a file system."""
    disk = Disk(tmp_path / "disk", lambda: [psutil.Process(writer.pid)], size_mb=2)

    def writes(name: str) -> str:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(f"{disk.folder / name}\n")
        writer.stdin.flush()
        return writer.stdout.readline().strip()

    try:
        if is_limit:
            disk.remove()
            disk.folder.mkdir()
        assert writes("before") == "written"
        disk.fill()
        assert writes("full") == "refused"
        disk.free()
        assert writes("after") == "written"
    finally:
        disk.remove()
    assert is_limit or not disk.folder.exists() or not disk.is_mounted


def test_clock_of_selected_processes_jumps_and_is_reset(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    tells, ours = "import time; print(time.time())", "-m tuner.service.driver"

    def off_by_s(*more: str) -> int:
        environment = {**os.environ, **clock.environment}
        words = [sys.executable, "-c", tells, *more]
        completed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return round((float(completed.stdout) - time.time()) / 100) * 100

    can = clock.jump(7200)
    assert off_by_s(ours) == (7200 if can else 0)
    assert off_by_s() == 0
    clock.jump(-7200)
    assert off_by_s(ours) == (-7200 if can else 0)
    clock.jump(0)
    assert off_by_s(ours) == 0
