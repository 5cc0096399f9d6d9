"""Local days, calendar periods, and the hours of the day in which a job may run.

A window is open while the local time of its time zone is at or after `start` and before `end`. If `end` is earlier than
`start`, the window ends on the next day. Only the local time counts: an hour that is skipped when clocks are set forward
does not exist, and an hour that is repeated when they are set back counts twice.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from tuner.domain.errors import Fault
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


DAY_S = 86400
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Window:
    """A daily time window."""

    start: str  #: Time of day as HH:MM.
    end: str  #: Time of day as HH:MM.
    timezone: str = "UTC"  #: Name in the IANA time zone database.

    def faults(self) -> list[Fault]:
        found = [
            Fault(f"/window/{name}", f"{text!r} is no time; write it as HH:MM, from 00:00 to 23:59")
            for name, text in (("start", self.start), ("end", self.end))
            if not _TIME.fullmatch(text)
        ]
        if not found and self.start == self.end:
            detail = f"a window from {self.start} to {self.end} never opens; let it end at another time, or leave it out"
            found.append(Fault("/window/end", detail))
        if self.timezone not in _zones_by_lowercase_name().values():
            found.append(Fault("/window/timezone", _no_zone(self.timezone)))
        return found

    def is_open(self, at: Instant) -> bool:
        return self._is_open(at // NS)

    def opening(self, at: Instant) -> Instant:
        """Return `at` if the window is open then, else when it opens next."""
        return self._next(at, open=True)

    def closing(self, at: Instant) -> Instant:
        """Return `at` if the window is closed then, else when it closes next."""
        return self._next(at, open=False)

    def left_ns(self, at: Instant) -> int:
        """Return how long the window stays open after `at`, or 0 if it is closed."""
        return self.closing(at) - at

    def _is_open(self, second: int) -> bool:
        shown, start, end = self._shown(second), _seconds(self.start), _seconds(self.end)
        return start <= shown < end if start < end else shown >= start or shown < end

    def _next(self, at: Instant, *, open: bool) -> Instant:
        """Return the first time, `at` or later, when the window is open (if `open`) or closed (if not).

        The search goes from one clock change to the next, because local time is continuous between them.
        """
        boundary = _seconds(self.start if open else self.end)
        second = at // NS
        while self._is_open(second) is not open:
            ahead = second + (boundary - self._shown(second)) % DAY_S
            if self._offset(ahead) == self._offset(second):
                return Instant(ahead * NS)
            second = self._change(second, ahead)
        return max(at, Instant(second * NS))

    def _change(self, before: int, after: int) -> int:
        """Return the first second whose UTC offset differs from that of `before`. The offset of `after` must differ."""
        offset = self._offset(before)
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (middle, after) if self._offset(middle) == offset else (before, middle)
        return after

    def _shown(self, second: int) -> int:
        """Return the local time in seconds of the day."""
        return (second + self._offset(second)) % DAY_S

    def _offset(self, second: int) -> int:
        found = datetime.fromtimestamp(second, UTC).astimezone(ZoneInfo(self.timezone)).utcoffset()
        assert found is not None
        return found.days * DAY_S + found.seconds


def _seconds(text: str) -> int:
    return int(text[:2]) * 3600 + int(text[3:]) * 60


@cache
def _zones_by_lowercase_name() -> dict[str, str]:
    """Return the name of every time zone by its lowercase name."""
    return {name.lower(): name for name in sorted(available_timezones())}


def _no_zone(name: str) -> str:
    zones, wanted = _zones_by_lowercase_name(), name.strip().lower().replace(" ", "_")
    cities = [zone for low, zone in zones.items() if wanted and low.rpartition("/")[2] == wanted]
    near = [zones[low] for low in get_close_matches(wanted, zones, n=3)]
    nearest = list(dict.fromkeys([*cities, *near]))[:3] or ["UTC", "Europe/Berlin", "America/New_York"]
    return f"there is no time zone {name[:100]!r}; the nearest are {', '.join(nearest)}"
