"""States as plain data, and back: what `torch.load` reads with `weights_only=True`, so that reading one can run no code.

NumPy's own pickles are not among that, and allowing them would open a way around it: a crafted `dtype` makes NumPy read
any memory. So an array travels as its bytes and the name of its type, and comes back the same to the last bit.
"""

import io
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_AS_THEY_ARE = frozenset({type(None), bool, int, float, complex, str, bytes})
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_NUMPY = "numpy, as bytes"  # the key that marks an array or a number of NumPy's
_KINDS = "biufcSUmM"  # of NumPy's types: all whose bytes say everything
TensorCopy = Callable[[torch.Tensor], torch.Tensor]


def write(state: Mapping[str, Any], path: Path, *, name: str) -> None:
    """Raises TypeError for what could not be read again, with the key that has it; `name` is what the message calls the state."""
    plain = packed(state, name)
    with path.open("wb") as file:
        torch.save(plain, file)


def read(path: Path, *, device: str | None = "cpu") -> Any:
    """With all tensors on `device`; None: where they were. Raises whatever shows that the file is damaged, or no plain data."""
    return unpacked(torch.load(path, weights_only=True, map_location=device))


def packed(value: Any, at: str, tensor: TensorCopy = lambda tensor: tensor) -> Any:
    """A copy that is plain data; `tensor` copies tensors. Raises TypeError for anything else, which is said to be `at`."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, torch.Tensor):
        found = tensor(value)
        return found if type(found) in _TENSORS else _through_a_file(found, at)
    if type(value) in (list, tuple):
        return type(value)(packed(inner, f"{at}[{i}]", tensor) for i, inner in enumerate(value))
    if isinstance(value, Mapping) and type(value) is not Counter:
        return _packed_mapping(value, at, tensor)
    return _packed_numpy(value) if _is_numpy(value) else _through_a_file(value, at)


def unpacked(value: Any) -> Any:
    """The contrary of `packed`; changes containers in place."""
    if isinstance(value, dict):
        if _NUMPY in value:
            return _numpy_of(value)
        for key, inner in value.items():
            value[key] = unpacked(inner)
        if isinstance(value, OrderedDict):
            unpacked(vars(value))
    elif type(value) is list:
        value[:] = map(unpacked, value)
    elif type(value) is tuple:
        return tuple(map(unpacked, value))
    return value


def _packed_mapping(value: Mapping[Any, Any], at: str, tensor: TensorCopy) -> dict[Any, Any]:
    """Of the same type for a dict and an OrderedDict, with its attributes: a model's state has its version in one."""
    items = {_key(key, at): packed(inner, f"{at}[{key!r}]", tensor) for key, inner in value.items()}
    if type(value) is not OrderedDict:
        return items
    ordered = OrderedDict(items)
    vars(ordered).update(packed(vars(value), at, tensor))
    return ordered


def _key(key: Any, at: str) -> Any:
    """A key of NumPy's becomes the number or word that it equals."""
    plain = key.item() if _is_numpy(key) else key
    return plain if type(plain) in _AS_THEY_ARE else _through_a_file(plain, f"the key {key!r} of {at}")


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return False
    return value.dtype.kind in _KINDS


def _packed_numpy(value: Any) -> dict[str, Any]:
    """The order in memory is kept too: sums depend on it."""
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


def _numpy_of(found: Mapping[str, Any]) -> Any:
    import numpy

    dtype = numpy.dtype(str(found["dtype"]))
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype} is no plain data")
    content = bytearray(found[_NUMPY].numpy().tobytes())
    array = numpy.ndarray(tuple(found["shape"]), dtype, content, order=found["order"])
    return array[()] if found["scalar"] else array


def _through_a_file(value: Any, at: str) -> Any:
    """What PyTorch itself takes for plain, as it will be read: sets, sizes, types, and what user code declared to be safe."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        return torch.load(file, weights_only=True)
    except Exception as error:
        raise TypeError(
            f"{at} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold; "
            "save tensors, numbers, words, NumPy arrays, and dictionaries and lists of these"
        ) from error
