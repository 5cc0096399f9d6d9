"""A training run with all state that a restart could restore wrongly. It also runs as a script, without Ray.

`python -m tests.training.fit OPTIMIZER PRECISION DIRECTORY STEPS [KILLED_IN_STEP]` prints a line of JSON for
each step, and at the end a digest of all parameters and buffers.
"""

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from tuner.training import Batches, SpotSafe, accumulate, autocast, grad_scaler
from tuner.worker.dynamo import stand_in

BATCHES_A_STEP = 3  # An epoch has five batches, so that checkpoints fall into the middle of epochs.
Record = dict[str, Any]


def endless(batches: Batches) -> Iterator[torch.Tensor]:
    while True:
        yield from batches


def build_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), 0.01)


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 40 examples of six features, and their targets."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(40, 6, generator=generator)
    return inputs, inputs.sum(1, keepdim=True).sin()


def digest(model: nn.Module) -> str:
    """Return a digest of all parameters and buffers that differs if any bit differs."""
    digester = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digester.update(name.encode() + tensor.numpy().tobytes())
    return digester.hexdigest()


def draws() -> list[str]:
    """Draw one number from each global generator, in hexadecimal so that no bit is lost."""
    return [
        float(x).hex() for x in (random.random(), numpy.random.rand(), numpy.random.randn(), torch.rand(()))
    ]


def fit(
    directory: Path | None,
    *,
    optimizer: str = "sgd",
    precision: str = "fp32",
    steps: int = 8,
    before_step: Callable[[int], None] = lambda step: None,
    tell: Callable[[Record], None] = lambda record: None,
) -> str:
    """Train up to step `steps`, call `tell` for each step, and return the digest of the parameters."""
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(3)
    torch.set_num_threads(1)
    inputs, targets = examples()
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    built_optimizer = build_optimizer(optimizer, model)
    scheduler = torch.optim.lr_scheduler.StepLR(built_optimizer, step_size=2, gamma=0.7)
    scaler, batches = grad_scaler(precision), Batches(len(inputs), 8, seed=5)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with autocast(precision):
            return nn.functional.mse_loss(model(inputs[batch]).float(), targets[batch])

    parts: dict[str, Any] = {"model": model, "optimizer": built_optimizer, "scheduler": scheduler}
    stream = endless(batches)
    with SpotSafe(**parts, scaler=scaler, batches=batches, steps=steps, checkpoint_dir=directory) as run:
        for step in run.steps():
            before_step(step)
            order, losses = [], []
            for _ in range(BATCHES_A_STEP):
                batch = next(stream)
                order.append(batch.tolist())
                losses.append(accumulate(batch, 2, loss_of, optimizer=built_optimizer, scaler=scaler))
            scheduler.step()
            tell(
                {
                    "step": step,
                    "order": order,
                    "losses": [loss.hex() for loss in losses],
                    "rate": [float(rate).hex() for rate in scheduler.get_last_lr()],
                    "scale": scaler.get_scale(),
                    "draws": draws(),
                    "digest": digest(model),
                }
            )
            run.report(loss=losses[-1])
    return digest(model)


def main() -> None:
    stand_in(lambda: None)  # The compiler is not used, and its import takes two seconds of processor time.
    optimizer, precision, directory, steps = sys.argv[1:5]
    killed_in = int(sys.argv[5]) if len(sys.argv) > 5 else None

    def die(step: int) -> None:
        if step == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

    last = fit(
        Path(directory),
        optimizer=optimizer,
        precision=precision,
        steps=int(steps),
        before_step=die,
        tell=lambda record: print(json.dumps(record), flush=True),
    )
    print(json.dumps({"digest": last, "ray": "ray" in sys.modules}))


if __name__ == "__main__":
    main()
