"""Trainables on several processes, which train with each other over gloo."""

import contextlib
import os
import signal
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

from tuner.training import SpotSafe, accumulate, grad_scaler
from tuner.training.channel import MetricsRefused


def trains(config: dict[str, Any]) -> None:
    """Train a model with DDP, or with FSDP2 if `fsdp` is given. A single process trains it without either.

    With `refused`, each report is first made with a metric that is refused. With `differ`, the ranks train on random data, each on its own. `dies` names a rank, and `how` what happens to it in step 3: "killed", "raises" or "exits".
    """
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1))
    if ranks > 1:
        dist.init_process_group("gloo")
        model = fully_shard(model) if config.get("fsdp") else DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    with SpotSafe(model=model, optimizer=optimizer) as run:
        for step in run.steps():
            time.sleep(config.get("step_s", 0))
            if step == 2 and rank == config.get("dies"):
                _die(str(config["how"]))
            data = torch.rand(8, 5) if config.get("differ") else torch.full((8, 5), float(step % 3))
            loss = (model(data) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if config.get("refused"):
                with contextlib.suppress(MetricsRefused):
                    run.report(loss=object())
            run.report(
                loss=loss.item(),
                pid=os.getpid(),
                ranks=ranks,
                threads=torch.get_num_threads(),
            )
    if ranks > 1:
        dist.destroy_process_group()


def _die(how: str) -> None:
    match how:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raises":
            raise ValueError("bad luck")
        case "exits":
            sys.stdout.flush()
            os._exit(0)


def never_joins(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=1.0)


def all_report(config: dict[str, Any]) -> None:
    """Report from each rank in the way of Ray Tune, without `SpotSafe`. The ranks wait for each other in each step."""
    from tuner.training.channel import current

    dist.init_process_group("gloo")
    channel = current()
    assert channel is not None
    for step in range(1, 4):
        dist.barrier()
        channel.report(step, {"acc": float(dist.get_rank())}, resumable=False)


def port_is_taken(config: dict[str, Any]) -> None:
    import socket

    if os.environ["RANK"] == "0":
        with socket.socket() as listener:
            listener.bind(("", int(os.environ["MASTER_PORT"])))
            listener.listen()
            dist.init_process_group("gloo")
    time.sleep(600)


def accumulates(config: dict[str, Any]) -> None:
    """Report how often the ranks exchange gradients in a step of four micro-batches, and the gradient."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 1)
    model: Any = fully_shard(layers) if config.get("fsdp") else DistributedDataParallel(layers)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), grad_scaler("fp32")
    passed = model if config.get("passes_model") else None
    with SpotSafe(model=model) as run:
        for _ in run.steps():
            with profile() as measured:
                accumulate(
                    torch.rand(8, 3) + dist.get_rank(),
                    4,
                    lambda rows: model(rows).square().mean(),
                    optimizer=optimizer,
                    scaler=scaler,
                    model=passed,
                )
            names = [event.name for event in measured.events()]
            run.report(
                exchanges=sum(name in ("gloo:all_reduce", "gloo:reduce_scatter") for name in names),
                weight=sum(parameter.sum() for parameter in _whole(model)).item(),
            )


def _whole(model: Any) -> list[torch.Tensor]:
    return [
        getattr(parameter, "full_tensor", lambda whole=parameter: whole)() for parameter in model.parameters()
    ]
