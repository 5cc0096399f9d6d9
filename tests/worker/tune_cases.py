"""Trainables of plain Ray Tune: functions and classes, some of which restore incorrectly or not at all."""

import json
import os
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy
import torch
from ray import tune

from tuner.domain.ids import SELF_TEST


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
    assert tune.get_context().get_trial_id() in ("trial_00000", SELF_TEST)
    for step in range(start, 100):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "step.txt").write_text(str(step + 1))
            tune.report(
                {"acc": step + 1, "nested": {"a": 1}, "confusion": numpy.eye(2), "labels": ["cat", "dog"]},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


def saves_nothing(config: dict[str, Any]) -> None:
    """Report checkpoints without files."""
    for step in range(1, 10):
        with tempfile.TemporaryDirectory() as directory:
            tune.report({"acc": step}, checkpoint=tune.Checkpoint.from_directory(directory))


def tune_checkpoints_and_returns_status(config: dict[str, Any]) -> int:
    """Train one step in total."""
    if tune.get_checkpoint() is None:
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "step.txt").write_text("1")
            tune.report({"acc": 3}, checkpoint=tune.Checkpoint.from_directory(directory))
    return 0


def follows_scores(config: dict[str, Any]) -> None:
    """Report the configured scores, one per step, each with a checkpoint. Always begin with the first step."""
    for step, score in enumerate(config["scores"], start=1):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "step.txt").write_text(str(step))
            tune.report({"acc": score}, checkpoint=tune.Checkpoint.from_directory(directory))


class Steps(tune.Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"acc": self.count}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / "count.json").write_text(json.dumps(self.count))

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        self.count = json.loads((Path(checkpoint_dir) / "count.json").read_text())


class DictSteps(Steps):
    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, int]:  # type: ignore[override]
        return {"count": self.count}

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        self.count = checkpoint_dir["count"]


class SplitSteps(Steps):
    """A trainable that splits its data at random in `setup`, and draws a number in each step."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.valid = torch.randperm(10_000)[0].item()

    def step(self) -> dict[str, Any]:
        return {**super().step(), "valid": self.valid, "drawn": torch.rand(1).item()}


def tune_splits(config: dict[str, Any]) -> None:
    """Split the data at random, load the checkpoint, and draw a number in each step."""
    valid, start = torch.randperm(10_000)[0].item(), 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            start = int((Path(directory) / "step.txt").read_text())
    for step in range(start, 100):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "step.txt").write_text(str(step + 1))
            tune.report(
                {"acc": step + 1, "valid": valid, "drawn": torch.rand(1).item()},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


def tune_splits_after_own_seed(config: dict[str, Any]) -> None:
    """Seed PyTorch, and split the data after the checkpoint was loaded."""
    torch.manual_seed(5)
    tune.get_checkpoint()
    tune_splits(config)


class CountsEpisodes(Steps):
    """A trainable that reports how much it has done in each step. Ray adds it up."""

    def step(self) -> dict[str, Any]:
        return {**super().step(), "timesteps_this_iter": 10, "episodes_this_iter": 2}


class ChangesDirectory(Steps):
    """A trainable that changes to a directory that all trials share, as for relative paths of data."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        os.chdir(config["project"])

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        super().save_checkpoint(checkpoint_dir)
        assert os.listdir() == []


class ArraySteps(Steps):
    """A trainable whose state consists of NumPy values."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = numpy.zeros((2, 3), order="F")
        self.rate = numpy.float64(1)

    def step(self) -> dict[str, Any]:
        self.count += self.rate
        assert self.count.flags.f_contiguous
        return {"acc": numpy.float32(self.count[1, 2])}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:  # type: ignore[override]
        return {"count": self.count, "rate": self.rate}

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        self.count, self.rate = checkpoint_dir["count"], checkpoint_dir["rate"]
        assert isinstance(self.rate, numpy.float64)


class Unsaveable(Steps):
    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:  # type: ignore[override]
        return {"count": self.count, "history": {"last": deque([self.count])}}


class FollowsScores(Steps):
    """Report the configured scores, one per step."""

    def step(self) -> dict[str, Any]:
        self.count += 1
        scores = self.config["scores"]
        return {"acc": scores[self.count - 1], "done": self.count == len(scores)}


class CannotBeSaved(FollowsScores):
    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:  # type: ignore[override]
        if self.count == len(self.config["scores"]):
            raise TypeError("cannot pickle this")
        return super().save_checkpoint(checkpoint_dir)


class EndsWithoutCheckpoints(tune.Trainable):
    """Report the configured scores, one per step, and save no checkpoints."""

    def step(self) -> dict[str, Any]:
        scores = self.config["scores"]
        return {"acc": scores[self.iteration], "done": self.iteration + 1 == len(scores)}


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
