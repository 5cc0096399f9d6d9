"""Class trainables of plain Ray Tune."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy
from ray import tune


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


class ArraySteps(Steps):
    """A trainable whose state consists of NumPy values."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = numpy.zeros((2, 3), order="F")
        self.rate = numpy.float64(1)

    def step(self) -> dict[str, Any]:
        self.count += self.rate
        order = "F" if self.count.flags.f_contiguous else "C"
        return {"acc": numpy.float32(self.count[1, 2]), "order": order}

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
        return {"acc": self.config["scores"][self.count - 1]}
