"""Functions of plain Ray Tune. Running one imports Ray."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
from ray import tune


def never_saves(config: dict[str, Any]) -> None:
    for step in range(100):
        tune.report({"acc": step + 1})


def never_saves_slowly(config: dict[str, Any]) -> None:
    for step in range(100):
        tune.report({"acc": step + 1})
        time.sleep(1)


def tune_checkpoints(config: dict[str, Any]) -> None:
    """A plain Ray Tune function with checkpoints, as in Ray's documentation."""
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            start = int((Path(directory) / "step.txt").read_text())
    assert tune.get_context().get_trial_id().startswith("trial_")
    for step in range(start, 100):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "step.txt").write_text(str(step + 1))
            tune.report(
                {"acc": step + 1, "nested": {"a": 1}, "confusion": numpy.eye(2), "labels": ["cat", "dog"]},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


def follows_scores(config: dict[str, Any]) -> None:
    """Report the configured scores, one per step, each with a checkpoint."""
    for step, score in enumerate(config["scores"], start=1):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "step.txt").write_text(str(step))
            tune.report({"acc": score}, checkpoint=tune.Checkpoint.from_directory(directory))
