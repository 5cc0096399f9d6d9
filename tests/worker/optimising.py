"""Trainables with an optimizer, which restore correctly. One of them reports which modules were imported before
it created the optimizer.
"""

import sys
from typing import Any

import torch

from tuner.training import SpotSafe


def tells_first(config: dict[str, Any]) -> None:
    dynamo = int("torch._dynamo" in sys.modules)
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.1)
    with SpotSafe(optimizer=optimizer) as run:
        for step in run.steps():
            run.report(acc=step, dynamo=dynamo)


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
