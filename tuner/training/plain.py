"""Convert states to plain data and back: data that `torch.load` reads with `weights_only=True`, so that reading cannot run code.

`weights_only=True` rejects NumPy's own pickles, and allowing them would be unsafe: a crafted `dtype` makes NumPy read arbitrary
memory. Therefore an array is stored as its bytes and the name of its type, and is restored exactly to the bit.
"""

import io
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_AS_THEY_ARE = frozenset({type(None), bool, int, float, complex, str, bytes})
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_NUMPY = "numpy, as bytes"  # the key that marks a NumPy array or number
_FACTORY = "the factory of a defaultdict"  # the key that marks a defaultdict
_FACTORIES = {factory.__name__: factory for factory in (bool, dict, float, int, list, set, str, tuple)}
PIECE = "a rank's piece of a tensor"  # the key that marks a part of a tensor that is spread over ranks
_KINDS = "biufcSUmM"  # the NumPy kinds that their bytes describe completely
TensorCopy = Callable[[torch.Tensor], torch.Tensor]


def write(state: Mapping[str, Any], path: Path, *, name: str) -> None:
    """Write the state to a file.

    Raises:
        TypeError: A value cannot be stored as plain data. The message names its key, and calls the state `name`.
    """
    plain = packed(state, name)
    with path.open("wb") as file:
        torch.save(plain, file)


def read(path: Path, *, device: str | None = "cpu", mmap: bool = False) -> Any:
    """Read a state with all tensors on `device`, or on their original devices if it is None. With `mmap`, tensors are views of the file.

    If the file is damaged or does not hold plain data, exceptions of various classes are raised.
    """
    return unpacked(torch.load(path, weights_only=True, map_location=device, mmap=mmap))


def packed(value: Any, at: str, tensor: TensorCopy = lambda tensor: tensor) -> Any:
    """Return a copy of the value as plain data.

    Args:
        at: The place of the value in the state, for the error message.
        tensor: Copies a tensor.

    Raises:
        TypeError: A value cannot be plain data.
    """
    if type(value) in _AS_THEY_ARE:
        return value
    if is_spread(value):
        return _piece(value, at, tensor)
    if isinstance(value, torch.Tensor):
        copied = tensor(value)
        return copied if type(copied) in _TENSORS else _through_a_file(copied, at)
    if type(value) in (list, tuple):
        return type(value)(packed(inner, f"{at}[{i}]", tensor) for i, inner in enumerate(value))
    if isinstance(value, Mapping) and type(value) is not Counter:
        return _packed_mapping(value, at, tensor)
    return _packed_numpy(value) if _is_numpy(value) else _through_a_file(value, at)


def unpacked(value: Any) -> Any:
    """Convert plain data back to the value that was packed. Lists and dictionaries are changed in place."""
    if isinstance(value, dict):
        if _NUMPY in value:
            return _numpy_of(value)
        if _FACTORY in value:
            return defaultdict(_FACTORIES[value[_FACTORY]], unpacked(value["items"]))
        for key, inner in value.items():
            value[key] = unpacked(inner)
        if isinstance(value, OrderedDict):
            unpacked(vars(value))
    elif type(value) is list:
        value[:] = map(unpacked, value)
    elif type(value) is tuple:
        return tuple(map(unpacked, value))
    return value


def is_spread(value: Any) -> bool:
    """Return whether a value is a tensor that is spread over ranks, as the parameters of FSDP2 are."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def _piece(value: Any, at: str, tensor: TensorCopy) -> dict[str, Any]:
    """Return this rank's piece of a tensor, with its offset in the whole tensor. The piece is None if another rank saves the same one.

    Raises:
        TypeError: The tensor has a placement other than `Shard` and `Replicate`.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = value.device_mesh, value.placements
    if not all(type(placement).__name__ in ("Shard", "Replicate") for placement in placements):
        raise TypeError(f"{at} is spread over ranks as {placements}; only Shard and Replicate can be saved")
    _, offset = compute_local_shape_and_global_offset(value.shape, mesh, placements)
    coordinate = mesh.get_coordinate() or []
    is_copy = any(
        number for number, placement in zip(coordinate, placements, strict=True) if placement.is_replicate()
    )
    part = None if is_copy else tensor(value.to_local().contiguous())
    return {PIECE: part, "offset": list(offset), "shape": list(value.shape)}


def _packed_mapping(value: Mapping[Any, Any], at: str, tensor: TensorCopy) -> dict[Any, Any]:
    """Return a mapping as plain data: an OrderedDict with its attributes, a defaultdict with its factory, and any other mapping as a dict.

    A defaultdict whose factory is not a built-in type becomes a dict, too. An OrderedDict's attributes are kept, because a model's state
    stores its version in an attribute.
    """
    items = {_key(key, at): packed(inner, f"{at}[{key!r}]", tensor) for key, inner in value.items()}
    if isinstance(value, defaultdict):
        for name, factory in _FACTORIES.items():
            if factory is value.default_factory:
                return {_FACTORY: name, "items": items}
    if type(value) is not OrderedDict:
        return items
    ordered = OrderedDict(items)
    vars(ordered).update(packed(vars(value), at, tensor))
    return ordered


def _key(key: Any, at: str) -> Any:
    """Return the key of a mapping as plain data. A NumPy key becomes the equal number or string."""
    plain = key.item() if _is_numpy(key) else key
    return plain if type(plain) in _AS_THEY_ARE else _through_a_file(plain, f"the key {key!r} of {at}")


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return False
    return value.dtype.kind in _KINDS


def _packed_numpy(value: Any) -> dict[str, Any]:
    """Return a NumPy value as bytes and type. The memory order is kept, because sums depend on it."""
    columns_first = value.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous
    order = "F" if columns_first else "C"
    content = bytearray(value.tobytes(order))
    return {
        _NUMPY: torch.frombuffer(content, dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8),
        "dtype": value.dtype.str,
        "shape": list(value.shape),
        "order": order,
        "scalar": isinstance(value, sys.modules["numpy"].generic),
    }


def _numpy_of(packed_array: Mapping[str, Any]) -> Any:
    import numpy

    dtype = numpy.dtype(str(packed_array["dtype"]))
    if dtype.kind not in _KINDS:
        raise ValueError(f"the file has an array of type {dtype}, which is not plain data")
    content = bytearray(packed_array[_NUMPY].numpy().tobytes())
    array = numpy.ndarray(tuple(packed_array["shape"]), dtype, content, order=packed_array["order"])
    return array[()] if packed_array["scalar"] else array


def _through_a_file(value: Any, at: str) -> Any:
    """Save and load the value with PyTorch, and return the result, as a checkpoint's reader will get it.

    This works for sets, sizes, data types, and types that user code declared safe. Raise TypeError for any other value.
    """
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        return torch.load(file, weights_only=True)
    except Exception as error:
        raise TypeError(
            f"{at} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold; "
            "save tensors, numbers, text, NumPy arrays, and dictionaries and lists of these"
        ) from error
