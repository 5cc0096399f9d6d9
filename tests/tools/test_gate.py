"""The gate lets its runs of pytest clean up when it is interrupted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.cluster.waiting import is_dead, until
from tools.checks import ROOT
from tools.gate import RUNS

HANGS_S = 120

# Takes pytest's place in each run, with a process in the place of a worker. A second SIGINT would end the cleanup before its end.
FAKE_PYTEST = """
import os, signal, subprocess, sys, time
from pathlib import Path

folder = Path(__file__).parent
mark = folder / str(os.getpid())
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
subprocess.Popen(["sleep", "300"])
try:
    mark.with_suffix(".started").touch()
    time.sleep(300)
except KeyboardInterrupt:
    mark.with_suffix(".cleaning").touch()
    time.sleep(300 if (folder / "slow").exists() else 1)
    mark.with_suffix(".cleaned").touch()
    sys.exit(2)
"""


@contextmanager
def running_gate(folder: Path, *before: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the gate with stand-ins for pytest, and kill all of them at the end. `before` are words before the command of the gate."""
    (folder / "pytest.py").write_text(FAKE_PYTEST)
    gate = subprocess.Popen(
        [*before, sys.executable, "-m", "tools.gate"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        process_group=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(pids(folder, "started")) == len(RUNS), seconds=HANGS_S)
        yield gate
    finally:
        gate.kill()
        gate.wait()
        for pid in pids(folder, "started"):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def pids(folder: Path, state: str) -> list[int]:
    return [int(path.stem) for path in folder.glob(f"*.{state}")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_interrupted_gate_waits_until_its_runs_have_cleaned_up(
    number: signal.Signals, tmp_path: Path
) -> None:
    with running_gate(tmp_path) as gate:
        os.killpg(gate.pid, number)  # as a terminal sends Ctrl-C to the whole process group
        assert gate.wait(HANGS_S) != 0
    assert len(pids(tmp_path, "cleaned")) == len(RUNS)


def test_gate_under_nohup_continues_after_a_hangup(tmp_path: Path) -> None:
    with running_gate(tmp_path, "nohup") as gate:
        os.killpg(gate.pid, signal.SIGHUP)
        for pid in pids(tmp_path, "started"):
            os.kill(pid, signal.SIGUSR1)  # The stand-ins end without an error.
        assert gate.wait(HANGS_S) == 0


def test_second_interrupt_kills_the_runs_with_their_workers(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with running_gate(tmp_path) as gate:
        workers = [worker for pid in pids(tmp_path, "started") for worker in psutil.Process(pid).children()]
        assert len(workers) == len(RUNS)
        gate.send_signal(signal.SIGINT)
        until(lambda: len(pids(tmp_path, "cleaning")) == len(RUNS), seconds=HANGS_S)
        gate.send_signal(signal.SIGINT)
        assert gate.wait(HANGS_S) != 0
        until(lambda: all(map(is_dead, workers)))
