"""What all shapes share."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MAX_DEPTH = 50


class Request(BaseModel):
    """Unknown keys are refused, and nothing is taken for what it is not: "5" is no number, true is no 1."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Body(Request):
    """A whole request: text that can be written, and no deeper than anybody needs."""

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
    """How deep lists and mappings are nested, looked at no further than is needed."""
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
    """A newer server may say more than an older client knows."""

    model_config = ConfigDict(extra="allow")
