"""Gradient accumulation: a large batch in parts that fit into memory."""

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
    """One optimizer step over `batch` (first dimension: examples) in up to `parts` micro-batches; the mean loss.

    `loss_of` gives the mean loss of a micro-batch; each is weighted by its share of the examples, so that the gradient
    is that of the whole batch whatever `parts` is.
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
    found: list[float] = torch.stack(losses).tolist()  # read at once: each time, a GPU is waited for
    return sum(found)
