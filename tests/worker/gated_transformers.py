"""A training with transformers that waits in the middle of an epoch."""

import os
import time
from typing import Any

from transformers import TrainerCallback, TrainerState

from tests.frameworks import with_transformers


class _Waits(TrainerCallback):
    """Wait after the optimizer step `gated` until the file `gate` exists."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        while state.global_step == self._config["gated"] and not os.path.exists(self._config["gate"]):
            time.sleep(0.01)


def train(config: dict[str, Any]) -> None:
    with_transformers.train(config, None, _Waits(config))
