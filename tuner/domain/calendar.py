"""Local days, calendar periods, and the hours of the day in which a job may run.

A window is open while the local time of its time zone is at or after `start` and before `end`. If `end` is earlier than
`start`, the window ends on the next day. Only the local time counts: an hour that is skipped when clocks are set forward
does not exist, and an hour that is repeated when they are set back counts twice.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from tuner.domain.errors import Fault
from tuner.domain.text import nearest, suggested
from tuner.domain.time import DAY_NS, NS, Instant, parse_rfc3339

Period = Literal["day", "week", "month"]
DAY_S = 86400
_EPOCH_DAY = date(1970, 1, 1).toordinal()


@cache
def _zones() -> dict[str, str]:
    """Return a mapping from the lowercase name of each time zone to its IANA name."""
    return {name.lower(): name for name in sorted(available_timezones())}


def zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raise ValueError, with similar names, if it does not exist."""
    zones = _zones()
    if name in zones.values():
        return ZoneInfo(name)
    wanted = name.strip().lower().replace(" ", "_")
    cities = [known for lower, known in zones.items() if wanted and lower.rpartition("/")[2] == wanted]
    near = list(dict.fromkeys([*cities, *nearest(wanted, zones.values())]))[:3]
    known = suggested(near, ["UTC", "Europe/Berlin", "America/New_York"])
    raise ValueError(f"the time zone {name[:100]!r} is unknown; {known}")


def instant(moment: datetime) -> Instant:
    return Instant(round(moment.timestamp()) * NS)


def moment_of(text: str, where: ZoneInfo) -> Instant:
    """Parse a date or a time with a UTC offset. A date means its first moment in the time zone `where`.

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

    If `period` is None, return a span that starts in 1970 and has no end (None).
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
    """Return the UTC offsets of a zone between the instants `first` and `last`, in order of time.

    Each is a pair: the instant from which the offset applies, and the offset in nanoseconds.
    """
    shifts = [(Instant(first), _offset_s(first // NS, where) * NS)]
    at = first
    while at < last:
        following = min(at + DAY_NS, last)
        if _offset_s(following // NS, where) * NS != shifts[-1][1]:
            change = _change(at // NS, following // NS, where)
            shifts.append((Instant(change * NS), _offset_s(change, where) * NS))
        at = following
    return shifts


def _offset_s(second: int, where: ZoneInfo) -> int:
    """Return the UTC offset of a zone at a time in seconds since 1970."""
    offset = datetime.fromtimestamp(second, UTC).astimezone(where).utcoffset()
    assert offset is not None
    return offset.days * DAY_S + offset.seconds


def _change(before: int, after: int, where: ZoneInfo) -> int:
    """Find the clock change between two times, in seconds since 1970, and return the first second with the new UTC offset.

    The offset at `after` must differ from the offset at `before`.
    """
    offset = _offset_s(before, where)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if _offset_s(middle, where) == offset else (before, middle)
    return after


def day_name(number: int) -> str:
    """Return the date of a day that is given as the number of days since 1970-01-01.

    >>> day_name(0)
    '1970-01-01'
    """
    return date.fromordinal(_EPOCH_DAY + number).isoformat()


_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Window:
    """A daily time window."""

    start: str  #: Time of day as HH:MM.
    end: str  #: Time of day as HH:MM.
    timezone: str = "UTC"  #: Name in the IANA time zone database.

    def faults(self) -> list[Fault]:
        faults = [
            Fault(f"/window/{name}", f"{text!r} is not a time; write it as HH:MM, from 00:00 to 23:59")
            for name, text in (("start", self.start), ("end", self.end))
            if not _TIME.fullmatch(text)
        ]
        if not faults and self.start == self.end:
            detail = f"a window from {self.start} to {self.end} never opens; choose a different start or end, or leave out the window"
            faults.append(Fault("/window/end", detail))
        try:
            zone(self.timezone)
        except ValueError as error:
            faults.append(Fault("/window/timezone", str(error)))
        return faults

    def is_open(self, at: Instant) -> bool:
        shown, start, end = self._local_s(at // NS), _seconds(self.start), _seconds(self.end)
        return start <= shown < end if start < end else shown >= start or shown < end

    def opening(self, at: Instant) -> Instant:
        """Return the first time, from `at` on, at which the window is open. It is `at` if the window is open then."""
        return self._next(at, open=True)

    def closing(self, at: Instant) -> Instant:
        """Return the first time, from `at` on, at which the window is closed. It is `at` if the window is closed then."""
        return self._next(at, open=False)

    def left_ns(self, at: Instant) -> int:
        """Return how many nanoseconds the window stays open after `at`, or 0 if it is closed then."""
        return self.closing(at) - at

    def open_ns(self, begin: Instant, end: Instant) -> int:
        """Return for how many nanoseconds the window is open between two times."""
        total = 0
        while (opens := self.opening(begin)) < end:
            begin = self.closing(opens)
            total += min(begin, end) - opens
        return total

    def _next(self, at: Instant, *, open: bool) -> Instant:
        """Return the first time, from `at` on, at which the window is open, or closed if `open` is false.

        Each round of the search stops at the next clock change, because local time is continuous only between clock changes.
        """
        boundary, where = _seconds(self.start if open else self.end), ZoneInfo(self.timezone)
        second = at // NS
        while self.is_open(Instant(second * NS)) is not open:
            ahead = second + (boundary - self._local_s(second)) % DAY_S
            if _offset_s(ahead, where) == _offset_s(second, where):
                return Instant(ahead * NS)
            second = _change(second, ahead, where)
        return max(at, Instant(second * NS))

    def _local_s(self, second: int) -> int:
        """Return the local time of day, in seconds since midnight, at a time in seconds since 1970."""
        return (second + _offset_s(second, ZoneInfo(self.timezone))) % DAY_S


def _seconds(text: str) -> int:
    return int(text[:2]) * 3600 + int(text[3:]) * 60
