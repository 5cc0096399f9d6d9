"""Make the content of a training checkpoint, write it to a directory, and restore it.

All content is plain data that loads with `weights_only=True`, so reading a checkpoint cannot run code.
"""

import ctypes
import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from tuner.training import plain, sharded
from tuner.training.channel import STATE_FILE
from tuner.training.seeding import seed_everything

ALL_THREADS_BYTES = 64 << 20
AS_BEFORE = "build the same parts from the same config as the run that saved the checkpoint, or begin a new trial or directory"


class Stateful(Protocol):
    """An object whose state can be saved: a model, optimizer, scheduler, scaler or sampler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class CheckpointUnreadable(RuntimeError):
    """A checkpoint could not be loaded into the current parts."""


class Copies:
    """Copy tensors into CPU memory and reuse that memory for later copies.

    Training waits for the copies. Allocating new memory takes longer than the copy itself, because the operating system clears each
    page first.
    """

    def __init__(self) -> None:
        self._free: dict[object, list[torch.Tensor]] = {}
        self._used: list[tuple[object, torch.Tensor]] = []

    def begin(self) -> None:
        """Start a new set of copies, which may overwrite the previous set. Memory that the previous set did not use is freed."""
        self._free = {}
        for like, memory in self._used:
            self._free.setdefault(like, []).append(memory)
        self._used = []

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach()
        if type(source) is not torch.Tensor or source.layout != torch.strided:
            return source.to("cpu", copy=True)
        like = (source.dtype, source.shape, source.stride())
        memory = self._free.get(like, [])
        target = memory.pop() if memory else torch.empty_like(source, device="cpu")
        _copy(target, source)
        self._used.append((like, target))
        return target


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy `source` to `target`. Small contiguous tensors on the CPU are copied with `memmove` instead of PyTorch.

    PyTorch copies with all threads and waits for the last of them. If other processes use the processors too, copying a
    small tensor in this way takes ten times as long as `memmove`.
    """
    size = source.numel() * source.element_size()
    alike = target.is_contiguous() and source.is_contiguous() and not source.is_conj() and not source.is_neg()
    if source.device.type == "cpu" and alike and size < ALL_THREADS_BYTES:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
    else:
        target.copy_(source)


def snapshot(
    parts: Mapping[str, Stateful], *, step: int, copies: Copies | None = None, rank: int = 0, ranks: int = 1
) -> dict[str, Any]:
    """Return a copy of the states of all parts and random generators, in CPU memory that later training does not change.

    Args:
        copies: The memory to copy into. A later snapshot with the same `copies` overwrites this one.
        rank: The number of this process, from 0.
        ranks: How many processes train together.

    Raises:
        TypeError: A state has a value that could not be read from a checkpoint. The message says where in the state the value is.
    """
    copies = copies or Copies()
    copies.begin()
    with torch.inference_mode(False):  # otherwise the copies could not be overwritten later
        states = {
            name: plain.packed(_state_of(part, rank), name, copies.copy) for name, part in parts.items()
        }
    whole = {"step": step, "parts": states, "random": random_states()}
    return {**whole, "rank": rank, "ranks": ranks} if ranks > 1 else whole


def _state_of(part: Stateful, rank: int) -> Any:
    """Return what this rank saves of a part's state.

    If the state differs between the ranks only in the shards of tensors, rank 0 saves its whole state, and the other ranks save only their
    shards. Otherwise each rank saves its whole state.
    """
    state = part.state_dict()
    return sharded.only_pieces(state) if rank and sharded.is_same_on_all_ranks(part) else state


def settle() -> None:
    """Wait until the GPU has finished its training work. Call this before the attempt's time is billed as checkpoint.

    Without this call, the first copy from the GPU would wait for the training work, and this wait would be billed as checkpoint.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def write(state: Mapping[str, Any], directory: Path) -> None:
    """Write the state of one rank to its own file in a checkpoint directory. All ranks write to the same directory.

    The file is not synced to disk: the caller copies the checkpoint, or calls `sync`, if it must survive a loss of power.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rank = state.get("rank", 0)
    path = sharded.rank_file(directory, rank) if rank else directory / STATE_FILE
    with path.open("wb") as file:
        torch.save(dict(state), file)


