"""Trials and learning curves as pandas data frames. Unknown values are NA, and columns keep their type."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tuner.schemas.answers import Curves, Trial

TEXT, WHOLE, REAL, YES_NO = "string", "Int64", "Float64", "boolean"


BEFORE = {"state": TEXT, "reason": TEXT, "steps": WHOLE, "metric": REAL, "latest_metric": REAL}


MONEY = {"paid_usd": REAL, "gpu_hours": REAL, "attempts": WHOLE, "preemptions": WHOLE}


LINE = {"steps": WHOLE, "metric": REAL, "cost_usd": REAL, "spent_usd": REAL}


NUMBERS = {"float": REAL, "int": WHOLE}


TIMES = ("created_at", "updated_at")


def trials(found: Sequence[Trial], space: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per trial.

    `metric` is the best value that the trial reported. A parameter `x` is the column `config.x`, with NA for trials that do not have it.
    """
    columns: dict[str, pd.Series] = {"trial": _column([one.id for one in found], TEXT)}
    columns |= {name: _column([getattr(one, name) for one in found], kind) for name, kind in BEFORE.items()}
    for name in _parameters(found, space):
        values = [one.config.get(name) for one in found]
        columns[f"config.{name}"] = _column(values, kind_of(space.get(name, {}), values))
    columns |= {name: _column([getattr(one, name) for one in found], kind) for name, kind in MONEY.items()}
    columns |= {name: _times([getattr(one, name) for one in found]) for name in TIMES}
    return pd.DataFrame(columns)


def curves(found: Curves) -> pd.DataFrame:
    """Return one row per report, trial by trial, in the order of steps."""
    lines = [
        (one.id, *line)
        for one in found.trials
        for line in zip(*(getattr(one, name) for name in LINE), strict=True)
    ]
    columns = zip(*lines, strict=True) if lines else [()] * (1 + len(LINE))
    kinds = {"trial": TEXT, **LINE}
    table = {name: _column(list(values), kinds[name]) for name, values in zip(kinds, columns, strict=True)}
    return pd.DataFrame(table).rename(columns={"steps": "step", "cost_usd": "cost_to_train_usd"})


def kind_of(parameter: Mapping[str, Any], values: Iterable[Any]) -> str:
    """Return the pandas type of a parameter's column: the search space's number type, or one that fits all choices and values."""
    if parameter.get("type") in NUMBERS:
        return NUMBERS[parameter["type"]]
    kinds = {type(one) for one in (*parameter.get("choices", ()), *values) if one is not None}
    for wanted, name in (({bool}, YES_NO), ({int}, WHOLE), ({int, float}, REAL), ({str}, TEXT)):
        if kinds and kinds <= wanted:
            return name
    return "object"


def _parameters(found: Sequence[Trial], space: Mapping[str, Any]) -> list[str]:
    """Return the names of all parameters: first those of the search space, then those that occur only in configurations of trials."""
    return list(dict.fromkeys([*space, *(name for one in found for name in one.config)]))


def _column(values: Sequence[Any], kind: Any) -> pd.Series:
    if kind == "object":
        return pd.Series([pd.NA if one is None else one for one in values], dtype=object)
    return pd.Series(pd.array(values, dtype=kind))


def _times(values: Sequence[Any]) -> pd.Series:
    found = pd.to_datetime(pd.Series(values, dtype=object), utc=True, format="ISO8601")
    return found.astype("datetime64[us, UTC]")
