"""Local days and calendar periods, with time zones and their changes of offset."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from tuner.domain.time import NS, Instant, parse_rfc3339

Period = Literal["day", "week", "month"]
PERIODS: tuple[Period, ...] = get_args(Period)
DAY_NS = 86400 * NS
_EPOCH_DAY = date(1970, 1, 1).toordinal()


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raise ValueError, with similar names, if it does not exist."""
    if name in _zones():
        return ZoneInfo(name)
    lower = {known.lower(): known for known in _zones()}
    ends = {known.rpartition("/")[2]: known for known in sorted(lower)}
    wanted = name.lower()
    near = [lower[found] for found in get_close_matches(wanted, lower, 3)]
    near += [lower[ends[found]] for found in get_close_matches(wanted.replace(" ", "_"), ends, 2)]
    said = (
        f"; the nearest: {', '.join(dict.fromkeys(near))}" if near else "; write it as Europe/Berlin or UTC"
    )
    raise ValueError(f"{name[:60]!r} is no time zone{said}")


def instant(moment: datetime) -> Instant:
    return Instant(round(moment.timestamp()) * NS)


def moment_of(text: str, where: ZoneInfo) -> Instant:
    """Return the instant of a date (its first moment in the zone `where`) or of a time with its own offset.

    Raise ValueError for any other text.
    """
    try:
        return instant(datetime.combine(date.fromisoformat(text), datetime.min.time(), where))
    except ValueError:
        pass
    try:
        return parse_rfc3339(text)
    except ValueError:
        raise ValueError(_AS_TIME) from None


_AS_TIME = "write a date such as 2026-01-31, or a time with its offset such as 2026-01-31T12:00:00Z"


def period_of(at: Instant, period: Period | None, where: ZoneInfo) -> tuple[Instant, Instant | None]:
    """Return the start and the exclusive end of the calendar period that contains `at`. Weeks start on Monday.

    Without a period, the span is from 1970 without an end (None).
    """
    if period is None:
        return Instant(0), None
    today = datetime.fromtimestamp(at // NS, where).date()
    match period:
        case "day":
            first, following = today, today + timedelta(days=1)
        case "week":
            first = today - timedelta(days=today.weekday())
            following = first + timedelta(days=7)
        case "month":
            first = today.replace(day=1)
            following = (first + timedelta(days=32)).replace(day=1)
    return _midnight(first, where), _midnight(following, where)


def _midnight(day: date, where: ZoneInfo) -> Instant:
    return instant(datetime.combine(day, datetime.min.time(), where))


def offsets(first: int, last: int, where: ZoneInfo) -> list[tuple[Instant, int]]:
    """Return the UTC offsets of a zone from `first` to `last`, each as its first instant and nanoseconds."""
    found = [(Instant(first), _offset_ns(first, where))]
    at = first
    while at < last:
        following = min(at + DAY_NS, last)
        if _offset_ns(following, where) != found[-1][1]:
            low, high = at // NS, following // NS
            while high - low > 1:
                middle = (low + high) // 2
                same = _offset_ns(middle * NS, where) == found[-1][1]
                low, high = (middle, high) if same else (low, middle)
            found.append((Instant(high * NS), _offset_ns(high * NS, where)))
        at = following
    return found


def _offset_ns(at: int, where: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at // NS, UTC).astimezone(where).utcoffset()
    assert offset is not None
    return round(offset.total_seconds()) * NS


def local_day(at: int, shifts: Sequence[tuple[Instant, int]]) -> int:
    """Return the number of local days since 1970, with the offsets that `offsets` returned."""
    index = max(0, bisect_right(shifts, at, key=lambda shift: shift[0]) - 1)
    return (at + shifts[index][1]) // DAY_NS


def day_name(number: int) -> str:
    """
    >>> day_name(0)
    '1970-01-01'
    """
    return date.fromordinal(_EPOCH_DAY + number).isoformat()
