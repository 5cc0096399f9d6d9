"""Compare two checkpoints of `SpotSafe`, bit by bit."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tuner.training import plain
from tuner.training.channel import STATE_FILE

MOST = 5  # the largest number of differences that are reported


def differences(saved: Path, restored: Path) -> list[str]:
    """Return descriptions of the places at which two checkpoints differ in their steps or states, at most `MOST`."""
    first, second = (plain.read(folder / STATE_FILE) for folder in (saved, restored))
    return list(itertools.islice(_states(first, second), MOST))


def same_tensors(first: Path, second: Path) -> bool:
    """Return whether two files have the same tensors and arrays at the same places.

    Other content, such as the time or the host, may differ between saves. A missing or unreadable file counts as one without
    tensors.
    """
    first_tensors, other = _tensors_of(first), _tensors_of(second)
    return first_tensors.keys() == other.keys() and all(
        _same(first_tensors[at], other[at]) for at in first_tensors
    )


def _tensors_of(path: Path) -> dict[str, Any]:
    try:
        return dict(_tensors(plain.read(path), ""))
    except Exception:  # PyTorch raises many kinds of exceptions for unreadable files
        return {}


def _tensors(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors(inner, f"{at}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _tensors(inner, f"{at}[{number}]")
    elif isinstance(value, torch.Tensor) or hasattr(value, "tobytes"):
        yield at, value


def _states(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    if first["step"] != second["step"]:
        yield f"the step, which was {first['step']} and is {second['step']}"
    for name in sorted({*first["parts"], *second["parts"]}):
        yield from _within(first["parts"].get(name), second["parts"].get(name), name)


def _within(first: Any, second: Any, at: str) -> Iterator[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        if list(first) != list(second):
            yield f"the keys of {at}"
            return
        for key in first:
            yield from _within(first[key], second[key], f"{at}[{key!r}]")
    elif isinstance(first, list | tuple) and type(first) is type(second) and len(first) == len(second):
        for number, (first_element, other) in enumerate(zip(first, second, strict=True)):
            yield from _within(first_element, other, f"{at}[{number}]")
    elif not _same(first, second):
        yield at


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        alike = (first.dtype, first.shape, first.layout) == (second.dtype, second.shape, second.layout)
        return alike and _bits(first) == _bits(second)
    return type(first) is type(second) and (_is_same_array(first, second) or repr(first) == repr(second))


def _bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor. Comparing bytes treats equal NaNs as equal."""
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    flat = dense.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return flat.view(torch.uint8).numpy().tobytes()


def _is_same_array(first: Any, second: Any) -> bool:
    """Return whether two NumPy arrays are equal. Comparing their `repr` is not enough, because it omits most elements."""
    if not hasattr(first, "tobytes"):
        return False
    return (first.dtype, getattr(first, "shape", ())) == (second.dtype, getattr(second, "shape", ())) and (
        first.tobytes() == second.tobytes()
    )
