"""Read a recorded table from an `.npz` file. The file is not trusted: nothing is unpickled and everything is checked.

The file has these arrays:

- `X` (n, d): the configurations.
- `metric` (n, E): the metric after each step. Higher is better.
- `time` (n, E): the seconds of each step.
- `meta`: JSON text with `space`, a list with one [name, low, high, "log" | "lin" | "lin1m", "float" | "int"] per column of X.
- `metric_aff` and `time_aff`: optional. Each is (a, b) and decodes the values as metric·a + b or exp(time·a + b).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tuner.domain.errors import BadFile
from tuner.domain.space import Config, Float, Int, Parameter, Space
from tuner.domain.time import MAX_SECONDS
from tuner.simulator.recorded import COMPLEMENT, Floats, RecordedTable, parameter_of, place

Arrays = Mapping[str, npt.NDArray[Any]]
NEEDED = ("X", "metric", "time", "meta")
OPTIONAL = ("metric_aff", "time_aff")
MAX_BYTES = 2**30  # unpacked size of one array
ROUNDING = 1e-6  # relative error of a bound that is accepted, because tables may hold 32-bit floats


class TableError(BadFile):
    """The table cannot be used."""


def load_table(path: Path | str) -> RecordedTable:
    """Load and return a table. Of rows with the same configuration, only the first is kept.

    Raises:
        TableError: The table cannot be used. The message names the file, the array and how to fix it.
    """
    path = Path(path)
    try:
        return _table(path.stem, _arrays(path))
    except _Wrong as error:
        raise TableError(f"{path}: {error}") from error


class _Wrong(ValueError):
    """The file is invalid. The message does not name the file."""


def _arrays(path: Path) -> Arrays:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            if not hasattr(found, "files"):
                raise _Wrong("is one array, not an .npz archive: write it with numpy.savez")
            missing = [name for name in NEEDED if name not in found.files]
            if missing:
                raise _Wrong(f"has no array {missing[0]!r}: add it")
            return {name: _array(found, name) for name in (*NEEDED, *OPTIONAL) if name in found.files}
    except _Wrong:
        raise
    except OSError as error:
        raise _Wrong(
            f"cannot be read ({error.strerror or error}): check the path, copy the file again"
        ) from error
    except (
        Exception
    ) as error:  # the zip and npy readers raise a dozen kinds of errors for truncated or invalid files
        raise _Wrong(
            f"is no whole .npz archive without pickled objects ({error}): copy it again, or write it with "
            "numpy.savez and plain numbers"
        ) from error


def _array(found: "np.lib.npyio.NpzFile[Any]", name: str) -> npt.NDArray[Any]:
    members = [] if found.zip is None else found.zip.infolist()
    size = max((m.file_size for m in members if m.filename in (name, f"{name}.npy")), default=0)
    if size > MAX_BYTES:
        raise _Wrong(f"{name} has {size} bytes: at most {MAX_BYTES} are read")
    try:
        return np.asarray(found[name])
    except Exception as error:  # the readers raise many kinds of errors, as above
        raise _Wrong(
            f"{name} is cut off, or has pickled objects ({error}): copy the file again, or write plain numbers"
        ) from error


def _table(name: str, arrays: Arrays) -> RecordedTable:
    rows = _numbers(arrays, "X")
    metric = _decoded(arrays, "metric")
    step_s = _decoded(arrays, "time")
    if metric.shape != step_s.shape or len(metric) != len(rows):
        shapes = f"X {rows.shape}, metric {metric.shape}, time {step_s.shape}"
        raise _Wrong(f"the arrays do not fit: {shapes}; X is (n, d), metric and time are (n, steps)")
    if len(rows) < 2:
        raise _Wrong(f"X has {len(rows)} rows: at least 2 are needed")
    _check_times(step_s)
    space = _space(arrays["meta"], columns=rows.shape[1])
    values = _values(space, rows)
    configs: dict[tuple[float | int, ...], int] = {}
    for index, row in enumerate(zip(*values, strict=True)):
        configs.setdefault(row, index)
    kept = np.array(list(configs.values()))
    names = list(space.parameters)
    columns = zip(space.parameters.values(), values, strict=True)
    unit = np.stack(
        [place(parameter, np.log)(np.array(column)[kept]) for parameter, column in columns], axis=1
    )
    found: list[Config] = [dict(zip(names, row, strict=True)) for row in configs]
    table = RecordedTable(name, space, unit, metric[kept], step_s[kept], found)
    if not table.best > table.median:
        raise _Wrong(
            "metric: the best row is no better than the median one, so that there is nothing to tune"
        )
    return table


def _numbers(arrays: Arrays, name: str, *, ndim: int = 2) -> Floats:
    array = arrays[name]
    if array.dtype.kind not in "fiu":
        raise _Wrong(f"{name} holds {array.dtype}, not numbers: store floats or integers")
    if array.ndim != ndim or not array.size:
        raise _Wrong(f"{name} has the shape {array.shape}: {ndim} dimensions, none of them empty, are needed")
    found = array.astype(np.float64)
    _check_finite(name, found)
    return found


def _check_finite(name: str, array: Floats) -> None:
    if not np.isfinite(array).all():
        where = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise _Wrong(
            f"{name}{where} is {array[tuple(where)]}: every value must be finite; leave such rows out"
        )


def _decoded(arrays: Arrays, name: str) -> Floats:
    """Return an array decoded with its `_aff` array, if it has one. Metric codes are linear, time codes are logarithmic."""
    coded = _numbers(arrays, name)
    if f"{name}_aff" not in arrays:
        return coded
    aff = _numbers(arrays, f"{name}_aff", ndim=1)
    if aff.shape != (2,):
        raise _Wrong(f"{name}_aff has {aff.size} values: it is (a, b)")
    with np.errstate(over="ignore"):
        found: Floats = coded * aff[0] + aff[1]
        if name == "time":
            found = np.exp(found)
    _check_finite(f"{name}, decoded by {name}_aff,", found)
    return found


def _check_times(step_s: Floats) -> None:
    if (step_s <= 0).any():
        row, step = (int(i) for i in np.argwhere(step_s <= 0)[0])
        raise _Wrong(
            f"time[{row}, {step}] is {step_s[row, step]}: the cost of a row must rise with each step; store the "
            "seconds of each step, all above 0"
        )
    if step_s.sum(axis=1).max() > MAX_SECONDS:
        raise _Wrong(f"time: row {int(step_s.sum(axis=1).argmax())} takes over 30 years: store seconds")


def _space(meta: npt.NDArray[Any], *, columns: int) -> Space:
    if meta.shape != () or meta.dtype.kind != "U":
        raise _Wrong("meta is no text: store one JSON string, such as numpy.array(json.dumps(meta))")
    try:
        rows = json.loads(str(meta))["space"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise _Wrong('meta is no JSON object with "space": [[name, low, high, scale, type], …]') from error
    if not isinstance(rows, list) or len(rows) != columns:
        count = len(rows) if isinstance(rows, list) else "no list of"
        raise _Wrong(f"meta has {count} parameters in space, X has {columns} columns: one each is needed")
    parameters = dict(_parameter(row) for row in rows)
    if len(parameters) != columns:
        raise _Wrong("meta: each parameter of space needs a name of its own")
    space = Space(parameters)
    for fault in space.faults():
        raise _Wrong(f"meta: space{fault.pointer.removeprefix('/search_space')}: {fault.detail}")
    return space


def _parameter(row: object) -> tuple[str, Parameter]:
    try:
        name, low, high, scale, kind = cast(list[Any], row)
        if not isinstance(name, str) or not name or not all(map(_is_number, (low, high))):
            raise ValueError("a name and two finite bounds are needed")
        if name.startswith(COMPLEMENT):
            raise ValueError(f"names do not begin with {COMPLEMENT!r}, which is kept for lin1m")
        shown = f"{COMPLEMENT}{name}" if scale == "lin1m" else name
        return shown, parameter_of(low, high, scale, kind)
    except (TypeError, ValueError) as error:
        raise _Wrong(f"meta: the parameter {row!r} of space is none: {error}") from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _values(space: Space, rows: Floats) -> list[list[float] | list[int]]:
    """Return the columns as values of the search space, clipped to its bounds."""
    columns = zip(space.parameters.items(), rows.T, strict=True)
    return [_column(name, parameter, column) for (name, parameter), column in columns]


def _column(name: str, parameter: Parameter, column: Floats) -> list[float] | list[int]:
    assert isinstance(parameter, Int | Float)
    low, high, turned = parameter.low, parameter.high, name.startswith(COMPLEMENT)
    values = 1 - column if turned else column
    room = ROUNDING * max(abs(low), abs(high), 1 if turned else 0)
    outside = (values < low - room) | (values > high + room)
    whole = np.rint(values)
    if isinstance(parameter, Int):
        outside |= np.abs(values - whole) > ROUNDING * np.maximum(1, np.abs(values))
    if outside.any():
        row = int(np.argmax(outside))
        kind = "whole numbers " if isinstance(parameter, Int) else ""
        raise _Wrong(
            f"X: {name} of row {row} is {values[row]}: {kind}from {low} to {high} are in meta's space"
        )
    if isinstance(parameter, Int):
        return [int(value) for value in np.clip(whole, low, high)]
    return [float(value) for value in np.clip(values, low, high)]
