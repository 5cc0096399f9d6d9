"""Test `SpotSafe` under Ray Tune alone, without the service."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.system, pytest.mark.extended, pytest.mark.timeout(900)]


def run_program(folder: Path) -> None:
    (folder / "tmp").mkdir()
    settings = {
        "TMPDIR": str(folder / "tmp"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_worker_prestart": "0",  # an idle worker costs as much as one that trains
        "RAY_prestart_worker_first_driver": "0",
    }
    command = [sys.executable, "-m", "tests.training.tune_program", str(folder)]
    with (folder / "output").open("w") as output:
        program = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            program.wait(600)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, (folder / "output").read_text()[-4000:]


def test_failed_trial_resumes_from_its_checkpoint_in_another_process() -> None:
    """The trial has no number of steps: Tune ends it. The folder's path is short, because Ray's sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="tune-", ignore_cleanup_errors=True) as name:
        run_program(Path(name))
        recorded = json.loads((Path(name) / "recorded.json").read_text())
        left = [file.name for file in (Path(name) / "tmp").iterdir()]
    assert recorded["error"] == ""
    columns = {name: [row[name] for row in recorded["rows"]] for name in recorded["rows"][0]}
    assert columns["done_steps"] == columns["training_iteration"] == [1, 2, 3, 4, 5, 6]
    pids = columns["pid"]
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1
    assert pids[0] != pids[3]
    assert columns["loss"] == recorded["losses of a plain script"], "a failure changed what was learned"
    assert not [name for name in left if name.startswith(("checkpoint", "spot-safe"))]
