"""Measure what training N models as one batch costs, compared with training them one after another.

Every model is a network with two hidden layers for the digits data, trained with batches of 64 for one step of 21 batches. Processor time is
that of one thread. `torch.optim` trains a model with an ordinary loop. `alone` is `Packed` without other trials. `batch` is `Packed`
with N trials in one batch. It does not include the trials' processes, which are measured separately with `--processes`.

`--jobs` measures whole jobs on a local cluster: 32 trials on one worker with one CPU, with and without `pack`, as a batch and as processes.
"""

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from torch import nn

from tests.system.serving import Served
from trainables import digits_packed
from tuner.training import Packed, Sgd
from tuner.training.channel import BeginMessage, begin_message, open_channel, reply_message
from tuner.training.vmapped import Member, Recipe, Trainer

Config = Mapping[str, Any]


def make(config: Config) -> nn.Module:
    width = config["width"]
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def optimizer(config: Config, step: int) -> Sgd:
    return Sgd(config["learning_rate"], momentum=0.9)


PARTS: dict[str, Any] = {
    "make": make,
    "optimizer": optimizer,
    "batches": digits_packed.batches,
    "loss": digits_packed.loss,
    "evaluate": digits_packed.evaluate,
}
RECIPE = Recipe(**PARTS)
PACKED = Packed(**PARTS)


def configs(count: int, width: int) -> list[dict[str, Any]]:
    return [{"width": width, "seed": seed, "learning_rate": 0.001 * (seed + 1)} for seed in range(count)]


def step_of_optim(config: Config) -> Callable[[int], None]:
    """Return a function that trains one step with `torch.optim`."""
    model = make(config)
    rule = torch.optim.SGD(model.parameters(), config["learning_rate"], momentum=0.9)

    def train(step: int) -> None:
        for batch in digits_packed.batches(config, step):
            rule.zero_grad()
            digits_packed.loss(model, batch).backward()
            rule.step()
        with torch.no_grad():
            digits_packed.evaluate(model)

    return train


def step_of_batch(together: Iterable[Config]) -> Callable[[int], None]:
    """Return a function that trains one step of all these trials in one batch."""
    trainer = Trainer(RECIPE)
    members = [Member(number, config, make(config)) for number, config in enumerate(together)]

    def train(step: int) -> None:
        for member in members:
            member.begin(RECIPE, step)
        going = [members]
        while going:
            result = trainer.round(going.pop())
            assert not result.errors
            going += result.going

    return train


def seconds(train: Callable[[int], None], steps: int) -> float:
    """Return the processor seconds of a step, the smallest of `steps`, after one that is not counted."""
    train(0)
    times = []
    for step in range(1, steps + 1):
        began = time.process_time()
        train(step)
        times.append(time.process_time() - began)
    return min(times)


def in_processes(count: int, width: int, steps: int, *, as_batch: bool) -> float:
    """Return the processor seconds per step of N trials in processes of their own, with or without a batch process."""
    before = sum(os.times()[2:4])
    with tempfile.TemporaryDirectory(prefix="packing-") as name:
        path = str(Path(name) / "batch")
        server = _fork(lambda: PACKED.serve(listener)) if as_batch and (listener := _listen(path)) else None
        ends = [_trial(config, name, steps, path if as_batch else None) for config in configs(count, width)]
        for _ in range(steps):
            for end in ends:
                while b'"report"' not in end.recv_bytes():
                    pass
                end.send_bytes(reply_message(stop=False, save=False))
        for end in ends:
            os.waitpid(_PIDS[end.fileno()], 0)
        if server is not None:
            os.kill(server, 9)
            os.waitpid(server, 0)
    return (sum(os.times()[2:4]) - before) / steps


_PIDS: dict[int, int] = {}


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


