"""A trainable that imports neither PyTorch nor Ray, so that a fork server of its own starts in a moment."""

from collections.abc import Iterator
from typing import Any


def counts(config: dict[str, Any]) -> Iterator[dict[str, float]]:
    for step in range(9):
        yield {"acc": float(step + 1)}
