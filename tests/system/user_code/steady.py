"""Deterministic trainables with a step of a known length."""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from tuner.training import SpotSafe

SHORT_S = 0.05


class Counter:
    """A model that only counts how often it was trained."""

    def __init__(self) -> None:
        self.count = torch.zeros(1)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def train(config: dict[str, Any]) -> None:
    """Report a score that approaches `x`, closing a tenth of the distance in each step.

    A step takes `step_s` seconds, or little time once the file `speed_up` exists. If the file `hang` exists, remove it and
    hang.
    """
    counter = Counter()
    with SpotSafe(counter=counter) as run:
        for step in run.steps():
            time.sleep(
                SHORT_S if os.path.exists(config.get("speed_up", "")) else config.get("step_s", SHORT_S)
            )
            if os.path.exists(config.get("hang", "")):
                os.remove(config["hang"])
                hangs(config)
            counter.count += 1
            assert int(counter.count) == step + 1, "a checkpoint was not that of its step"
            score, gpus = config["x"] * (1 - 0.9 ** (step + 1)), os.environ.get("CUDA_VISIBLE_DEVICES", "all")
            run.report(score=score, fork_server=os.getppid(), gpus=gpus)


def distributed(config: dict[str, Any]) -> None:
    """Train one model on all ranks. Each writes its process id to a file in the directory `pids`, which has the name of the rank."""
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    Path(config["pids"], str(rank)).write_text(str(os.getpid()))
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(3, 1)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer, counter = torch.optim.SGD(model.parameters(), lr=0.1), Counter()
    with SpotSafe(model=model, optimizer=optimizer, counter=counter) as run:
        for step in run.steps():
            time.sleep(SHORT_S if os.path.exists(config["speed_up"]) else config["step_s"])
            loss = model(torch.rand(4, 3) + rank).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counter.count += 1
            assert int(counter.count) == step + 1, "a checkpoint was not that of its step"
            run.report(score=-loss.item(), ranks=ranks)


def tested_on_spot(config: dict[str, Any]) -> None:
    """Run `train` under an entry that no other test has sent through the restore self-test."""
    train(config)


def topped_up(config: dict[str, Any]) -> None:
    """Run `train` under an entry without earlier jobs, whose measured setups would decide which budgets are accepted."""
    train(config)


def hangs(config: dict[str, Any]) -> None:
    """Hang and ignore all signals except SIGKILL."""
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


class Weights:
    """Random weights of the given size."""

    def __init__(self, megabytes: float) -> None:
        self.weights = torch.rand(int(megabytes * 250_000))

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


def one_long_among_short(config: dict[str, Any]) -> None:
    """Train for as long as allowed if this is the first trial that creates the file `marker`; otherwise end
    after one step.
    """
    try:
        with open(config["marker"], "x") as file:
            file.write(str(config["x"]))
    except FileExistsError:
        pass
    with open(config["marker"]) as file:
        is_long = file.read() == str(config["x"])
    with SpotSafe(weights=Weights(config["megabytes"] if is_long else 0)) as run:
        for step in run.steps():
            time.sleep(config["step_s"])
            run.report(score=step)
            if not is_long:
                return
