"""Format figures for people, and make text from other users safe for a terminal."""

import re
from collections.abc import Mapping
from typing import Any

from tuner.domain.money import dollars, plain
from tuner.domain.time import duration_text

# The C0 and C1 control characters except tab and newline, and the characters that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Return the text without characters that control a terminal. Names, reasons and values can contain any text.

    The removed characters have no width, so the layout does not change.

    >>> harmless(f"lost{chr(27)}]0;title{chr(7)}")
    'lost]0;title'
    """
    return _CONTROLS.sub("", text)


def usd(amount: float | None) -> str:
    """Return an amount in dollars with two to six decimals, as many as it needs, or "-" for None."""
    return "-" if amount is None else dollars(amount)


def amount(value: float | None) -> str:
    """Return hours or a count with all digits and without an exponent, or "-" for None."""
    return "-" if value is None else plain(value)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def config(values: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={number(v) if isinstance(v, float) else v}" for name, v in values.items())


def moment(at: str | None) -> str:
    """Return a time of a REST answer as text, cut to minutes. Return "-" for None.

    >>> moment("2026-01-31T09:30:15.123456Z")
    '2026-01-31 09:30Z'
    """
    return "-" if at is None else f"{at[:16]}Z".replace("T", " ")


def plural(count: int, singular: str, many: str | None = None) -> str:
    """Return a count with its noun in the singular or plural.

    >>> plural(1, "preemption"), plural(2, "preemption"), plural(0, "entry", "entries")
    ('1 preemption', '2 preemptions', '0 entries')
    """
    return f"{count:,} {singular if count == 1 else many or singular + 's'}"


def span(seconds: float | None) -> str:
    """Return a duration as text for people, or "-" for None."""
    return "-" if seconds is None else duration_text(seconds)
