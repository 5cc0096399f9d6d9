"""The states of a training on several ranks: what each rank saves, and how pieces become tensors again on any number of ranks.

Rank 0 saves all parts as a training on one process does, but only its piece of each tensor that is spread over ranks. The other ranks
save their pieces, their random generators, and their own state of parts such as data loaders. Tensors that each rank has as a whole are
saved once. The files are plain data, so that reading them cannot run code.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from tuner.training.plain import PIECE, is_spread


def unwrapped(name: str, part: Any) -> Any:
    """Return the model inside a DataParallel, DistributedDataParallel or compiled model. Checkpoints then do not depend on these wrappers.

    Any other part is returned unchanged.

    Raises:
        TypeError: The part is of the first version of FSDP.
    """
    while True:
        kind = type(part)
        if kind.__name__ == "FullyShardedDataParallel" and kind.__module__.startswith("torch."):
            raise TypeError(
                f"{name} is a FullyShardedDataParallel, which cannot be saved; use torch.distributed.fsdp.fully_shard(model)"
            )
        if isinstance(part, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
            part = part.module
        elif kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch."):
            # The class is not imported, because importing it takes seconds.
            part = part._orig_mod
        else:
            return part


def remove_compiled_prefix(part: Any, states: Sequence[Any]) -> None:
    """Remove the prefix with which earlier releases saved the names of a compiled model. The states are changed in place.

    Args:
        part: The part that the states are loaded into.
        states: What each rank saved of the part. Rank 0 saved all names.
    """
    if not isinstance(part, torch.nn.Module):
        return
    names = part.state_dict().keys()
    for prefix in ("_orig_mod.", "_orig_mod.module."):  # the second is of a compiled DistributedDataParallel
        if names and states[0].keys() == {prefix + name for name in names}:
            for state in states:
                consume_prefix_in_state_dict_if_present(state, prefix)


def is_same_on_all_ranks(part: Any) -> bool:
    """Return whether all ranks have the same state of a part, apart from their shards of tensors."""
    return isinstance(part, torch.nn.Module | torch.optim.Optimizer)


def only_pieces(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the part of a state that consists of tensors which are spread over ranks."""
    kept = {}
    for key, value in state.items():
        pieces = only_pieces(value) if isinstance(value, Mapping) else None
        if pieces or is_spread(value):
            kept[key] = pieces or value
    return kept


def rank_file(directory: Path, rank: int) -> Path:
    """Return the path of the file that a rank other than 0 saves in a checkpoint directory."""
    return directory / f"rank_{rank:05d}.pt"


@dataclass(frozen=True, slots=True)
class _LikeParameter:
    """The layout of an optimizer's tensors for one parameter: they are spread over ranks like the parameter."""

    parameter: torch.Tensor


def layout_of(part: Any) -> Any:
    """Return the current tensors of a part. They show how the tensors of a checkpoint must be distributed over the ranks."""
    if isinstance(part, torch.optim.Optimizer):
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        return {"state": {number: _LikeParameter(parameter) for number, parameter in enumerate(parameters)}}
    return part.state_dict() if isinstance(part, torch.nn.Module) else None


def assembled(value: Any, others: Sequence[Any], layout: Any) -> Any:
    """Replace the pieces in a state by tensors, spread as on the current ranks. Mappings are changed in place.

    Args:
        value: The state that rank 0 saved.
        others: The states that the other ranks saved at the same place.
        layout: The current tensors at the same places, from `layout_of`. None to make whole tensors.

    Raises:
        ValueError: A part of a tensor was not saved by any rank.
    """
    if isinstance(value, torch.Tensor) and is_spread(layout) and value.shape == layout.shape:
        return _tensor([{PIECE: value, "offset": [0] * value.ndim, "shape": list(value.shape)}], layout)
    if not isinstance(value, dict):
        return value
    if PIECE in value:
        return _tensor([value, *(other for other in others if isinstance(other, Mapping))], layout)
    for key, inner in value.items():
        at_key = [other[key] for other in others if isinstance(other, Mapping) and key in other]
        value[key] = assembled(inner, at_key, _at(layout, key))
    return value


def _at(layout: Any, key: Any) -> Any:
    if isinstance(layout, _LikeParameter):
        return layout.parameter
    return layout.get(key) if isinstance(layout, Mapping) else None


def _tensor(pieces: Sequence[Mapping[str, Any]], like: Any) -> torch.Tensor:
    """Put a tensor together from its pieces. If `like` is spread over ranks and has the same shape, spread the result in the same way."""
    shape = torch.Size(pieces[0]["shape"])
    if not is_spread(like) or like.shape != shape:
        return _filled(pieces, list(shape), [0] * len(shape))
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    size, offset = compute_local_shape_and_global_offset(shape, like.device_mesh, like.placements)
    local = _filled(pieces, list(size), list(offset)).to(like.to_local().device)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=shape, stride=like.stride()
    )


def _filled(pieces: Sequence[Mapping[str, Any]], size: list[int], offset: list[int]) -> torch.Tensor:
    """Return the block of a tensor that has this size and begins at this offset, filled from the pieces."""
    parts = [(piece[PIECE], piece["offset"]) for piece in pieces if piece[PIECE] is not None]
    target, filled = torch.empty(size, dtype=parts[0][0].dtype), 0
    for part, at in parts:
        both = list(_overlap(part.shape, at, size, offset))
        if all(length > 0 for *_, length in both):
            source = part[tuple(slice(begin, begin + length) for begin, _, length in both)]
            target[tuple(slice(begin, begin + length) for _, begin, length in both)] = source
            filled += source.numel()
    if filled != target.numel():
        raise ValueError(
            f"the checkpoint is incomplete: its files have {filled} of {target.numel()} elements of a tensor"
        )
    return target


def _overlap(
    size: Sequence[int], at: Sequence[int], other_size: Sequence[int], other_at: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Yield, for each dimension, where the common part of two blocks begins in each block, and its length.

    The length is 0 or negative if the blocks do not overlap.
    """
    for length, begin, other_length, other_begin in zip(size, at, other_size, other_at, strict=True):
        first, end = max(begin, other_begin), min(begin + length, other_begin + other_length)
        yield first - begin, first - other_begin, end - first
