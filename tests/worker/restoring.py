"""Trainables of `SpotSafe` that restore correctly, incorrectly or not at all."""

import os
from typing import Any

import torch

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


def raises_where_large(config: dict[str, Any]) -> None:
    if config["x"] > 0.5:
        raise ValueError("x is too large")
    well(config)


class Forgets(Counter):
    """A part that ignores the state that it is given."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def forgets(config: dict[str, Any]) -> None:
    counter = Forgets()
    with SpotSafe(model=torch.nn.Linear(1, 1), counter=counter) as run:
        for step in run.steps():
            counter.count += 1
            run.report(loss=float(step))


class Half(Counter):
    """A part whose saved state has another precision than the state that it loads."""

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
    """The shape of the model depends on the pid, so that it differs between processes."""
    with SpotSafe(model=torch.nn.Linear(1, os.getpid() % 10_000 + 1)) as run:
        for step in run.steps():
            run.report(loss=float(step))


def one_step_of_many(config: dict[str, Any]) -> None:
    """End after the first step, regardless of the number of steps."""
    with SpotSafe(counter=Counter()) as run:
        for step in run.steps(1):
            run.report(loss=float(step))
            break
