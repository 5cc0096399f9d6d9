"""Read a recorded table from an `.npz` file. The file is not trusted: nothing is unpickled and everything is checked.

The file has these arrays:

- `X` (n, d): the configurations.
- `metric` (n, E): the metric after each step. Higher is better.
- `time` (n, E): the seconds of each step.
- `meta`: JSON text with `space`, a list with one [name, low, high, "log" | "lin" | "lin1m", "float" | "int"] per column of X.
- `metric_aff` and `time_aff`: optional. Each is (a, b) and decodes the values as metric·a + b or exp(time·a + b).
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from tuner.domain.errors import BadFile
from tuner.domain.space import Config, Float, Int, Space
from tuner.domain.time import MAX_SECONDS
from tuner.simulator.recorded import COMPLEMENT, Floats, RecordedTable

Arrays = dict[str, npt.NDArray[Any]]
NEEDED = ("X", "metric", "time", "meta")
OPTIONAL = ("metric_aff", "time_aff")
MAX_BYTES = 2**30  # unpacked size of one array
ROUNDING = 1e-6  # values may exceed a bound by this relative error, because tables may contain 32-bit floats


class TableError(BadFile):
    """The table cannot be used."""


def load_table(path: Path | str) -> RecordedTable:
    """Load a table from an `.npz` file. If several rows have the same configuration, only the first is kept.

    Raises:
        TableError: The table cannot be used. The message names the file, the array and how to fix it.
    """
    path = Path(path)
    try:
        return _table(path.stem, _arrays(path))
    except (OSError, ValueError) as error:
        raise TableError(f"{path}: {error}") from error


def _arrays(path: Path) -> Arrays:
    with open(path, "rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as error:  # the zip and npy readers raise a dozen kinds of errors for invalid files
            raise ValueError(
                f"cannot be read as an .npz archive ({error}): write it with numpy.savez, without pickled objects"
            ) from error
        if not isinstance(archive, np.lib.npyio.NpzFile) or archive.zip is None:
            raise ValueError("is one array, not an .npz archive: write it with numpy.savez")
        sizes = {member.filename.removesuffix(".npy"): member.file_size for member in archive.zip.infolist()}
        arrays: Arrays = {}
        for name in (*NEEDED, *OPTIONAL):
            if name in archive.files:
                if sizes[name] > MAX_BYTES:
                    raise ValueError(
                        f"{name} has {sizes[name]} bytes: at most {MAX_BYTES} are read; leave out rows or steps"
                    )
                try:
                    arrays[name] = np.asarray(archive[name])
                except Exception as error:  # the npy reader raises many kinds of errors, as above
                    raise ValueError(
                        f"{name} is incomplete or has pickled objects ({error}): store plain numbers"
                    ) from error
            elif name in NEEDED:
                raise ValueError(f"has no array {name!r}: add it")
        return arrays


def _table(name: str, arrays: Arrays) -> RecordedTable:
    rows, metric, step_s = _numbers(arrays, "X"), _decoded(arrays, "metric"), _decoded(arrays, "time")
    if metric.shape != step_s.shape or len(metric) != len(rows):
        shapes = f"X {rows.shape}, metric {metric.shape}, time {step_s.shape}"
        raise ValueError(
            f"the shapes of the arrays do not match: {shapes}; X is (n, d), metric and time are (n, steps)"
        )
    if len(rows) < 2:
        raise ValueError(f"X has {len(rows)} rows: at least 2 are needed")
    if (step_s <= 0).any():
        row, step = np.argwhere(step_s <= 0)[0].tolist()
        raise ValueError(
            f"time[{row}, {step}] is {step_s[row, step]}: store the duration of each step in seconds, above 0"
        )
    if step_s.sum(axis=1).max() > MAX_SECONDS:
        raise ValueError(
            f"time: row {int(step_s.sum(axis=1).argmax())} takes over 30 years: store the duration of each step in seconds"
        )
    space = _space(arrays["meta"], columns=rows.shape[1])
    columns = [_column(name, rows[:, i], space) for i, name in enumerate(space.parameters)]
    first_rows: dict[tuple[float | int, ...], int] = {}
    for index, values in enumerate(zip(*columns, strict=True)):
        first_rows.setdefault(values, index)
    kept = list(first_rows.values())
    configs: list[Config] = [dict(zip(space.parameters, values, strict=True)) for values in first_rows]
    table = RecordedTable(name, space, metric[kept], step_s[kept], configs)
    if not table.best > table.median:
        raise ValueError("metric: the best row is no better than the median one, so there is nothing to tune")
    return table


def _numbers(arrays: Arrays, name: str, *, ndim: int = 2) -> Floats:
    array = arrays[name]
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} holds {array.dtype}, not numbers: store floats or integers")
    if array.ndim != ndim or not array.size:
        raise ValueError(
            f"{name} has shape {array.shape}: it needs {ndim} dimensions, each of at least one entry"
        )
    return _finite(name, array.astype(np.float64))


def _finite(name: str, array: Floats) -> Floats:
    if not np.isfinite(array).all():
        at = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(
            f"{name}{at} is {array[tuple(at)]}: every value must be finite; leave out rows with other values"
        )
    return array


def _decoded(arrays: Arrays, name: str) -> Floats:
    """Return the array `name` in the units of the table.

    The file may store it as integers, with a slope and an intercept in an array that has the same name with the suffix `_aff`. The integers
    times the slope, plus the intercept, are the values. The logarithm of the time is stored in this way.
    """
    coded = _numbers(arrays, name)
    if f"{name}_aff" not in arrays:
        return coded
    aff = _numbers(arrays, f"{name}_aff", ndim=1)
    if aff.shape != (2,):
        raise ValueError(f"{name}_aff has {aff.size} values: it needs two, (a, b)")
    with np.errstate(over="ignore"):
        decoded: Floats = coded * aff[0] + aff[1]
        return _finite(f"{name}, decoded by {name}_aff,", np.exp(decoded) if name == "time" else decoded)


Bound = Annotated[FiniteFloat, Field(strict=True)]
Scale = Literal["lin", "log", "lin1m"]
Row = tuple[Annotated[str, Field(min_length=1)], Bound, Bound, Scale, Literal["float", "int"]]


class _Meta(BaseModel):
    space: list[Row]


def _space(meta: npt.NDArray[Any], *, columns: int) -> Space:
    if meta.shape != () or meta.dtype.kind != "U":
        raise ValueError("meta is not text: store one JSON string, such as numpy.array(json.dumps(meta))")
    try:
        rows = _Meta.model_validate_json(str(meta)).space
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise ValueError(
            f'meta is not valid{where and f" at {where}"} ({wrong["msg"]}): "space" must be a list of [name, low, high, scale, type], '
            "in which low and high are finite numbers, scale is lin, log or lin1m, and type is float or int"
        ) from error
    parameters: dict[str, Float | Int] = {}
    for row in rows:
        name, parameter = _parameter(row)
        parameters[name] = parameter
    if not len(parameters) == len(rows) == columns:
        raise ValueError(
            f"the list space in meta names {len(parameters)} different parameters, but X has {columns} columns: list each column of X "
            "once in space, in the order of the columns"
        )
    space = Space({**parameters})
    for fault in space.faults():
        raise ValueError(f"meta: space{fault.pointer.removeprefix('/search_space')}: {fault.detail}")
    return space


def _parameter(row: Row) -> tuple[str, Float | Int]:
    """Return the name and the parameter of the search space for one entry of `meta`.

    A `lin1m` parameter `x` becomes the parameter `1-x` on a log scale.
    """
    name, low, high, scale, kind = row
    if name.startswith(COMPLEMENT):
        raise ValueError(
            f"meta: {name!r}: names must not begin with {COMPLEMENT!r}, because tuner gives this prefix to parameters with the scale lin1m"
        )
    if kind == "int":
        if scale == "lin1m" or low != int(low) or high != int(high):
            raise ValueError(
                f"meta: {name!r}: a parameter of type int needs whole bounds and the scale lin or log"
            )
        return name, Int(int(low), int(high), log=scale == "log")
    if scale == "lin1m":
        return f"{COMPLEMENT}{name}", Float(1 - high, 1 - low, log=True)
    return name, Float(low, high, log=scale == "log")


def _column(name: str, column: Floats, space: Space) -> list[float] | list[int]:
    """Return the values of the parameter `name` from its column of X, clipped to the parameter's bounds."""
    parameter = space.parameters[name]
    assert isinstance(parameter, Int | Float)
    low, high, is_complement = parameter.low, parameter.high, name.startswith(COMPLEMENT)
    values = 1 - column if is_complement else column
    tolerance = ROUNDING * max(abs(low), abs(high), 1 if is_complement else 0)
    outside = (values < low - tolerance) | (values > high + tolerance)
    whole = np.rint(values)
    if isinstance(parameter, Int):
        outside |= np.abs(values - whole) > ROUNDING * np.maximum(1, np.abs(values))
    if outside.any():
        row = int(np.argmax(outside))
        kind = "whole numbers " if isinstance(parameter, Int) else ""
        raise ValueError(
            f"X: {name} of row {row} is {values[row]}, but meta's space allows {kind}from {low} to {high}"
        )
    if isinstance(parameter, Int):
        return [int(value) for value in np.clip(whole, low, high)]
    return [float(value) for value in np.clip(values, low, high)]
