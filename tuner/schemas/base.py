"""Base classes of all request and answer models, and the model of errors (RFC 9457)."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MAX_DEPTH = 50


class Request(BaseModel):
    """Base class of request objects. Unknown fields are refused, and values are not converted: "5" is not a number, and true is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Body(Request):
    """Base class of whole request bodies. Text must be valid Unicode, and nesting is limited to 50 levels."""

    @model_validator(mode="before")
    @classmethod
    def _writable(cls, given: Any) -> Any:
        if depth(given) > MAX_DEPTH:
            raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")
        try:
            json.dumps(given, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ValueError("has text that is not valid Unicode") from error
        return given


def depth(value: Any) -> int:
    """Return how deep lists and mappings are nested. Stop counting one level beyond MAX_DEPTH."""
    level, inner = 0, [value]
    while inner and level <= MAX_DEPTH:
        inner = [
            child
            for one in inner
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
        level += bool(inner)
    return level


class Answer(BaseModel):
    """Base class of answers. Unknown fields are allowed, so that an older client can read the answers of a newer server."""

    model_config = ConfigDict(extra="allow")


class FieldProblem(Answer):
    """A fault in the request. `pointer` is an RFC 6901 JSON pointer into the body, or the name of a query parameter."""

    pointer: str
    detail: str


class Problem(Answer):
    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []
