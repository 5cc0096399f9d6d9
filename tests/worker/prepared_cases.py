"""Trainables that prepare data once per worker. Each reports what it got, and in which process it was computed."""

import os
import random
from typing import Any

from tuner.training import dataset, prepare


@prepare
def data(size: int, scale: float = 2.0) -> dict[str, Any]:
    return {"pid": os.getpid(), "size": size, "scale": scale, "drawn": random.random()}


@prepare
def downloaded(url: str) -> str:
    return f"{os.getpid()} {dataset(url).read_text()}"


def reads(config: dict[str, Any]) -> dict[str, Any]:
    pid, _, text = downloaded(config["url"]).partition(" ")
    return {"acc": 1, "text": text, "in_this_process": int(pid) == os.getpid()}


def prepares(config: dict[str, Any]) -> dict[str, Any]:
    own = random.random()
    got = data(config["size"])
    return {
        **got,
        "acc": 1,
        "own": own,
        "later": random.random(),
        "in_this_process": got["pid"] == os.getpid(),
    }
