"""Helpers to train with large batches in little memory, and to learn from the model of another trial.

`accumulate`, `recompute` and `fit_batch_size` save memory; `teacher` and `distillation_loss` are for distillation.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tuner.training.channel import current, refuse_at_import
from tuner.training.checkpoint import saved_state
from tuner.training.measured import note

B = TypeVar("B")
M = TypeVar("M", bound=nn.Module)


def accumulate(
    batch: B,
    parts: int,
    loss_of: Callable[[B], torch.Tensor],
    *,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler | None = None,
    clip: float | None = None,
    model: nn.Module | None = None,
) -> float:
    """Make one optimizer step over `batch` in at most `parts` micro-batches, and return the mean loss.

    Each micro-batch is weighted by its share of the examples, so the gradient equals that of the whole batch for any `parts`. For
    padded sequences, let `loss_of` return the mean over examples and not over tokens, because the weights count examples.

    Args:
        batch: A tensor, or tuples, lists, dictionaries and named tuples of tensors and sequences. The first dimension of each is the
            examples. Other values, such as numbers, are passed to each part unchanged.
        parts: The largest number of micro-batches.
        loss_of: Returns the mean loss of a micro-batch, which has the form of `batch`.
        optimizer: Its gradients are cleared first.
        scaler: The scaler of losses for fp16, from `grad_scaler`.
        clip: The largest norm of the gradient of all parameters. None does not clip.
        model: The model, if it trains on several ranks with DistributedDataParallel or `fully_shard`. The ranks then exchange
            gradients once for each step, with the last micro-batch, instead of once for each micro-batch.

    Raises:
        ValueError: The batch has no examples, or its tensors do not all have the same number of examples.
    """
    size = _size(batch)
    length = -(-size // max(1, parts))
    pieces = [(start, min(start + length, size)) for start in range(0, size, length)]
    note(batch_size=size, accumulation_steps=parts)
    optimizer.zero_grad(set_to_none=True)
    losses = []
    for start, end in pieces:
        with _exchange(model, is_last=end == size):
            loss = loss_of(_rows(batch, size, start, end)) * ((end - start) / size)
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().reshape(()))
    if clip is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    # Read all losses at once, because each read waits for the GPU.
    values: list[float] = torch.stack(losses).tolist()
    return sum(values)


@contextmanager
def _exchange(model: Any, *, is_last: bool) -> Iterator[None]:
    """Let the ranks exchange gradients in this block only if `is_last` is set, which means that the block contains the step's last backward pass."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(model, fsdp.FSDPModule):
        model.set_requires_gradient_sync(is_last)
        yield
    elif isinstance(model, torch.nn.parallel.DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
    else:
        yield


def _leaves(batch: Any) -> list[Any]:
    """Return the parts of a batch that have one entry for each example: its tensors and its sequences."""
    if isinstance(batch, Mapping):
        return [leaf for value in batch.values() for leaf in _leaves(value)]
    if isinstance(batch, torch.Tensor):
        return [batch] if batch.dim() else []
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        nested = [leaf for value in batch for leaf in _leaves(value)]
        return nested or [batch]
    return [batch] if getattr(batch, "ndim", False) else []


def _size(batch: Any) -> int:
    sizes = {len(leaf) for leaf in _leaves(batch)}
    if len(sizes) != 1 or 0 in sizes:
        listed_sizes = ", ".join(map(str, sorted(sizes))) or "none"
        raise ValueError(
            f"the parts of a batch must have the same number of examples, at least one; they have {listed_sizes}"
        )
    return sizes.pop()


def _rows(batch: Any, size: int, start: int, end: int) -> Any:
    """Return a batch of the same form that has only the examples from `start` to `end`. Values without examples are unchanged."""
    if isinstance(batch, Mapping):
        return {name: _rows(value, size, start, end) for name, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes) and _leaves(batch) != [batch]:
        values = [_rows(value, size, start, end) for value in batch]
        if hasattr(batch, "_fields"):
            return type(batch)(*values)
        return type(batch)(values) if isinstance(batch, tuple | list) else values
    return batch[start:end] if _leaves(batch) else batch


def recompute(model: M, every: int = 1) -> M:
    """Keep fewer activations of a model in memory, and compute the others again in the backward pass. Return the same model.

    Every n-th block of the model's longest `nn.Sequential` or `nn.ModuleList` keeps nothing but its input. A list whose blocks all have the
    same class is preferred. Losses and gradients stay the same, also with dropout, and the running statistics of batch
    normalization. A step takes up to a third longer.

    Args:
        model: A model whose blocks are in an `nn.Sequential` or an `nn.ModuleList`.
        every: 1 recomputes all blocks, 2 every second block, and so on.

    Raises:
        ValueError: The model has no such list of at least two blocks, or `every` is less than 1.
    """
    if every < 1:
        raise ValueError(
            f"`every` must be at least 1, not {every}; 1 recomputes all blocks, 2 every second block, and so on"
        )
    lists = [part for part in model.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
    blocks = max(
        lists, key=lambda part: (len({*map(type, part)}) == 1 < len(part), len(part)), default=nn.ModuleList()
    )
    if len(blocks) < 2:
        raise ValueError(
            "the model has no nn.Sequential or nn.ModuleList of blocks; pass the part of the model that has one"
        )
    for block in [*blocks][::every]:
        # Use a bound method, because a deep copy of the model binds the method to the copied block. So the copy calls its own blocks.
        block.forward = MethodType(partial(_recomputed, _forward_of(block)), block)
    note(recompute_every=every)
    return model


def _forward_of(block: nn.Module) -> Callable[..., Any]:
    """Return the function that computes a block. If its `forward` was replaced, as by `quantize_aware`, return the replacement."""
    own = vars(block).get("forward")
    if own is None:
        return type(block).forward
    if not isinstance(own, MethodType) or own.__self__ is not block:
        return lambda _, *args, **kwargs: own(*args, **kwargs)
    function: Any = own.__func__
    if isinstance(function, partial) and function.func is _recomputed:
        return function.args[0]  # type: ignore[no-any-return]
    return function  # type: ignore[no-any-return]


def _recomputed(forward: Callable[..., Any], block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(block, *args, **kwargs)
    if torch.compiler.is_compiling() or not _with_statistics(block):
        # The compiler computes changes of buffers only once, and accepts no `context_fn` of ours.
        return checkpoint(forward, block, *args, use_reentrant=False, **kwargs)
    return checkpoint(
        forward,
        block,
        *args,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _unchanged_statistics(block)),
        **kwargs,
    )


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers of batch normalization


def _with_statistics(block: nn.Module) -> list[tuple[nn.Module, dict[str, torch.Tensor]]]:
    """Return the layers of a block that have running statistics, with these."""
    layers = [
        (layer, {name: layer._buffers[name] for name in STATISTICS if layer._buffers.get(name) is not None})
        for layer in block.modules()
    ]
    return [(layer, statistics) for layer, statistics in layers if statistics]  # type: ignore[misc]


@contextmanager
def _unchanged_statistics(block: nn.Module) -> Iterator[None]:
    """Leave running statistics as they are, because the first computation of the block has already counted its batch.

    The layers use copies in this context. Restoring the values in place would look to autograd like a change of tensors that other
    computations have saved.
    """
    layers = _with_statistics(block)
    for layer, statistics in layers:
        layer._buffers.update({name: value.clone() for name, value in statistics.items()})
    try:
        yield
    finally:
        for layer, statistics in layers:
            layer._buffers.update(statistics)


def fit_batch_size(step: Callable[[int, int], object], largest: int, *, smallest: int = 1) -> tuple[int, int]:
    """Return the largest micro-batch that fits into memory, and the number of micro-batches that make up a batch of `largest`.

    `step` is tried with `largest` examples. Whenever memory runs out, it is tried with half as many. The micro-batches together are always
    the whole batch, so training has the same result. Both numbers are recorded with the trial.

        size, parts = fit_batch_size(try_one, largest=config["batch_size"])
        ...
        accumulate(batch, parts, loss_of, optimizer=optimizer)

    Args:
        step: Takes the number of examples of a micro-batch and the number of micro-batches. It makes a forward and a backward pass, and an
            optimizer step so that the optimizer's memory counts. It must leave no trace in the model: use a copy, or zero gradients.
        largest: The number of examples of a whole batch.
        smallest: The smallest number of examples of a micro-batch that is tried.

    Raises:
        torch.OutOfMemoryError: Not even the smallest micro-batch fits.
    """
    size = largest
    while True:
        parts = -(-largest // size)
        try:
            step(size, parts)
        except RuntimeError as error:
            if not _is_out_of_memory(error) or size // 2 < smallest:
                raise
        else:
            note(fitted_batch_size=size, accumulation_steps=parts)
            return size, parts
        # Free the memory here and not in the exception handler, where the exception's traceback still keeps the tensors of the step in memory.
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        size //= 2


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether a GPU or the CPU has run out of memory. PyTorch raises a plain RuntimeError for the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


class Teacher(NamedTuple):
    """The trial that the job file names as `teacher`."""

    config: dict[str, Any]  #: What the teacher's trainable was called with: its configuration and constants.
    #: The saved state of each part that was named to `SpotSafe`, on the CPU. If the teacher saved its checkpoint in another way, the
    #: `Path` of the checkpoint's directory, which must not be changed.
    state: Any


def teacher() -> Teacher | None:
    """Return the trial that the job file names as `teacher`. Return None if it names none, and in a script, which has no job file.

    Call it only once, because each call reads the checkpoint. It may be called before or after entering `SpotSafe`.
    """
    refuse_at_import("teacher()")
    channel = current()
    given = None if channel is None else channel.begin.teacher
    return None if given is None else Teacher(dict(given["config"]), saved_state(Path(given["path"])))


def distillation_loss(
    student: torch.Tensor,
    teacher: torch.Tensor,
    target: torch.Tensor,
    *,
    weight: float = 0.5,
    temperature: float = 2.0,
) -> torch.Tensor:
    """Return the loss of a student that learns from labels and from the predictions of a teacher (Hinton et al. 2015).

    It is `weight` times the Kullback-Leibler divergence of the softened predictions, times the squared temperature so that its gradient
    does not depend on the temperature, plus `1 - weight` times the cross entropy with the labels.

    Args:
        student: The student's logits, shape (n, classes).
        teacher: The teacher's logits, of the same shape. No gradient flows to them.
        target: The labels, shape (n,).
        weight: Between 0 (only labels) and 1 (only the teacher).
        temperature: Above 0. Higher values soften both predictions.

    Raises:
        ValueError: `weight` or `temperature` is out of range.
    """
    if not 0 <= weight <= 1 or temperature <= 0:
        raise ValueError(
            f"`weight` is {weight} and `temperature` is {temperature}; give a weight from 0 to 1 and a temperature above 0"
        )
    soft = nn.functional.kl_div(
        (student / temperature).log_softmax(-1),
        (teacher.detach() / temperature).log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )
    hard = nn.functional.cross_entropy(student, target)
    return weight * temperature**2 * soft + (1 - weight) * hard
