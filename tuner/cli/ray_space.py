"""Convert the `param_space` of a Ray Tune script into the search space and the constants of a job.

The objects are recognised by their class names and attributes, so Ray is not imported unless the user's module imports it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from tuner.domain.space import MAX_CHOICES, SpaceRefused, same

SAMPLE_MODULE = "ray.tune.search.sample"


def job_of_space(space: object) -> dict[str, Any]:
    """Return the fields `search_space`, `constants` and `kind` of a job for a `param_space`.

    A parameter in a nested dictionary gets a name with dots, such as `model.width`. `kind` is then `ray_tune`, so that the trainable is called
    with nested dictionaries again. Otherwise `kind` is left out.

    Raises:
        SpaceRefused: A part of the space cannot be expressed in a job. The error's `code` says why.
    """
    if not isinstance(space, Mapping):
        raise SpaceRefused(
            "not_a_dictionary",
            f"the search space is a {type(space).__name__}, not a dictionary; name a dictionary with --space",
        )
    parameters: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    nested = any(
        isinstance(value, Mapping) and not _is_grid(value) and _tunes(value) for value in space.values()
    )
    for name, value in _flat(space, nested=nested):
        if isinstance(value, Mapping) and _is_grid(value):
            parameters[name] = _choices(name, value["grid_search"])
        elif _is_domain(value):
            parameter = _parameter(name, value)
            if "constant" in parameter:
                constants[name] = parameter["constant"]
            else:
                parameters[name] = parameter
        else:
            constants[name] = _constant(name, value)
    if not parameters:
        raise SpaceRefused("nothing_to_tune", "every value of the space is a constant; tune at least one")
    fields: dict[str, Any] = {"search_space": parameters, "constants": constants}
    return {**fields, "kind": "ray_tune"} if nested else fields


def _flat(space: Mapping[Any, Any], *, nested: bool, within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each entry of a space.

    The entries of a nested dictionary that contains parameters are yielded separately, under names such as `optimizer.lr`. `nested` is
    true if any such dictionary exists in the whole `param_space`. Keys with dots are then refused.
    """
    for key, value in space.items():
        name = f"{within}{key}"
        if type(key) is not str or not key:
            raise SpaceRefused(
                "name",
                f"the key {key!r} in {within.rstrip('.') or 'the space'} is not a string; use a string",
            )
        if nested and "." in key:
            raise SpaceRefused(
                "name",
                f"{name!r} has a dot in its name, and the space has nested parameters, whose names are joined with dots; rename it",
            )
        if isinstance(value, Mapping) and not _is_grid(value) and _tunes(value):
            yield from _flat(value, nested=True, within=f"{name}.")
        elif isinstance(value, list | tuple) and any(map(_tunes, value)):
            raise SpaceRefused(
                "list_of_parameters",
                f"{name!r} is a list with parameters in it; use a dictionary or separate parameters",
            )
        else:
            yield name, value


def _tunes(value: object) -> bool:
    """Return whether a value is a parameter or contains one."""
    if isinstance(value, Mapping):
        return _is_grid(value) or any(map(_tunes, value.values()))
    return _is_domain(value) or (isinstance(value, list | tuple) and any(map(_tunes, value)))


def _is_grid(value: Mapping[Any, Any]) -> bool:
    return set(value) == {"grid_search"}


def _is_domain(value: object) -> bool:
    return any(kind.__module__ == SAMPLE_MODULE and kind.__name__ == "Domain" for kind in type(value).__mro__)


def _kinds(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}


