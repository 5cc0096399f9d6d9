"""Trials and learning curves as pandas data frames. Unknown values are NA, and do not change the type of their column."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tuner.schemas.answers import Curves, Trial

TEXT, WHOLE, REAL, YES_NO = "string", "Int64", "Float64", "boolean"
# The types of columns. In a table of trials, STATE precedes the columns of the configuration, and MONEY and TIMES follow them. REPORT has
# the columns of a table of reports.
STATE = {"state": TEXT, "reason": TEXT, "steps": WHOLE, "metric": REAL, "latest_metric": REAL}
MONEY = {"paid_usd": REAL, "gpu_hours": REAL, "attempts": WHOLE, "preemptions": WHOLE}
TIMES = ("created_at", "updated_at")
REPORT = {"steps": WHOLE, "metric": REAL, "cost_usd": REAL, "spent_usd": REAL}
NUMBERS = {"float": REAL, "int": WHOLE}


def trials(items: Sequence[Trial], space: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per trial.

    `metric` is the best value that the trial reported. A parameter `x` is the column `config.x`, with NA for trials that do not have it.
    """

    def values(name: str) -> list[Any]:
        return [getattr(trial, name) for trial in items]

    columns: dict[str, pd.Series] = {"trial": _column(values("id"), TEXT)}
    columns |= {name: _column(values(name), kind) for name, kind in STATE.items()}
    # First the parameters of the search space, then those that occur only in configurations of trials.
    for name in dict.fromkeys([*space, *(name for trial in items for name in trial.config)]):
        chosen = [trial.config.get(name) for trial in items]
        columns[f"config.{name}"] = _column(chosen, kind_of(space.get(name, {}), chosen))
    columns |= {name: _column(values(name), kind) for name, kind in MONEY.items()}
    for name in TIMES:
        times = pd.to_datetime(pd.Series(values(name), dtype=object), utc=True, format="ISO8601")
        columns[name] = times.astype("datetime64[us, UTC]")
    return pd.DataFrame(columns)


def curves(answer: Curves) -> pd.DataFrame:
    """Return one row per report, trial by trial, in the order of steps."""
    rows = [
        (trial.id, *report)
        for trial in answer.trials
        for report in zip(*(getattr(trial, name) for name in REPORT), strict=True)
    ]
    kinds = {"trial": TEXT, **REPORT}
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    table = {name: _column(list(values), kinds[name]) for name, values in zip(kinds, columns, strict=True)}
    return pd.DataFrame(table).rename(columns={"steps": "step", "cost_usd": "cost_to_train_usd"})


def kind_of(parameter: Mapping[str, Any], values: Iterable[Any]) -> str:
    """Return the pandas type of a parameter's column.

    For a float or int parameter of the search space, this is the pandas type of real or whole numbers. For any other parameter, it is a type
    that fits all its choices and all `values`.
    """
    if parameter.get("type") in NUMBERS:
        return NUMBERS[parameter["type"]]
    types = {type(value) for value in (*parameter.get("choices", ()), *values) if value is not None}
    for fitting, kind in (({bool}, YES_NO), ({int}, WHOLE), ({int, float}, REAL), ({str}, TEXT)):
        if types and types <= fitting:
            return kind
    return "object"


def _column(values: Sequence[Any], kind: Any) -> pd.Series:
    if kind == "object":
        return pd.Series([pd.NA if value is None else value for value in values], dtype=object)
    return pd.Series(pd.array(values, dtype=kind))
