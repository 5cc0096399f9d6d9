"""Batches in an order that survives a restart."""

from collections.abc import Iterator
from typing import Any

import torch

from tuner.training.measured import note


class Batches:
    """Shuffled index batches over `size` examples, in a new order each epoch.

    The position is part of a checkpoint. Each epoch has its own random generator, so an interrupted epoch resumes with the same batches.
    """

    def __init__(self, size: int, batch_size: int, *, seed: int = 0) -> None:
        self._size, self._batch, self._seed = size, max(1, min(batch_size, size)), seed
        self._epoch = self._next = 0

    def __len__(self) -> int:
        return -(-self._size // self._batch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield the remaining batches of this epoch, then move to the next epoch."""
        note(batch_size=self._batch)
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.split(torch.randperm(self._size, generator=generator), self._batch)
        while self._next < len(order):
            self._next += 1
            yield order[self._next - 1]
        self._epoch, self._next = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._next = int(state["epoch"]), int(state["next"])