def _parameter(name: str, domain: Any) -> dict[str, Any]:
    """Convert a domain of Ray Tune to the parameter of a job file, or to {"constant": value} if it has only one value.

    Raise SpaceRefused if a job cannot express the domain.
    """
    kinds = _kinds(domain)
    if "Function" in kinds:
        raise SpaceRefused(
            "sample_from",
            f"{name!r} is tune.sample_from, whose values only your code knows; put the values that it is computed from into the "
            f"search space, and compute {name!r} from them in the trainable",
        )
    if "Categorical" in kinds:
        return _choices(name, domain.categories)
    sampler, step = domain.get_sampler(), None
    if "Quantized" in _kinds(sampler):
        sampler, step = sampler.get_sampler(), sampler.q
    if "Normal" in _kinds(sampler):
        raise SpaceRefused(
            "normal",
            f"{name!r} is normally distributed, so it has no bounds; use tune.uniform or tune.quniform",
        )
    is_log, is_int = "LogUniform" in _kinds(sampler), "Integer" in kinds
    if not (math.isfinite(domain.lower) and math.isfinite(domain.upper)):
        raise SpaceRefused("bounds", f"{name!r} does not have two finite bounds; give both")
    if is_log and step is not None and not (is_int and step == 1):
        instead = "tune.lograndint" if is_int else "tune.loguniform"
        raise SpaceRefused(
            "log_step",
            f"{name!r} is rounded on a log scale, which a job cannot do; use {instead} and round in the trainable",
        )
    if is_int:
        return _whole(name, domain, step, is_log=is_log)
    if step is None:
        number = {"type": "float", "low": float(domain.lower), "high": float(domain.upper)}
        return _between(name, {**number, "log": True} if is_log else number)
    low, high = _multiples(domain, step)
    return _between(name, {"type": "float", "low": float(low), "high": float(high), "step": float(step)})


def _whole(name: str, domain: Any, step: int | None, *, is_log: bool) -> dict[str, Any]:
    """Convert a domain of integers to an `int` parameter of a job file, or to {"constant": value} if it has only one value.

    The upper end is inclusive in a job file. In Ray Tune it is exclusive, unless Ray Tune rounds the values to multiples of a `step` above 1.
    """
    if step in (None, 1):
        low, high = int(domain.lower), int(domain.upper) - 1
        return _between(name, {"type": "int", "low": low, "high": high, **({"log": True} if is_log else {})})
    first, last = _multiples(domain, step)
    return _between(name, {"type": "int", "low": int(first), "high": int(last), "step": int(step)})


def _multiples(domain: Any, step: float | None) -> tuple[Decimal, Decimal]:
    """Return the lowest and the highest multiple of `step` within the domain's bounds. Ray Tune rounds the domain's values to such multiples."""
    low, high, q = (Decimal(str(number)) for number in (domain.lower, domain.upper, step))
    return (low / q).to_integral_value(ROUND_CEILING) * q, (high / q).to_integral_value(ROUND_FLOOR) * q


def _between(name: str, parameter: dict[str, Any]) -> dict[str, Any]:
    if parameter["low"] > parameter["high"]:
        raise SpaceRefused("bounds", f"{name!r} has no value between its bounds; widen the bounds")
    return {"constant": parameter["low"]} if parameter["low"] == parameter["high"] else parameter


def _choices(name: str, values: Any) -> dict[str, Any]:
    values = values.tolist() if _is_numpy(values, "ndarray") else values
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise SpaceRefused(
            "choice", f"{name!r} has {_short(values)}, a {type(values).__name__}, as its choices; give a list"
        )
    choices: list[Any] = []
    for value in map(_plain, values):
        if not _is_json_scalar(value):
            raise SpaceRefused(
                "choice",
                f"{name!r} has the choice {_short(value)}, a {type(value).__name__}; a job can have only numbers, text, booleans and None: "
                "give each choice a name, and look its value up in the trainable",
            )
        if any(same(value, choice) for choice in choices):
            raise SpaceRefused(
                "choice", f"{name!r} has the choice {_short(value)} twice; give each choice once"
            )
        choices.append(value)
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise SpaceRefused("choice", f"{name!r} has {len(choices)} choices; give 1 to {MAX_CHOICES}")
    return {"type": "categorical", "choices": choices}


def _constant(name: str, value: object) -> Any:
    """Return a constant in Python's own types. Raise SpaceRefused if JSON cannot express it, because the trainable would get another value."""
    value = _plain(value)
    if _is_json_scalar(value):
        return value
    if type(value) is list:
        return [_constant(name, element) for element in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _constant(f"{name}.{key}", element) for key, element in value.items()}
    raise SpaceRefused(
        "constant",
        f"the constant {name!r} is {_short(value)}, a {type(value).__name__}, which JSON cannot express; create it in the trainable",
    )


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to Python's own number, text or boolean. Return any other value unchanged."""
    return value.item() if _is_numpy(value, "generic") else value


def _is_numpy(value: object, name: str) -> bool:
    return any(kind.__module__ == "numpy" and kind.__name__ == name for kind in type(value).__mro__)


def _is_json_scalar(value: object) -> bool:
    """Return whether JSON and YAML can express a value exactly.

    Subclasses of the allowed types are excluded. For example, a member of a text enum would reach the trainable as plain text.
    """
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
