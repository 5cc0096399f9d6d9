"""Trainables that do nothing, so that what is measured is what stands around them."""

from typing import Any


def train(config: dict[str, Any]) -> None:
    """Three steps of nothing, with torch imported, as any real trainable has it."""
    import torch
    from ray import tune

    for step in range(config.get("steps", 3)):
        tune.report({"score": config["x"] * (step + 1), "torch": torch.__version__})
