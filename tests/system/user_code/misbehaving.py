"""Trainables that misbehave in several ways. Each affects only its own trial."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

from tuner.training import SpotSafe


def train(config: dict[str, Any]) -> None:
    """Misbehave in the second step as `config["how"]` names. Anything left behind is named after
    `config["mark"]`.
    """
    with SpotSafe() as run:
        for step in run.steps():
            if step == 1:
                MANNERS[config["how"]](config["mark"])
            run.report(score=float("nan") if step == 1 and config["how"] == "nan" else float(step))


def always_raises(config: dict[str, Any]) -> None:
    raise ValueError("the data is not where it was")


def slow(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for step in run.steps():
            time.sleep(config["step_s"])
            run.report(score=float(step))


def wrong_metric(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for step in run.steps():
            run.report(loss=float(step))


def _raise(mark: str) -> None:
    raise RuntimeError("a bug")


def _print(mark: str) -> None:
    for _ in range(20):
        sys.stdout.write("x" * 1_000_000)


def _fork(mark: str) -> None:
    for _ in range(3):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", mark])


def _hang(mark: str) -> None:
    while True:
        time.sleep(1)


MANNERS = {
    "well": lambda mark: None,
    "nan": lambda mark: None,
    "raise": _raise,
    "exit": lambda mark: os._exit(3),
    "killed": lambda mark: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
    "print": _print,
    "fork": _fork,
}


class Forgetful:
    """A part that ignores the state that it is given."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def forgets(config: dict[str, Any]) -> None:
    counter = Forgetful()
    with SpotSafe(counter=counter) as run:
        for _ in run.steps():
            counter.count += 1
            run.report(score=float(counter.count))
