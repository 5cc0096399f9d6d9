"""The function that every method of `benchmarks.head_to_head` calls. It runs one of several trainables, and writes a line for each report.

Torch is imported by this module, and the trainable's own module while data is prepared. The service forks its trials from the process in
which both happen, so a trial does not import them again.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import xgboost as _xgboost  # noqa: F401  # starts a thread, which an import must not do while data is prepared

from tuner.training import environments, framework_run, prepare, spot_safe

MODULES = {
    "digits_mlp": "trainables.digits_mlp",
    "digits_cnn": "trainables.digits_cnn",
    "char_lm": "trainables.char_lm",
    "digits_xgboost": "benchmarks.digits_xgboost",
    "char_gpt2": "benchmarks.char_gpt2",
}
STEPS = 27  # the last step of a training
DIVERGED = 1e3  # what a peer is sent for a loss that is not a number
Send = Callable[[dict[str, Any], int], None]


@prepare
def module_of(trainable: str) -> Any:
    """Import and return the module of a trainable. A worker prepares the module's data after that."""
    return import_module(MODULES[trainable])


def train(config: dict[str, Any]) -> None:
    """Run a trainable under the service, which passes its name and the file for the lines as constants."""
    given = dict(config)
    metered(given.pop("trainable"), Path(given.pop("log")), given)


def metered(trainable: str, log: Path, config: dict[str, Any], send: Send | None = None) -> None:
    """Train, and write a line for each report. With `send`, train as a plain script to the last step, and send each report there."""
    module = module_of(trainable)
    torch.set_num_threads(1)  # otherwise other threads do a part of the work
    torch.optim.SGD([torch.zeros(1)], 0.1)  # the first optimizer imports for a second
    home = environments.Supervised if send is None else environments.Alone
    original, began, is_first = home.report, time.thread_time(), True

    def report(self: Any, step: int, metrics: Mapping[str, Any], *artifacts: Any) -> Any:
        nonlocal began, is_first
        value = float(metrics[module.OBJECTIVE["metric"]])
        line = {"at": time.time(), "cpu_s": time.thread_time() - began, "value": value, "begins": is_first}
        with log.open("a") as file:
            file.write(json.dumps({**line, "step": step, "config": config}) + "\n")
        began, is_first = time.thread_time(), False
        reply = original(self, step, metrics, *artifacts)
        if send is not None:
            send({"value": value if math.isfinite(value) else DIVERGED}, step)
        return reply

    def alone(_steps: int | None, _folder: Any) -> environments.Home:
        return environments.Alone(STEPS, None)

    find_home = spot_safe.find_home if send is None else alone
    with (
        patch.object(home, "report", report),
        patch.object(spot_safe, "find_home", find_home),
        patch.object(framework_run, "find_home", find_home),
    ):
        module.train(config)
