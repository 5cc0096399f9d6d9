"""What routes are given."""

import base64
import binascii
import json
from types import UnionType
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from tuner.domain.access import Actor
from tuner.domain.errors import Invalid
from tuner.service.wiring import Service


async def service_of(request: Request) -> Service:
    """On behalf of who asks, in their project. Without a thread of its own, as is all that waits for nothing."""
    found: Service = request.app.state.service
    actor: Actor | None = getattr(request.state, "actor", None)
    return found if actor is None else found.within(actor)


Svc = Annotated[Service, Depends(service_of)]
MAX_CURSOR = 500
Limit = Annotated[int, Query(ge=1, le=500)]


def cursor_of(*parts: Any) -> str:
    """An opaque place in a listing."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *kinds: type | UnionType) -> list[Any] | None:
    """Raises Invalid for what was not made by `cursor_of` with parts of these kinds."""
    if cursor is None:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor[:MAX_CURSOR] + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or len(found) != len(kinds) or not all(map(_fits, found, kinds)):
        raise Invalid.at("cursor", "is not a cursor of this listing; take next_cursor from the page before")
    return found


def _fits(part: Any, kind: type | UnionType) -> bool:
    if isinstance(part, bool):  # which Python takes for a number
        return False
    return isinstance(part, kind) and not (isinstance(part, int) and abs(part) >= 2**63)
