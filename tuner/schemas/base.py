"""Base classes of all request and answer models, the types of amounts and times in answers, and the model of errors (RFC 9457)."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from tuner.domain.cost import KINDS
from tuner.domain.errors import MAX_FAULTS, Fault, Invalid
from tuner.domain.money import Cost, Money, Price
from tuner.domain.space import pointer_token
from tuner.domain.time import rfc3339

MAX_DEPTH = 32
NUL = "must not contain a NUL character, which databases cannot store"


class Request(BaseModel):
    """Base class of request objects. Unknown fields are refused, and values are not converted: "5" is not a number, and true is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Body(Request):
    """Base class of whole request bodies. Text must be valid Unicode without NUL, and nesting is limited to 32 levels."""

    @model_validator(mode="before")
    @classmethod
    def _writable(cls, given: Any) -> Any:
        level, values = 0, [given]
        while values := [value for value in values if isinstance(value, dict | list)]:
            level += 1
            if level > MAX_DEPTH:
                raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
            values = [v for value in values for v in (value.values() if isinstance(value, dict) else value)]
        text = json.dumps(given, ensure_ascii=False, default=str)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("has text that is not valid Unicode") from error
        if "\\u0000" in text and (faults := list(_nul_faults("", given))):
            raise Invalid(*faults[:MAX_FAULTS])
        return given


def _nul_faults(pointer: str, value: Any) -> Iterator[Fault]:
    """Yield a fault for each text and each name with a NUL character in a JSON value, which is nested at most `MAX_DEPTH` levels."""
    if isinstance(value, str) and "\0" in value:
        yield Fault(pointer, NUL)
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        at = f"{pointer}/{pointer_token(str(name))}"
        if isinstance(name, str) and "\0" in name:
            yield Fault(at, NUL)
        yield from _nul_faults(at, inner)


def _dollars(amount: object) -> object:
    if isinstance(amount, Cost):
        amount = amount.usd
    if isinstance(amount, Money):
        return amount.usd
    return amount.usd_per_hour if isinstance(amount, Price) else amount


def _hours(amount: object) -> object:
    return round(amount.gpu_hours, 9) if isinstance(amount, Cost) else amount


def _by_kind(costs: object) -> object:
    if not isinstance(costs, Mapping):
        return costs
    return {**dict.fromkeys(KINDS, 0.0), **{kind: _dollars(cost) for kind, cost in costs.items()}}


Usd = Annotated[float, BeforeValidator(_dollars)]
"""Dollars. Accepts Money, the dollars of a Cost, and the dollars per hour of a Price."""
Six = Annotated[float, AfterValidator(lambda value: round(value, 6))]
"""A number with at most six decimals."""
GpuHours = Annotated[float, BeforeValidator(_hours)]
"""GPU-hours. Accepts a Cost."""
ByKind = Annotated[dict[str, float], BeforeValidator(_by_kind)]
"""Dollars for all kinds of cost. Accepts costs by kind; kinds that are missing are 0."""
Time = Annotated[str, BeforeValidator(lambda at: rfc3339(at) if isinstance(at, int) else at)]
"""Time in RFC 3339. Accepts an Instant."""


class Answer(BaseModel):
    """Base class of answers.

    Unknown fields are allowed, so that an older client can read the answers of a newer server. `model_validate` also accepts an internal
    object of the service. It reads each field from the object's attribute with the same name, or from the attribute that the field's
    `validation_alias` names.
    """

    model_config = ConfigDict(
        extra="allow", from_attributes=True, validate_by_name=True, validate_by_alias=True
    )


class FieldProblem(Answer):
    """A fault in the request. `pointer` is an RFC 6901 JSON pointer into the body, or the name of a query parameter."""

    pointer: str
    detail: str


class Problem(Answer):
    """An error. `code` identifies its kind and does not change between versions. `type` is `urn:tuner:problem:` with the code behind it."""

    type: str = "about:blank"
    code: str = ""
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []
