"""A module that touches CUDA when it is imported, as `DEVICE = "cuda" if torch.cuda.is_available() else "cpu"` does."""

import os
from typing import Any

import torch

from tuner.training import SpotSafe

IMPORTED_BY = os.getpid()
# With a CUDA build of PyTorch, only a forked process knows that its parent has initialized the driver.
torch.cuda._is_in_bad_fork = lambda: os.getpid() != IMPORTED_BY  # type: ignore[assignment]


def train(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(lost=torch.cuda._is_in_bad_fork())