def sync(directory: Path) -> None:
    """Sync a checkpoint directory and its files to disk, so that they survive a loss of power."""
    for path in (*directory.iterdir(), directory):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def restore(
    parts: Mapping[str, Stateful], directories: Sequence[Path], *, rank: int = 0, ranks: int = 1
) -> int:
    """Load the first checkpoint that can be read into the parts and the random generators, and return its step.

    `directories` are tried in order. The checkpoint may have been saved by a different number of ranks.

    Raises:
        CheckpointUnreadable: Every checkpoint is damaged, or the loaded one was saved from different parts.
    """
    directory, state = _first_whole(directories)
    try:
        saved_ranks = state.get("ranks", 1)
        others = [_read_rank(directory, other) for other in range(1, saved_ranks)]
        # If the number of ranks has changed, the saved states of ranks other than 0 do not fit. All ranks then continue from the state of rank 0.
        own = others[rank - 1] if rank and saved_ranks == ranks else state
        missing = sorted(set(parts) ^ set(state["parts"]))
        if missing:
            raise ValueError(
                f"these parts are only in the checkpoint or only in this run: {', '.join(missing)}; {AS_BEFORE}"
            )
        for name, part in parts.items():
            if sharded.is_same_on_all_ranks(part):
                whole, *pieces = [each["parts"][name] for each in (state, *others)]
                sharded.remove_compiled_prefix(part, [whole, *pieces])
                saved = sharded.assembled(whole, pieces, sharded.layout_of(part))
            else:
                saved = own["parts"][name]
            _load(name, part, saved)
        set_random_states(own["random"])
        if rank and own is state:
            _draw_differently(rank)
    except Exception as error:
        raise CheckpointUnreadable(f"{directory / STATE_FILE}: {error}") from error
    return int(state["step"])


def saved_state(directory: Path) -> Any:
    """Return the saved states of the parts, by name, if `SpotSafe` saved the checkpoint. Otherwise return the directory itself."""
    return read_parts(directory) if (directory / STATE_FILE).is_file() else directory


def read_parts(directory: Path) -> dict[str, Any]:
    """Return the saved states of all parts, by name.

    Tensors that were spread over ranks are put together. All other values are those that rank 0 saved. If the checkpoint is damaged,
    exceptions of various classes are raised.
    """
    state = plain.read(directory / STATE_FILE)
    others = [_read_rank(directory, rank)["parts"] for rank in range(1, state.get("ranks", 1))]
    return {
        name: sharded.assembled(part, [other[name] for other in others], None)
        for name, part in state["parts"].items()
    }


def _read_rank(directory: Path, rank: int) -> Any:
    """Read the file of a rank other than 0. Its tensors are read only when they are used, because a restoring rank needs few of them."""
    return plain.read(sharded.rank_file(directory, rank), mmap=True)


def _draw_differently(rank: int) -> None:
    """Seed this rank's random generators, so that ranks which restored the states of rank 0 do not draw the same numbers.

    The seed follows from the restored states, so a second restore gives the same numbers.
    """
    seed_everything(int(torch.randint(2**62, ()).item()) + rank)


def _load(name: str, part: Stateful, state: Any) -> None:
    try:
        part.load_state_dict(state)
    except Exception as error:
        raise ValueError(f"{name} cannot load its saved state: {error}; {AS_BEFORE}") from error


def _first_whole(directories: Sequence[Path]) -> tuple[Path, Any]:
    errors = []
    for directory in directories:
        try:
            return directory, plain.read(directory / STATE_FILE)
        except Exception as error:
            logging.getLogger(__name__).warning("%s cannot be read: %s", directory / STATE_FILE, error)
            errors.append(error)
    raise CheckpointUnreadable(f"{directories[0] / STATE_FILE}: {errors[0]}") from errors[0]


def random_states() -> dict[str, Any]:
    """Return the states of the random generators of Python and PyTorch, and those of NumPy and CUDA if these are used."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        # As a tensor this state has the same size in each checkpoint, so the data after it in the file keeps its position.
        # Therefore only the changed chunks of a large checkpoint file have to be stored again.
        "python": [version, torch.tensor(words), gauss],
        "torch": torch.get_rng_state(),
        "cuda": _of_gpus(),
    }
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        states["numpy"] = [name, torch.tensor(keys.tolist()), position, has_gauss, cached]
    return states


def _of_gpus() -> list[torch.Tensor]:
    """Return the generator states of all GPUs. Return an empty list if CUDA was not used, because reading them takes memory on each GPU."""
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the random generators to states from `random_states`. Generators of libraries that are not imported are left out."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        # Initialize CUDA first. Otherwise a seed from an earlier `torch.manual_seed` would overwrite the states when CUDA is initialized.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])
    if "numpy" in states and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        name, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state(
            (name, numpy.array(keys.tolist(), dtype="uint32"), position, has_gauss, cached)
        )
