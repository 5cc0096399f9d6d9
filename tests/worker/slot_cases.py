"""User code for the tests of workers that run several attempts at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from ray import tune

from tuner.training import Packed, Sgd

IMPORTED_BY = os.getpid()


def waits(config: dict[str, Any]) -> None:
    for _ in range(9):
        time.sleep(config["wait_s"])
        tune.report({"score": 1.0})


def kills_its_server(config: dict[str, Any]) -> None:
    if config["kills"]:
        left = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        Path(config["pid_file"]).write_text(str(left.pid))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    for _ in range(9):
        time.sleep(0.3)
        tune.report({"score": 1.0})


def tells_its_imports(config: dict[str, Any]) -> None:
    tune.report({"score": 1.0, "imported_by": IMPORTED_BY})


def _batches(config: dict[str, Any], step: int) -> list[torch.Tensor]:
    if "hangs" in config:
        Path(config["hangs"]).touch()
        time.sleep(600)
    time.sleep(0.02)
    return [torch.ones(8, 4)]


def _evaluate(model: Any) -> dict[str, torch.Tensor]:
    return {"score": model(torch.ones(1, 4)).mean(), "process": torch.tensor(float(os.getpid()))}


packed = Packed(
    make=lambda config: torch.nn.Linear(4, 1),
    optimizer=lambda config, step: Sgd(config["lr"]),
    batches=_batches,
    loss=lambda model, batch: model(batch).square().mean(),
    evaluate=_evaluate,
)
