"""Encode domain values as versioned JSON for the database's text columns, and decode them."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, ColumnElement

from tuner.domain import (
    budget,
    calendar,
    events,
    job,
    money,
    objective,
    offer,
    retention,
    shared_budget,
    space,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

VERSION = 1
# The stored name of each type. The rows of every database contain these names, so a name must stay the same if its class is renamed.
_TYPES: Mapping[str, "type[DataclassInstance]"] = {
    "Launched": events.Launched,
    "Inherited": events.Inherited,
    "Suggested": events.Suggested,
    "Advised": events.Predicted,
    "Reported": events.Reported,
    "Parked": events.Paused,
    "Completed": events.Completed,
    "Stopped": events.Stopped,
    "Failed": events.Failed,
    "Lost": events.Lost,
    "Preempted": events.Preempted,
    "Refused": events.Refused,
    "WallClockEnded": events.WallClockEnded,
    "WindowClosed": events.WindowClosed,
    "Asked": events.ControlRequested,
    "BudgetChanged": events.BudgetChanged,
    "ConcurrencyChanged": events.ConcurrencyChanged,
    "EnqueueRequested": events.EnqueueRequested,
    "StopRequested": events.StopRequested,
    "PromoteRequested": events.PromoteRequested,
    "Money": money.Money,
    "Price": money.Price,
    "Budget": budget.Budget,
    "AboveBudget": shared_budget.SharedBudget,
    "Alert": shared_budget.Alert,
    "JobSpec": job.JobSpec,
    "Algorithm": job.Algorithm,
    "CheckpointPolicy": job.CheckpointPolicy,
    "Plateau": job.Plateau,
    "Confirm": job.Confirm,
    "RetentionPolicy": retention.RetentionPolicy,
    "StartPoint": job.StartPoint,
    "Teacher": job.Teacher,
    "TrialLimits": job.TrialLimits,
    "Resources": job.Resources,
    "Fidelity": objective.Fidelity,
    "Objective": objective.Objective,
    "Constraint": objective.Constraint,
    "Offer": offer.Offer,
    "Space": space.Space,
    "Float": space.Float,
    "Int": space.Int,
    "Categorical": space.Categorical,
    "Prior": space.Prior,
    "Window": calendar.Window,
}
_NAMES: Mapping[type, str] = {stored: name for name, stored in _TYPES.items()}
# Types whose values JSON can hold unchanged.
_PLAIN = frozenset({str, int, bool, type(None)})


def encode(value: object) -> str:
    return json.dumps({"v": VERSION, "value": _to_json(value)}, separators=(",", ":"), allow_nan=False)


def decode(text: str) -> Any:
    """Return the value that `encode` wrote.

    Raises:
        ValueError: The text is not what `encode` writes, names a type or a field that this code does not know, or has another version of the format.
    """
    wrapped = json.loads(text)
    try:
        version, value = wrapped["v"], wrapped["value"]
        if version != VERSION:
            raise ValueError(
                f"a row has format {version!r}, but this version of tuner reads format {VERSION}; use the version that wrote the row"
            )
        return _from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"a row cannot be read: {error!r} in {text[:200]}; if a newer version of tuner wrote the row, use that version"
        ) from error


def stored_name(kind: type) -> str:
    """Return the name under which a type is stored.

    Raises:
        ValueError: The type has no such name, so its values cannot be stored.
    """
    name = _NAMES.get(kind)
    if name is None:
        raise ValueError(f"{kind.__name__} has no stored name: add it to _TYPES in tuner/database/codec.py")
    return name


# Queries use the following functions to select rows by their encoded values, so that they decode only the rows that they need.


def contains_type(column: Column[str], kind: type) -> ColumnElement[bool]:
    """Return the SQL condition that the encoded value in a column contains a value of this type.

    Text and keys of a user do not meet the condition, because quotes in text are escaped, and a map with the key `$` is encoded as a list.
    """
    return column.contains(f'"$":"{stored_name(kind)}"')


def contains_field(column: Column[str], kind: "type[DataclassInstance]", name: str) -> ColumnElement[bool]:
    """Return the SQL condition that the encoded value in a column contains a `kind` whose field `name` does not have its default value.

    The field's metadata must have the key `new`, because other fields are always stored. A value with another field or key `name` also
    meets the condition, so callers must decode the rows and check the field.
    """
    assert dict(_fields_of(kind))[name] is not dataclasses.MISSING, f"the field {name} is always stored"
    return column.contains(f'"{name}"')


_SPENT = re.compile(rf'"spent":\{{"\$":"{stored_name(money.Money)}","micro_usd":(\d+)\}}')


def spent_of(body: str) -> int | None:
    """Return the spend, in micro-dollars, from the text of an encoded `Reported` event, or None if the text contains none.

    This is faster than `decode`, which would take a second for a hundred thousand events.
    """
    spent = _SPENT.search(body)
    return None if spent is None else int(spent[1])


def _to_json(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"$": stored_name(type(value)), **_fields(value)}
    if isinstance(value, Mapping):
        plain = {str(key): _to_json(inner) for key, inner in value.items()}
        return {"$map": list(plain.items())} if any(key.startswith("$") for key in plain) else plain
    if isinstance(value, tuple | frozenset):
        return [_to_json(inner) for inner in value]
    if isinstance(value, list):
        return {"$list": [_to_json(inner) for inner in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    return value


def _fields(value: "DataclassInstance") -> dict[str, object]:
    """Return the fields of a dataclass object as JSON values by name.

    A field whose metadata has the key `new` is left out if it has its default value, so that older releases, which do not know the
    field, can read the row.
    """
    given = [(name, getattr(value, name), default) for name, default in _fields_of(type(value))]
    return {name: _to_json(inner) for name, inner, default in given if inner != default}


@cache
def _fields_of(kind: "type[DataclassInstance]") -> list[tuple[str, object]]:
    """Return the name of each field of a dataclass, with the value at which the field is not stored.

    This value is the field's default if the field's metadata has the key `new`. Otherwise it is `MISSING`. No field ever has the value
    `MISSING`, so such a field is always stored.
    """
    return [
        (field.name, field.default if "new" in field.metadata else dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    ]


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(inner) for inner in value)
    if not isinstance(value, dict):
        return value
    if "$" in value:
        fields = {key: _from_json(inner) for key, inner in value.items() if key != "$"}
        return _TYPES[value["$"]](**fields)
    if "$list" in value:
        return [_from_json(inner) for inner in value["$list"]]
    if "$map" in value:
        return {key: _from_json(inner) for key, inner in value["$map"]}
    if "$float" in value:
        return objective.NOT_FINITE[value["$float"]]
    return {key: _from_json(inner) for key, inner in value.items()}


def metrics_json(metrics: Mapping[str, object]) -> str:
    """Encode reported metrics. NaN and infinities become null, because JSON cannot express them."""
    plain = {k: None if isinstance(v, float) and finite(v) is None else v for k, v in metrics.items()}
    return json.dumps(plain, default=str, allow_nan=False)


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is NaN or infinite."""
    return value if value is not None and value - value == 0 else None
