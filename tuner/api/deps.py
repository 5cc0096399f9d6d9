"""Dependencies of routes: the service that acts for the caller, and cursors that page through listings."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request

from tuner.domain.access import Actor
from tuner.domain.errors import Invalid
from tuner.domain.time import parse_duration_ns
from tuner.service.bootstrap import Service


async def service_of(request: Request) -> Service:
    """Return the service that acts for the authenticated caller in the caller's project.

    On a route that needs no key, return the service with its default actor and project. The function is async because FastAPI would run a
    function that is not async in a thread, and this one never waits.
    """
    service: Service = request.app.state.service
    actor: Actor | None = getattr(request.state, "actor", None)
    return service if actor is None else service.within(actor)


Svc = Annotated[Service, Depends(service_of)]
T = TypeVar("T")
MAX_CURSOR = 500
Limit = Annotated[int, Query(ge=1, le=500)]


def cursor_of(*parts: Any) -> str:
    """Return an opaque cursor that encodes a place in a listing. The parts must be JSON values."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def page_of(rows: Sequence[T], limit: int, place: Callable[[T], tuple[Any, ...]]) -> dict[str, Any]:
    """Return the `items` of a page, and the `next_cursor` with which a client requests the page after it.

    `place` returns the values that identify a row's place in the listing; a cursor encodes them. `rows` has up to `limit + 1` rows. The row
    after the first `limit` rows is not returned; it only shows that there is a next page.
    """
    return {
        "items": rows[:limit],
        "next_cursor": cursor_of(*place(rows[limit - 1])) if len(rows) > limit else None,
    }


def read_cursor(cursor: str | None, *kinds: type | UnionType) -> list[Any] | None:
    """Return the parts of a cursor, or None if `cursor` is None. Raise Invalid if it is not a cursor whose parts have the types `kinds`, in order."""
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor[:MAX_CURSOR] + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or len(parts) != len(kinds) or not all(map(_fits, parts, kinds)):
        raise Invalid.at("cursor", "is not a cursor of this listing; use next_cursor of the previous page")
    return parts


def time_and_id(cursor: str | None) -> tuple[int, str] | None:
    """Return the creation time, in nanoseconds, and the id that the cursor of a listing by time contains. Return None if `cursor` is None."""
    place = read_cursor(cursor, int, str)
    return None if place is None else (place[0], place[1])


def duration_ns_of(pointer: str, text: str) -> int:
    """Return the nanoseconds of a duration such as 90s. Raise Invalid, which names `pointer`, if the text is not a duration."""
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise Invalid.at(pointer, str(error)) from error


def _fits(part: Any, kind: type | UnionType) -> bool:
    if isinstance(part, bool):  # no cursor has a bool, and isinstance would accept it as an int
        return False
    if isinstance(part, str) and not part.isprintable():
        return False
    return isinstance(part, kind) and not (isinstance(part, int) and abs(part) >= 2**63)
