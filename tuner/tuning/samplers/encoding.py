"""Encode configurations as points of a unit cube, with each parameter on its own scale, for models that need numbers."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tuner.domain.space import Categorical, Config, Float, Int, Parameter, Space, Value, same, steps_of

Floats = npt.NDArray[np.float64]
# The value of a chosen one-hot feature. With it, two choices are as far apart (0.7·√2 ≈ 1) as the two ends of a numeric parameter.
CHOICE_WIDTH = 0.7


class UnitCube:
    """The encoding of one search space.

    A point has a number in [0, 1] for each parameter, in the order of `space.order`. For a categorical parameter, [0, 1] is
    divided into one interval per choice, and a choice is the middle of its interval. Models use `features`, in which choices are
    one-hot, and an inactive numeric parameter is 0.5.
    """

    def __init__(self, space: Space) -> None:
        self._space, self._order = space, space.order
        self._parameters = [space.parameters[name] for name in self._order]
        self.parameters = len(self._order)
        self._widths = [len(p.choices) if isinstance(p, Categorical) else 1 for p in self._parameters]
        self.dimensions = sum(self._widths)
        self._conditional = any(p.when for p in self._parameters)

    def point(self, config: Mapping[str, Value]) -> Floats:
        """Return the point that encodes a configuration. The number of an inactive parameter is 0.5."""
        values = [
            place_of(p, config[name]) if name in config else 0.5
            for name, p in zip(self._order, self._parameters, strict=True)
        ]
        return np.array(values, dtype=np.float64)

    def config(self, point: Floats) -> Config:
        config: Config = {}
        for name, parameter, u in zip(self._order, self._parameters, point.tolist(), strict=True):
            if self._space.active(name, config):
                config[name] = value_at(parameter, u)
        return config

    def features(self, points: Floats) -> Floats:
        """Convert points (n, parameters) to features (n, dimensions)."""
        on = self._active(points)
        columns = []
        for i, parameter in enumerate(self._parameters):
            u = points[:, i]
            if isinstance(parameter, Categorical):
                picked = _index(u, len(parameter.choices))[:, None] == np.arange(len(parameter.choices))
                columns.append(np.where(picked & on[:, i : i + 1], CHOICE_WIDTH, 0.0))
            else:
                columns.append(np.where(on[:, i], _on_grid(parameter, u), 0.5)[:, None])
        return np.hstack(columns)

    def _active(self, points: Floats) -> npt.NDArray[np.bool_]:
        on = np.ones(points.shape, dtype=np.bool_)
        if not self._conditional:
            return on
        for i, parameter in enumerate(self._parameters):
            for other, values in parameter.when.items():
                j = self._order.index(other)
                on[:, i] &= on[:, j] & self._among(j, points[:, j], values)
        return on

    def _among(self, j: int, column: Floats, values: tuple[Value, ...]) -> npt.NDArray[np.bool_]:
        parameter = self._parameters[j]
        if isinstance(parameter, Categorical):
            allowed = np.array([any(same(c, v) for v in values) for c in parameter.choices])
            return np.asarray(allowed[_index(column, len(parameter.choices))], dtype=np.bool_)
        return np.array([any(same(value_at(parameter, u), v) for v in values) for u in column.tolist()])


def _index(u: Floats, count: int) -> npt.NDArray[np.int64]:
    return np.minimum((u * count).astype(np.int64), count - 1)


def _bounds(parameter: Float | Int) -> tuple[float, float]:
    """Return the two ends of the parameter's scale. They are logarithms if the parameter is logarithmic.

    Each integer takes the interval from 0.5 below it to 0.5 above it. If the parameter has a step, the scale counts the indices of its
    values instead of the values.
    """
    if (count := steps_of(parameter)) is not None:
        return -0.5, count - 0.5
    half = 0.5 if isinstance(parameter, Int) else 0.0
    low, high = parameter.low - half, parameter.high + half
    return (math.log(low), math.log(high)) if parameter.log else (low, high)


def place_of(parameter: Parameter, value: Value) -> float:
    """Return the position of a value in [0, 1], on the scale of its parameter."""
    if isinstance(parameter, Categorical):
        index = next(i for i, choice in enumerate(parameter.choices) if same(choice, value))
        return (index + 0.5) / len(parameter.choices)
    low, high = _bounds(parameter)
    number = float(str(value))
    if parameter.step is not None:
        number = parameter.index(number)
    return ((math.log(number) if parameter.log else number) - low) / (high - low)


def value_at(parameter: Parameter, u: float) -> Value:
    """Return the value at a position in [0, 1]."""
    if isinstance(parameter, Categorical):
        return parameter.choices[min(int(u * len(parameter.choices)), len(parameter.choices) - 1)]
    if (count := steps_of(parameter)) is not None:
        return parameter.nth(min(int(u * count), count - 1))
    first, last = _bounds(parameter)
    value = first + u * (last - first)
    value = math.exp(value) if parameter.log else value
    if isinstance(parameter, Int):
        value = round(value)
    return min(parameter.high, max(parameter.low, value))


def _on_grid(parameter: Float | Int, u: Floats) -> Floats:
    """Move each position to the exact position of the parameter value that `value_at` returns for it.

    The positions of integers, and of values with a step, lie on a grid. Positions of other floats are not changed.

    Args:
        parameter: The parameter.
        u: Positions in [0, 1], an array of any shape.
    """
    if (count := steps_of(parameter)) is not None:
        return (np.minimum(np.floor(u * count), count - 1) + 0.5) / count
    if isinstance(parameter, Float):
        return u
    first, last = _bounds(parameter)
    scaled_values = first + u * (last - first)
    whole = np.clip(
        np.round(np.exp(scaled_values) if parameter.log else scaled_values), parameter.low, parameter.high
    )
    return np.asarray(
        ((np.log(whole) if parameter.log else whole) - first) / (last - first), dtype=np.float64
    )
