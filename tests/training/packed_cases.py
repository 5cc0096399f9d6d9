"""Packed trainables with small models, for tests."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from tuner.training import AdamW, Packed, Sgd

Config = Mapping[str, Any]
VALIDATION = torch.randn(64, 6, generator=torch.Generator().manual_seed(5))


def make(config: Config) -> nn.Module:
    """Return a network whose first weights depend on the trial only, as if the worker had seeded the generators."""
    torch.manual_seed(config.get("seed", 0))
    act: nn.Module = nn.ReLU() if config.get("relu") else nn.Tanh()
    return nn.Sequential(
        nn.Linear(6, config.get("width", 8)),
        act,
        nn.LayerNorm(config.get("width", 8)),
        nn.Linear(config.get("width", 8), 1),
    )


def optimizer(config: Config, step: int) -> Sgd | AdamW:
    rate = config["lr"] * 0.8**step
    if config.get("adam"):
        return AdamW(rate, betas=(config.get("beta1", 0.9), 0.99), weight_decay=config.get("decay", 0.01))
    return Sgd(rate, momentum=config.get("momentum", 0.9), weight_decay=config.get("decay", 0.0))


def examples(inputs: torch.Tensor) -> torch.Tensor:
    return inputs.sum(1, keepdim=True).sin()


def batches(config: Config, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield four batches of a step, which depend on the trial's seed."""
    generator = torch.Generator().manual_seed(1000 * config.get("seed", 0) + step)
    for number in range(config.get("batches", 4)):
        if [step, number] == config.get("raises_in"):
            raise LookupError("the data has no such batch")
        if [step, number] == config.get("kills_in"):
            os.kill(config["victim"], signal.SIGKILL)
        inputs = torch.randn(config.get("batch", 8), 6, generator=generator)
        if config.get("nan"):
            inputs[0] = torch.nan
        yield inputs, examples(inputs)


def loss(model: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def evaluate(model: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"val_loss": nn.functional.mse_loss(model(VALIDATION), examples(VALIDATION))}


train = Packed(make=make, optimizer=optimizer, batches=batches, loss=loss, evaluate=evaluate)
