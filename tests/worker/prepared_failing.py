"""A trainable whose data cannot be prepared."""

from typing import Any

from tuner.training import prepare


@prepare
def data() -> None:
    raise FileNotFoundError("/no/such/data")


def train(config: dict[str, Any]) -> None:
    data()
