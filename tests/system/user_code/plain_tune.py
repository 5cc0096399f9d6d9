"""Trainables of existing Ray Tune users. None of them depends on the service."""

import json
import tempfile
from pathlib import Path
from typing import Any

from ray import tune


def objective(config: dict[str, Any]) -> None:
    """The function of Ray Tune's quick start."""
    for step in range(20):
        tune.report({"score": -((config["x"] - 3) ** 2) - 1 / (step + 1)})


def with_checkpoint(config: dict[str, Any]) -> None:
    """The function from Ray Tune's guide to checkpoints."""
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            start = json.loads((Path(directory) / "state.json").read_text())["step"]
    for step in range(start, 9):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "state.json").write_text(json.dumps({"step": step + 1}))
            checkpoint = tune.Checkpoint.from_directory(directory)
            tune.report({"score": config["x"] * (step + 1), "began_at": start}, checkpoint=checkpoint)


class Trainable(tune.Trainable):
    """The class from Ray Tune's guide to the class API."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x, self.total = config["x"], 0.0

    def step(self) -> dict[str, float]:
        self.total += self.x
        return {"score": self.total}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "total.txt").write_text(str(self.total))

    def load_checkpoint(self, checkpoint: str) -> None:
        self.total = float((Path(checkpoint) / "total.txt").read_text())


def returns(config: dict[str, Any]) -> dict[str, float]:
    """The shortest possible trainable."""
    return {"score": config["x"] ** 2}
