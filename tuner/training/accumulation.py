"""Gradient accumulation: process a large batch in parts that fit into memory."""

from collections.abc import Callable

import torch

from tuner.training.measured import note


def accumulated_step(
    batch: torch.Tensor,
    parts: int,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    *,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> float:
    """Make one optimizer step over `batch` in at most `parts` micro-batches, and return the mean loss.

    Each micro-batch is weighted by its share of the examples, so the gradient equals that of the whole batch for any `parts`.

    Args:
        batch: The first dimension is the examples.
        loss_of: Returns the mean loss of a micro-batch.
    """
    note(batch_size=len(batch), accumulation_steps=parts)
    optimizer.zero_grad(set_to_none=True)
    losses = []
    for part in batch.chunk(parts):
        loss = loss_of(part) * (len(part) / len(batch))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().reshape(()))
    scaler.step(optimizer)
    scaler.update()
    # Read all at once, because each read waits for the GPU.
    values: list[float] = torch.stack(losses).tolist()
    return sum(values)
