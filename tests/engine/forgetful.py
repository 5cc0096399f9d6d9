"""Trainables that restore well, badly, and not at all."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from ray import tune

from tests.system.user_code.steady import Counter
from tuner.training import SpotSafe


def well(config: dict[str, Any]) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    with SpotSafe(model=model, optimizer=optimizer) as run:
        for _ in run.steps():
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).square().mean()
            loss.backward()
            optimizer.step()
            run.report(loss=loss)


class Forgets(Counter):
    """Takes what was saved, and does nothing with it."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def forgets(config: dict[str, Any]) -> None:
    counter = Forgets()
    with SpotSafe(model=torch.nn.Linear(1, 1), counter=counter) as run:
        for step in run.steps():
            counter.count += 1
            run.report(loss=float(step))


class Half(Counter):
    """What it gives is in another precision than what it takes."""

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count.half() + 0.1}


def by_halves(config: dict[str, Any]) -> None:
    counter = Half()
    with SpotSafe(counter=counter) as run:
        for step in run.steps():
            counter.count += 1.0001
            run.report(loss=float(step))


class Breaks(Counter):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise KeyError("count")


def breaks(config: dict[str, Any]) -> None:
    with SpotSafe(counter=Breaks()) as run:
        for step in run.steps():
            run.report(loss=float(step))


def other_shape(config: dict[str, Any]) -> None:
    """Its model has as many outputs as its process has a number."""
    with SpotSafe(model=torch.nn.Linear(1, os.getpid() % 10_000 + 1)) as run:
        for step in run.steps():
            run.report(loss=float(step))


def one_step_of_many(config: dict[str, Any]) -> None:
    """Ends by itself after its first step."""
    with SpotSafe(counter=Counter()) as run:
        for step in run.steps(1):
            run.report(loss=float(step))
            break


def raises_where_large(config: dict[str, Any]) -> None:
    if config["x"] > 0.5:
        raise ValueError("x is too large")
    well(config)


def hangs(config: dict[str, Any]) -> None:
    while True:
        time.sleep(1)


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
    """Says in each checkpoint when and where it was written, and has a file named after that."""

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
