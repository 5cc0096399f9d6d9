"""Gradient accumulation: process a large batch in parts that fit into memory."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tuner.training.measured import note


def accumulated_step(
    batch: torch.Tensor,
    parts: int,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    *,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    model: torch.nn.Module | None = None,
) -> float:
    """Make one optimizer step over `batch` in at most `parts` micro-batches, and return the mean loss.

    Each micro-batch is weighted by its share of the examples, so the gradient equals that of the whole batch for any `parts`.

    Args:
        batch: The first dimension is the examples.
        loss_of: Returns the mean loss of a micro-batch.
        optimizer: Makes the step.
        scaler: Scales the loss.
        model: The model, if it trains on several ranks with DistributedDataParallel or `fully_shard`. The ranks then exchange
            gradients once for each step, with the last micro-batch, instead of once for each micro-batch.
    """
    note(batch_size=len(batch), accumulation_steps=parts)
    optimizer.zero_grad(set_to_none=True)
    losses = []
    micro_batches = batch.chunk(parts)
    for number, part in enumerate(micro_batches, start=1):
        with _exchange(model, is_last=number == len(micro_batches)):
            loss = loss_of(part) * (len(part) / len(batch))
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().reshape(()))
    scaler.step(optimizer)
    scaler.update()
    # Read all at once, because each read waits for the GPU.
    values: list[float] = torch.stack(losses).tolist()
    return sum(values)


@contextmanager
def _exchange(model: Any, *, is_last: bool) -> Iterator[None]:
    """Have the ranks exchange the gradients of a backward pass only if it is the last one of a step."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(model, fsdp.FSDPModule):
        model.set_requires_gradient_sync(is_last)
        yield
    elif isinstance(model, torch.nn.parallel.DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
    else:
        yield
