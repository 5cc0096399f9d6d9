"""A trainable with an optimizer, which says what was imported before it made one."""

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
