"""Bodies that say one thing."""

import json
from collections.abc import Iterator
from typing import Any

from fastapi import Request

from tuner.domain.errors import Fault, Invalid

TWICE = "is there twice: two readers of this body could take two values for it; send it once"


class _Object(dict[str, Any]):
    """`twice`: the names that it was given more than once."""

    twice: frozenset[str] = frozenset()


async def unambiguous(request: Request) -> None:
    """Raises Invalid for JSON in which an object has a name twice: a proxy or an audit may have read another budget than is taken here.
    What is no JSON at all is for those who read it to refuse."""
    if request.method in ("GET", "HEAD", "DELETE"):
        return
    faults = [Fault(pointer, TWICE) for pointer in repeated(await request.body())]
    if faults:
        raise Invalid(*faults)


def repeated(text: bytes) -> list[str]:
    """JSON pointers to names that are there twice."""
    found: list[_Object] = []

    def read(pairs: list[tuple[str, Any]]) -> _Object:
        made = _Object(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            made.twice = frozenset(name for name in made if names.count(name) > 1)
            found.append(made)
        return made

    try:
        whole = json.loads(text, object_pairs_hook=read)
    except (ValueError, RecursionError):
        return []
    return sorted(_pointers(whole)) if found else []


def _pointers(whole: Any) -> Iterator[str]:
    left = [("", whole)]
    while left:
        at, value = left.pop()
        inner: Any = ()
        if isinstance(value, _Object):
            yield from (f"{at}/{_token(name)}" for name in value.twice)
            inner = value.items()
        elif isinstance(value, list):
            inner = enumerate(value)
        left += [(f"{at}/{_token(str(name))}", one) for name, one in inner]


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
