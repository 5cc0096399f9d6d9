"""Ray Tune trainables that restore correctly, incorrectly, or not at all."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from ray import tune


def never_saves(config: dict[str, Any]) -> None:
    for step in range(9):
        tune.report({"loss": step})


def goes_on(config: dict[str, Any]) -> None:
    found = tune.get_checkpoint()
    _report_from(json.loads(Path(found.path, "step.json").read_text()) if found else 0)


def begins_again(config: dict[str, Any]) -> None:
    _report_from(0)


def _report_from(first: int) -> None:
    for step in range(first, 9):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step.json").write_text(json.dumps(step + 1))
            tune.report({"loss": step}, checkpoint=tune.Checkpoint.from_directory(folder))


class Remembers(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.model = torch.nn.Linear(3, 2)

    def step(self) -> dict[str, Any]:
        with torch.no_grad():
            self.model.weight += 1
        return {"loss": 1.0}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        torch.save(self.model.state_dict(), Path(checkpoint_dir) / "model.pt")

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        self.model.load_state_dict(torch.load(Path(checkpoint_dir) / "model.pt", weights_only=True))


class Stamps(Remembers):
    """A trainable that records time and pid in each checkpoint, and adds a file named after the time."""

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        now = time.time_ns()
        state = {"model": self.model.state_dict(), "at": now, "pid": os.getpid()}
        torch.save(state, Path(checkpoint_dir) / "model.pt")
        Path(checkpoint_dir, f"{now}.json").write_text(json.dumps({"pid": os.getpid()}))

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        state = torch.load(Path(checkpoint_dir) / "model.pt", weights_only=True)
        self.model.load_state_dict(state["model"])


class Ignores(Remembers):
    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        pass
