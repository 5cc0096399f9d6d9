"""Listings, page by page."""

from collections.abc import Callable
from typing import Any

from tuner.client.http import ask
from tuner.client.steps import Item, Series
from tuner.schemas.base import Answer


def pages(
    url: str,
    kind: type[Answer],
    path: str,
    query: dict[str, Any],
    *,
    page: int,
    made: Callable[[Any], Any] = lambda item: item,
    limit: int | None = None,
) -> Series[Any]:
    """The items of all pages, each page asked for when its turn comes; `kind` has `items` and `next_cursor`. At most `limit` where it
    is given."""
    cursor, left = None, limit
    while left is None or left > 0:
        asked = {**query, "cursor": cursor, "limit": min(page, left or page)}
        found: Any = yield from ask(url, kind, "GET", path, query=asked)
        for item in found.items:
            yield Item(made(item))
        cursor = found.next_cursor
        left = None if left is None else left - len(found.items)
        if cursor is None:
            return
