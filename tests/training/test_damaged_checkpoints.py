"""Test damaged, incomplete, foreign and malicious checkpoints, and full disks."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.training.counting import Count, count_to
from tests.training.fit import fit
from tuner.training import CheckpointUnreadable, SpotSafe, checkpoint

ROOT = Path(__file__).resolve().parents[2]


DIES_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from tests.training.counting import count_to
from tuner.training import checkpoint

def half(state, directory):
    directory.mkdir(parents=True)
    (directory / checkpoint.STATE_FILE).write_bytes(b"half of")
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint.write = half
count_to(3, Path(sys.argv[1]))
"""


def test_half_written_checkpoint_is_skipped_and_removed(tmp_path: Path) -> None:
    count_to(2, tmp_path)
    command = [sys.executable, "-c", DIES_WHILE_WRITING, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=300).returncode == -signal.SIGKILL
    assert [path.read_bytes() for path in tmp_path.glob(".writing*/*")] == [b"half of"]
    assert count_to(4, tmp_path) == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000003", "step_00000004"]


DAMAGES: list[Callable[[Path], object]] = [
    lambda file: file.write_bytes(file.read_bytes()[:-10]),
    lambda file: file.write_bytes(b""),
    lambda file: file.unlink(),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=["cut", "emptied", "deleted"])
def test_previous_checkpoint_is_used_if_the_newest_is_damaged(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    count_to(4, tmp_path)
    damage(tmp_path / "step_00000004" / checkpoint.STATE_FILE)
    assert count_to(5, tmp_path) == [4, 5]


FULL = OSError(28, "No space left on device")


def test_script_that_cannot_save_fails(tmp_path: Path, unwritable: Callable[[Exception], None]) -> None:
    unwritable(FULL)
    with pytest.raises(OSError, match="No space left"):
        count_to(3, tmp_path)


def test_failure_of_the_last_save_of_a_script_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = checkpoint.write

    def full(state: Any, directory: Path) -> None:
        real_write(state, directory)
        if state["step"] == 3:
            raise RuntimeError("unexpected pos 8384 vs 8278")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(RuntimeError, match="unexpected pos"):
        count_to(3, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000001", "step_00000002"]


def test_training_error_takes_precedence_over_a_save_error(
    tmp_path: Path, unwritable: Callable[[Exception], None]
) -> None:
    unwritable(FULL)

    def breaks(step: int) -> None:
        if step == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, before_step=breaks)


def test_training_does_not_restart_if_every_checkpoint_is_damaged(tmp_path: Path) -> None:
    count_to(2, tmp_path)
    for folder in tmp_path.iterdir():
        (folder / checkpoint.STATE_FILE).write_bytes(b"damaged")
    with pytest.raises(CheckpointUnreadable, match="step_00000002"):
        count_to(3, tmp_path)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"model": nn.Linear(2, 1), "extra": Count()}, "only in this run: extra"),
        ({"model": nn.Linear(3, 1)}, r"(?s)model cannot load its saved state.*size mismatch"),
    ],
)
def test_checkpoint_of_other_parts_is_refused_with_advice(
    tmp_path: Path, parts: dict[str, Any], reason: str
) -> None:
    with SpotSafe(model=nn.Linear(2, 1), steps=2, checkpoint_dir=tmp_path) as run:
        next(run.steps())
        run.report(loss=1.0)
    with (
        pytest.raises(CheckpointUnreadable, match=reason) as refused,
        SpotSafe(**parts, steps=2, checkpoint_dir=tmp_path),
    ):
        pass
    assert "build the same parts from the same config" in str(refused.value)
