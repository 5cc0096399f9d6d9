"""Save and restore estimators of scikit-learn, and plain lists and dictionaries, as parts of `SpotSafe`.

An estimator's attributes are saved as plain data: numbers, text, NumPy arrays, and lists and dictionaries of these. Objects of
scikit-learn inside it, such as an optimizer, are saved with the name of their class and their attributes. Reading creates only objects
of scikit-learn's own classes and NumPy's random generators. Unlike unpickling, it calls no code that a checkpoint names.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import torch

from tuner.training.checkpoint import Stateful

_KEY = "scikit-learn"  # marks a value that is not plain data
_OURS = "sklearn."
# The modules of compiled loss functions. Python cannot read their attributes, so they are restored by calling their class with plain
# arguments.
_LOSSES = ("sklearn._loss._loss", "sklearn.linear_model._sgd_fast")
_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def stateful(name: str, part: Any) -> Stateful:
    """Return an object that saves and restores `part`.

    Raises:
        TypeError: The part has no state that can be saved, or is a metric of torchmetrics that leaves its state out of `state_dict`.
    """
    if callable(getattr(part, "persistent", None)) and _is_empty_metric(part):
        raise TypeError(
            f"{name} is a metric of torchmetrics whose state would not be saved, so that a resumed trial would begin it again; "
            f"call metric.persistent(True) before SpotSafe, or leave out {name} if each step resets it"
        )
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return part  # type: ignore[no-any-return]
    if type(part) in (list, dict):
        return ContainerState(part)
    if hasattr(part, "get_params") and hasattr(part, "set_params") and "sklearn" in sys.modules:
        return EstimatorState(part)
    raise TypeError(
        f"{name} cannot be checkpointed: it has no state_dict and load_state_dict; add these methods, or pass a list, a dictionary or an "
        "estimator of scikit-learn"
    )


def _is_empty_metric(part: Any) -> bool:
    """Return whether a torchmetrics metric, or one in a collection, has states and saves none of them, which is the default."""
    modules = part.modules() if hasattr(part, "modules") else [part]
    flags = [vars(module).get("_persistent") or {} for module in modules]
    return any(saved and not any(saved.values()) for saved in flags)


class ContainerState:
    """The content of a list or dictionary.

    It is restored in place, as are the lists and dictionaries inside it, so that user code may keep references to them. Tensors are restored
    on the devices on which they were.
    """

    def __init__(self, container: Any) -> None:
        self._container = container

    def state_dict(self) -> dict[str, Any]:
        devices = list(_devices(self._container))
        return {"content": self._container, **({"devices": devices} if any(devices) else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        content = state["content"]
        if type(content) is not type(self._container):
            raise ValueError(f"the saved state is a {type(content).__name__}")
        _InPlace(state.get("devices", ())).restored(content, self._container)


def _devices(value: Any) -> Iterator[str | None]:
    """Yield the device of each tensor in lists, tuples and dictionaries, or None if it is on the CPU."""
    if isinstance(value, torch.Tensor):
        yield None if value.device.type == "cpu" else str(value.device)
    elif isinstance(value, list | tuple | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _devices(inner)


class _InPlace:
    """Restore the content of lists and dictionaries in place.

    Args:
        devices: The devices of all tensors in the saved content, in its order, as `_devices` yields them.
    """

    def __init__(self, devices: Iterable[str | None]) -> None:
        self._devices = iter(devices)
        # The ids of the objects that were changed. An object that user code has put into several places is changed only once, because the
        # saved values of these places may differ.
        self._changed = set[int]()

    def restored(self, saved: Any, current: Any) -> Any:
        """Return the saved value. If it and the current value are lists or dictionaries, change and return the current one."""
        if isinstance(saved, torch.Tensor):
            return self._placed(saved, current)
        kind = next((kind for kind in (dict, list, tuple) if isinstance(saved, kind)), None)
        if kind is None:
            return saved
        is_kept = isinstance(current, kind) and id(current) not in self._changed
        target = current if is_kept else saved
        self._changed.add(id(target))
        if kind is dict:
            known = current if is_kept else {}
            content = {key: self.restored(inner, known.get(key)) for key, inner in saved.items()}
            target.clear()
            target.update(content)
            return target
        places = chain(current if is_kept else (), repeat(None))
        items = [self.restored(inner, place) for inner, place in zip(saved, places, strict=False)]
        if kind is tuple:
            return tuple(items)
        target[:] = items
        return target

    def _placed(self, saved: torch.Tensor, current: Any) -> torch.Tensor:
        """Return a saved tensor on the device of the current one if that is not on the CPU, else on the device on which it was.

        If this machine has no such device, the tensor stays on the CPU.
        """
        device = next(self._devices, None)
        if isinstance(current, torch.Tensor):
            device = next(_devices(current)) or device
        try:
            return saved if device is None else saved.to(device)
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, RuntimeError):  # PyTorch for CPUs raises AssertionError
            return saved


class EstimatorState:
    """The attributes of an estimator, which are restored in place."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def state_dict(self) -> dict[str, Any]:
        return {**self._origin(), "attributes": _encoded(vars(self._estimator))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the attributes of the estimator and of the estimators inside it, such as the steps of a pipeline.

        Raises:
            ValueError: The state cannot be read, or was saved by another class or another version of scikit-learn, whose attributes may
                differ. The estimator is unchanged.
        """
        for what, now in self._origin().items():
            if state[what] != now:
                raise ValueError(f"the state was saved with {what} {state[what]}, but this process has {now}")
        decoder = _Decoder()
        decoder.change(self._estimator, state["attributes"])
        decoder.finish()

    def _origin(self) -> dict[str, str]:
        return {"class": _name(type(self._estimator)), _KEY: str(sys.modules["sklearn"].__version__)}


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _encoded(value: Any) -> Any:
    """Return a value as plain data. A value that has no plain form is returned unchanged, and is refused when it is written."""
    if type(value) in (list, tuple):
        return type(value)(map(_encoded, value))
    if type(value) is dict:
        return {key: _encoded(inner) for key, inner in value.items()}
    if type(value).__module__.startswith(_OURS):
        return _encoded_object(value)
    return _encoded_numpy(value)


def _encoded_object(value: Any) -> Any:
    kind = type(value)
    if hasattr(value, "__dict__"):
        return {_KEY: "object", "class": _name(kind), "attributes": _encoded(vars(value))}
    if kind.__module__ not in _LOSSES:
        return value
    reduced = value.__reduce__()
    if reduced[0] is kind and len(reduced) == 2:
        return {_KEY: "loss", "class": _name(kind), "arguments": reduced[1]}
    return value


def _encoded_numpy(value: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    if type(value) is numpy.ndarray and value.dtype == object:
        return {_KEY: "objects", "shape": value.shape, "items": _encoded(value.ravel().tolist())}
    if value is numpy.random.mtrand._rand:
        return {_KEY: "global generator"}  # `SpotSafe` saves the state of NumPy's global generator itself
    if type(value) is numpy.random.RandomState:
        return {_KEY: "random state", "state": value.get_state(legacy=False)}
    if type(value) is numpy.random.Generator:
        return {_KEY: "generator", "state": value.bit_generator.state}
    return value


class _Decoder:
    """Read saved values, and then assign new attributes to existing estimators.

    The attributes are assigned only after all values were read, so that an error leaves the estimators unchanged.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def change(self, owner: Any, attributes: Mapping[str, Any]) -> None:
        """Read the new attributes of an object. `finish` assigns them."""
        self._changes.append((vars(owner), dict(self.decoded(attributes, vars(owner)))))

    def finish(self) -> None:
        """Assign all attributes that were read to their objects."""
        for old, new in self._changes:
            old.clear()
            old.update(new)

    def decoded(self, value: Any, current: Any = None) -> Any:
        """Return the value that was saved as `value`.

        If `current`, the present value at the same place, is an estimator of the same class, it is changed and returned. So references to
        it, such as those of user code to the steps of a pipeline, remain valid.
        """
        if type(value) in (list, tuple):
            is_alike = type(current) in (list, tuple) and len(current) == len(value)
            places = current if is_alike else [None] * len(value)
            return type(value)(map(self.decoded, value, places))
        if not isinstance(value, dict):
            return value
        if _KEY not in value:
            known = current if isinstance(current, dict) else {}
            return {key: self.decoded(inner, known.get(key)) for key, inner in value.items()}
        if value[_KEY] == "object":
            return self._object(value, current)
        if value[_KEY] == "objects":
            return self._objects(value)
        read = _READERS.get(value[_KEY])
        if read is None:
            raise ValueError(f"the saved state has the unknown kind of value {value[_KEY]!r}")
        return read(value)

    def _object(self, value: Mapping[str, Any], current: Any) -> Any:
        kind = _class(value["class"], within=lambda module: module.startswith(_OURS))
        is_kept = type(current) is kind and hasattr(current, "get_params")
        instance = current if is_kept else kind.__new__(kind)
        self.change(instance, value["attributes"])
        return instance

    def _objects(self, value: Mapping[str, Any]) -> Any:
        array = sys.modules["numpy"].empty(value["shape"], dtype=object)
        for number, item in enumerate(value["items"]):
            array.flat[number] = self.decoded(item)
        return array


def _loss(value: Mapping[str, Any]) -> Any:
    return _class(value["class"], within=_LOSSES.__contains__)(*value["arguments"])


def _random_state(value: Mapping[str, Any]) -> Any:
    restored = sys.modules["numpy"].random.RandomState()
    restored.set_state(value["state"])
    return restored


def _generator(value: Mapping[str, Any]) -> Any:
    random, name = sys.modules["numpy"].random, value["state"]["bit_generator"]
    if name not in _GENERATORS:
        raise ValueError(f"the saved state has the unknown random generator {name!r}")
    bits = getattr(random, name)()
    bits.state = value["state"]
    return random.Generator(bits)


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "loss": _loss,
    "global generator": lambda _: sys.modules["numpy"].random.mtrand._rand,
    "random state": _random_state,
    "generator": _generator,
}


def _class(name: str, *, within: Callable[[str], bool]) -> Any:
    """Return the class with this name (`module:class`). Raise ValueError if `within` rejects the module or it does not define the class."""
    module, _, attribute = name.partition(":")
    named_class = getattr(importlib.import_module(module), attribute, None) if within(module) else None
    if not isinstance(named_class, type) or named_class.__module__ != module:
        raise ValueError(f"the saved state names {name}, which is not a class of scikit-learn")
    return named_class
