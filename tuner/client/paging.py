"""Fetch listings page by page."""

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
    """Yield the items of all pages. Each page is fetched when its first item is needed.

    Args:
        url: The service's URL, for error messages.
        kind: The type of a page, with `items` and `next_cursor`.
        path: The path of the listing.
        query: Query parameters, without cursor and limit.
        page: The number of items per page.
        made: Converts each item.
        limit: Yield at most this many items.
    """
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
