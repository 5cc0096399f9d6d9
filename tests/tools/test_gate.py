"""The gate lets its runs of pytest clean up when it is interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.checks import ROOT
from tools.gate import RUNS

# Takes pytest's place in each run. A second SIGINT would end the cleanup before its end.
FAKE_PYTEST = """
import os, sys, time
from pathlib import Path

mark = Path(__file__).parent / str(os.getpid())
try:
    mark.with_suffix(".started").touch()
    time.sleep(300)
except KeyboardInterrupt:
    time.sleep(1)
    mark.with_suffix(".cleaned").touch()
    sys.exit(2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_interrupted_gate_waits_until_its_runs_have_cleaned_up(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "pytest.py").write_text(FAKE_PYTEST)
    gate = subprocess.Popen(
        [sys.executable, "-m", "tools.gate"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        process_group=0,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("*.started"))) < len(RUNS):
            assert time.monotonic() < deadline, "the runs did not start"
            time.sleep(0.05)
        os.killpg(gate.pid, number)  # as a terminal sends Ctrl-C to the whole process group
        assert gate.wait(60) != 0
    finally:
        gate.kill()
        gate.wait()
    assert len(list(tmp_path.glob("*.cleaned"))) == len(RUNS)
