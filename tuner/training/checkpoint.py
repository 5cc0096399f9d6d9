"""What a checkpoint of a training run holds, and how it is written to and read from a directory.

Everything is plain data, so that it loads with `weights_only=True`: reading a checkpoint can run no code.
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

from tuner.training import plain
from tuner.training.channel import STATE_FILE

ALL_THREADS_BYTES = 64 << 20
AS_BEFORE = (
    "build the same parts from the same config as the run that saved it, or begin a new trial or directory"
)


class Stateful(Protocol):
    """What can be saved: models, optimizers, schedulers, scalers, samplers."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class CheckpointUnreadable(RuntimeError):
    """A checkpoint could not be loaded into what is trained now."""


class Copies:
    """Copies of tensors in CPU memory, which is kept for the next ones. To take new memory costs more than to copy into it: the
    system clears each page first, and that is most of the time for which training would wait."""

    def __init__(self) -> None:
        self._free: dict[object, list[torch.Tensor]] = {}
        self._used: list[tuple[object, torch.Tensor]] = []

    def begin(self) -> None:
        """What was copied so far is needed no more, and memory that nothing was copied into is given back."""
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
        found = memory.pop() if memory else torch.empty_like(source, device="cpu")
        _copy(found, source)
        self._used.append((like, found))
        return found


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """PyTorch copies with all threads, and waits for the last of them: where others want the processors too, that takes ten times
    as long as the copying itself, unless the tensor is a large one."""
    size = source.numel() * source.element_size()
    alike = target.is_contiguous() and source.is_contiguous() and not source.is_conj() and not source.is_neg()
    if source.device.type == "cpu" and alike and size < ALL_THREADS_BYTES:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
    else:
        target.copy_(source)


def snapshot(parts: Mapping[str, Stateful], *, step: int, copies: Copies | None = None) -> dict[str, Any]:
    """A copy in CPU memory that later training does not touch: the parts' states, and every random generator's. With `copies`
    it takes the memory of the snapshot before.

    Raises TypeError for what could not be read again, with the place of it.
    """
    copies = copies or Copies()
    copies.begin()
    with torch.inference_mode(False):  # or what is copied now could not be written over later
        states = {name: plain.packed(part.state_dict(), name, copies.copy) for name, part in parts.items()}
    return {"step": step, "parts": states, "random": _random_states()}


def settle() -> None:
    """Waits for what a GPU still computes, which is training: the copy after it would wait too, and take that time for its own."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def write(state: Mapping[str, Any], directory: Path) -> None:
    """Not synced: what is to outlive this machine is copied elsewhere first."""
    directory.mkdir(parents=True)
    with (directory / STATE_FILE).open("wb") as file:
        torch.save(dict(state), file)


def sync(directory: Path) -> None:
    """Makes what `write` wrote outlive a loss of power."""
    for path in (directory / STATE_FILE, directory):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def restore(parts: Mapping[str, Stateful], directories: Sequence[Path]) -> int:
    """Loads the first that is whole of what `write` wrote into the parts and the random generators; answers its step.

    Raises CheckpointUnreadable where every one is damaged, or this one was made by differently built parts.
    """
    directory, state = _first_whole(directories)
    try:
        missing = sorted(set(parts) ^ set(state["parts"]))
        if missing:
            raise ValueError(f"the checkpoint and this run differ in {', '.join(missing)}; {AS_BEFORE}")
        for name, part in parts.items():
            _load(name, part, state["parts"][name])
        _set_random_states(state["random"])
    except Exception as error:
        raise CheckpointUnreadable(f"{directory / STATE_FILE}: {error}") from error
    return int(state["step"])


def _load(name: str, part: Stateful, state: Any) -> None:
    try:
        part.load_state_dict(state)
    except Exception as error:
        raise ValueError(f"{name} does not take what was saved of it: {error}; {AS_BEFORE}") from error


def _first_whole(directories: Sequence[Path]) -> tuple[Path, Any]:
    errors = []
    for directory in directories:
        try:
            return directory, plain.read(directory / STATE_FILE)
        except Exception as error:
            logging.getLogger(__name__).warning("%s cannot be read: %s", directory / STATE_FILE, error)
            errors.append(error)
    raise CheckpointUnreadable(f"{directories[0] / STATE_FILE}: {errors[0]}") from errors[0]


def _random_states() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        # As a tensor it takes as many bytes each time, so that what lies behind it in the file stays where it was: of a large
        # file, only the pieces that changed are stored again.
        "python": [version, torch.tensor(words), gauss],
        "torch": torch.get_rng_state(),
        "cuda": _of_gpus(),
    }
    if "numpy" in sys.modules:
        name, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        states["numpy"] = [name, torch.tensor(keys.tolist()), position, has_gauss, cached]
    return states


def _of_gpus() -> list[torch.Tensor]:
    """Where no GPU was used nothing was drawn there, and to ask would take memory of each."""
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def _set_random_states(states: Mapping[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        # What is set before CUDA begins, the seeds of `torch.manual_seed` would overwrite.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])
    if "numpy" in states and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        name, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state(
            (name, numpy.array(keys.tolist(), dtype="uint32"), position, has_gauss, cached)
        )
