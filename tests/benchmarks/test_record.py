"""Record a table of real trainings, and replay a job on it."""

import subprocess
import sys
from pathlib import Path

from benchmarks.record import in_turn
from tuner.service.simulation import simulate
from tuner.simulator.table_file import load_table

ROOT = Path(__file__).parents[2]


def test_any_first_part_has_the_same_share_of_each_trainable() -> None:
    first = [name for name, _ in in_turn({"a": 100, "b": 300})][:40]
    assert (first.count("a"), first.count("b")) == (10, 30)


def test_recorded_trainings_can_be_simulated(tmp_path: Path) -> None:
    arguments = ["--trainables", "digits_mlp", "--rows", "4", "--processes", "2"]
    folders = ["--out", str(tmp_path / "tables"), "--logs", str(tmp_path / "logs")]
    subprocess.run([sys.executable, "-m", "benchmarks.record", *arguments, *folders], cwd=ROOT, check=True)
    table = tmp_path / "tables" / "digits_mlp.npz"
    assert load_table(table).metric.shape == (4, 27)
    assert simulate(table, 4, seed=0).finished
