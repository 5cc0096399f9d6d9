"""Trainables that import neither PyTorch nor Ray, so that a fork server of their own starts in a moment."""

import os
import time
from collections.abc import Iterator
from typing import Any


def counts(config: dict[str, Any]) -> Iterator[dict[str, float]]:
    for step in range(9):
        yield {"acc": float(step + 1)}


def eats_memory(config: dict[str, Any]) -> None:
    """Allocate up to 1 GB, which does no harm to the machine."""
    eaten = []
    while True:
        if len(eaten) < 50:
            eaten.append(bytearray(os.urandom(1 << 20) * 20))
        time.sleep(0.01)
