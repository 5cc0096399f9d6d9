"""A trainable whose import never ends."""

import time

time.sleep(600)


def train(config: dict[str, object]) -> None: ...
