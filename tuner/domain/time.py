"""Time in whole nanoseconds. The core receives the time as an argument and never reads a clock."""

import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import NewType

Instant = NewType("Instant", int)
"""Nanoseconds since 1970 in UTC."""

NS = 1_000_000_000  #: One second.
MS_NS = 1_000_000
MINUTE_NS = 60 * NS
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS
RAY_START_S = 300.0  #: How long the service's own Ray cluster may take to start. Clients wait for it as long.
MAX_SECONDS = 30 * 366 * 86400
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhd]|)")


def system_now() -> Instant:
    """Read the system's clock. The core must not call this."""
    return Instant(time.time_ns())  # noqa: TID251


def seconds_ns(seconds: float) -> int:
    return round(seconds * NS)


def parse_duration_ns(text: str | int | float) -> int:
    """Return the nanoseconds of a duration such as `200ms`, `90s`, `15m`, `6h`, `2d` or a number of seconds.

    Raise ValueError for any other text, and for a duration of more than 30 years.

    >>> parse_duration_ns("15m") // NS
    900
    >>> parse_duration_ns("200ms")
    200000000
    """
    if isinstance(text, bool):
        raise ValueError("must be a duration such as 90s, 15m, 6h or 2d")
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise ValueError("must be a duration such as 200ms, 90s, 15m, 6h or 2d, or a number of seconds")
    seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if seconds > MAX_SECONDS:
        raise ValueError("must be at most 30 years")
    return seconds_ns(seconds)


def duration_text(seconds: float) -> str:
    """Return a duration as text for people.

    >>> duration_text(0.2431), duration_text(9.87), duration_text(90), duration_text(5400), duration_text(200_000)
    ('0.24 s', '9.87 s', '1:30 min', '1:30 h', '2.3 days')
    """
    whole = round(seconds)
    if whole < 60:
        if seconds < 1:
            return f"{seconds:.2g} s"
        return f"{seconds:.3g} s" if seconds < 9.95 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    if whole < 172_800:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{seconds / 86_400:.1f} days"


def rfc3339(at: int) -> str:
    """Return the instant as RFC 3339 text in UTC with microseconds."""
    moment = datetime.fromtimestamp(at // NS, UTC).replace(microsecond=at % NS // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> Instant:
    """Return the instant of a text such as 2026-01-31T12:00:00Z. Raise ValueError if it is not a time with an offset."""
    moment: datetime | None = None
    with suppress(ValueError):  # its message says nothing to a user
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            "give a time with its offset, such as 2026-01-31T12:00:00Z, or a duration such as 12h"
        )
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return Instant((since.days * 86_400 + since.seconds) * NS + since.microseconds * 1000)


def is_time(given: str | float) -> bool:
    """Return whether a deadline is written as a time, which begins with a year and a hyphen, and not as a duration."""
    return isinstance(given, str) and given[4:5] == "-"
