"""Test `SpotSafe` under Ray Tune alone, without the service."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def run_program(folder: Path) -> None:
    (folder / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "tests.training.tune_program", str(folder)]
    with (folder / "output").open("w") as output:
        program = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            program.wait(600)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, (folder / "output").read_text()[-4000:]


@pytest.fixture(scope="module")
def recorded() -> Iterator[dict[str, dict[str, Any]]]:
    """What Tune recorded, by case. The folder's path is short, because Ray's sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="tune-", ignore_cleanup_errors=True) as name:
        run_program(Path(name))
        found = json.loads((Path(name) / "recorded.json").read_text())
        left = [file.name for file in (Path(name) / "tmp").iterdir()]
        yield {**found, "temporary": {"left": [n for n in left if n.startswith(("checkpoint", "spot-safe"))]}}


def column(case: dict[str, Any], name: str) -> list[Any]:
    return [row[name] for row in case["rows"]]


def test_every_report_is_a_result_of_tune(recorded: dict[str, dict[str, Any]]) -> None:
    for case in (recorded["endless"], recorded["interrupted"]):
        assert case["error"] == ""
        assert column(case, "done_steps") == column(case, "training_iteration") == [1, 2, 3, 4, 5, 6]


def test_after_a_failure_it_goes_on_from_its_checkpoint_in_another_process(
    recorded: dict[str, dict[str, Any]],
) -> None:
    interrupted = recorded["interrupted"]
    pids = column(interrupted, "pid")
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1
    assert pids[0] != pids[3]


def test_neither_tune_nor_a_failure_changes_a_bit_of_what_is_learned(
    recorded: dict[str, dict[str, Any]],
) -> None:
    assert column(recorded["interrupted"], "loss") == recorded["plain script"]["losses"]


def test_without_a_number_of_steps_it_runs_until_tune_stops_it(recorded: dict[str, dict[str, Any]]) -> None:
    assert recorded["endless"]["error"] == ""
    assert column(recorded["endless"], "done_steps") == [1, 2, 3, 4, 5, 6]


def test_a_shipped_trainable_runs_under_tune_as_it_is(recorded: dict[str, dict[str, Any]]) -> None:
    assert recorded["digits_mlp"]["error"] == ""
    assert column(recorded["digits_mlp"], "val_accuracy")[-1] > 0.5


def test_no_checkpoint_is_left_in_the_temporary_directory(recorded: dict[str, dict[str, Any]]) -> None:
    assert recorded["temporary"]["left"] == []
