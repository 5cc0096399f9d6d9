"""A minimal run that can be interrupted."""

from pathlib import Path
from typing import Any

import torch

from tuner.training import SpotSafe


class Count:
    """A counter to checkpoint."""

    def __init__(self) -> None:
        self.value = torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def count_to(steps: int, directory: Path) -> list[float]:
    """Return the counter's value in each step that ran, counted over all runs."""
    count, seen = Count(), []
    with SpotSafe(count=count, steps=steps, checkpoint_dir=directory) as run:
        for _ in run.steps():
            count.value += 1
            seen.append(float(count.value))
            run.report(count=count.value)
    return seen
