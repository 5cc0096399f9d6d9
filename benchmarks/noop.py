"""Trainables that do nothing, so that a benchmark measures only the overhead around them."""

from typing import Any


def train(config: dict[str, Any]) -> None:
    """Report three steps without work. Imports torch because any real trainable does."""
    import torch
    from ray import tune

    for step in range(config.get("steps", 3)):
        tune.report({"score": config["x"] * (step + 1), "torch": torch.__version__})