def _trial(config: Config, folder: str, steps: int, path: str | None) -> Connection:
    ours, theirs = Pipe()
    begin = BeginMessage("trial", 1, "", config, folder, max_step=steps, batch_socket=path)
    ours.send_bytes(begin_message(begin))

    def body() -> None:
        open_channel(theirs)  # type: ignore[arg-type]
        PACKED(config)

    _PIDS[ours.fileno()] = _fork(body)
    theirs.close()
    return ours  # type: ignore[return-value]


def _fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid


SPACE = {"learning_rate": {"type": "float", "low": 1e-3, "high": 0.3, "log": True}}
JOB: dict[str, Any] = {
    "objective": {"metric": "val_accuracy", "mode": "max"},
    "search_space": SPACE,
    "fidelity": {"min": 1, "max": 20, "reduction_factor": 3},
    "algorithm": {"scheduler": "none", "sampler": "random", "seed": 1},
    "budget": {"usd": 1, "trials": 32},
}


def jobs() -> None:
    """Run each job three times, in turns, and print the median of its dollars and seconds."""
    cases = [("digits_packed", 1), ("digits_packed", 16), ("digits_mlp", 1), ("digits_mlp", 4)]
    measured: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(prefix="packing-") as home:
        served = Served(Path(home)).start()
        try:
            for name, pack in [cases[0], cases[2], *cases * 3]:  # the first two jobs only fill caches
                began = time.monotonic()
                size = {"pack": pack, "max_concurrent_trials": pack}
                constants = {"width": 32} if name == "digits_packed" else {"batch_size": 64, "width": 32}
                job = served.client.submit(
                    {
                        **JOB,
                        "name": name,
                        "trainable": f"trainables.{name}:train",
                        "constants": constants,
                        "resources": size,
                    }
                )
                ended = served.client.wait(job.id)
                assert ended.stop_reason == "trials", ended.detail
                measured[name, pack].append((ended.spend.usd, time.monotonic() - began))
        finally:
            served.stop()
    for (name, pack), runs in measured.items():
        usd, seconds = (median(values) for values in zip(*runs[-3:], strict=True))
        print(
            f"{name:14} pack {pack:2}: ${usd:.6f}, {seconds:.1f} s; all: {[round(cost, 6) for cost, _ in runs[-3:]]}"
        )


def main(
    width: Annotated[list[int], typer.Option(help="Width of the hidden layers. Repeatable.")] = [32, 128],  # noqa: B006  # typer reads it only
    steps: Annotated[int, typer.Option(help="Steps of each measurement.")] = 5,
    processes: Annotated[bool, typer.Option(help="Measure whole trials in processes as well.")] = False,
    whole_jobs: Annotated[bool, typer.Option("--jobs", help="Measure whole jobs instead.")] = False,
) -> None:
    """Print the processor time of one step of N trials, in milliseconds, and ratios."""
    if whole_jobs:
        jobs()
        return
    torch.set_num_threads(1)
    digits_packed.data()
    print(
        f"{'width':>5} {'N':>3} {'torch.optim':>11} {'alone':>8} {'batch':>8} {'optim/batch':>11} {'alone/batch':>11}"
    )
    for size in width:
        (config,) = configs(1, size)
        by_optim, alone = seconds(step_of_optim(config), steps), seconds(step_of_batch([config]), steps)
        for count in (4, 16, 64):
            batch = seconds(step_of_batch(configs(count, size)), steps)
            print(
                f"{size:5} {count:3} {count * by_optim * 1e3:11.0f} {count * alone * 1e3:8.0f} {batch * 1e3:8.0f} "
                f"{count * by_optim / batch:11.2f} {count * alone / batch:11.2f}"
            )
    if processes:
        print("\nwhole trials in processes, 20 steps: processor milliseconds of a step of all N")
        for size in width:
            for count in (4, 16):
                apart, batch = (in_processes(count, size, 20, as_batch=each) for each in (False, True))
                print(f"{size:5} {count:3} {apart * 1e3:8.0f} {batch * 1e3:8.0f} {apart / batch:6.2f}")


if __name__ == "__main__":
    typer.run(main)
