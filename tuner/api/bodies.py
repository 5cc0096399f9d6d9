"""Bodies that say one thing."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fastapi import Request

from tuner.domain.errors import Fault, Invalid

TWICE = "is there twice: two readers of this body could take two values for it; send it once"
# A job of the largest size that is accepted has some hundreds. Each unknown name costs a fault, made on the event loop.
MAX_NAMES = 10_000


class _Object(dict[str, Any]):
    """`twice`: the names that it was given more than once."""

    twice: frozenset[str] = frozenset()


async def unambiguous(request: Request) -> None:
    """Refuse a body that has too many names, or one name twice in an object.

    A proxy or an audit may have read another value of the repeated name than the service takes. Text that is not JSON is left to
    those who read it.

    Raises:
        Invalid: The body is refused. Faults name the repeated names.
    """
    if request.method in ("GET", "HEAD", "DELETE"):
        return
    faults = [Fault(pointer, TWICE) for pointer in repeated(await request.body())]
    if faults:
        raise Invalid(*faults)


def repeated(text: bytes) -> list[str]:
    """Return JSON pointers to names that an object has twice. Raises Invalid if there are more than MAX_NAMES names in all."""
    found: list[_Object] = []
    count = 0

    def read(pairs: list[tuple[str, Any]]) -> _Object:
        nonlocal count
        count += len(pairs)
        if count > MAX_NAMES:
            raise Invalid(Fault("", f"has more than {MAX_NAMES} names; send less"))
        made = _Object(pairs)
        if len(made) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            made.twice = frozenset(name for name, times in counts.items() if times > 1)
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
