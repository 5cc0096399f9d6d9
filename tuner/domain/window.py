"""The hours of the day in which a job may run.

A window is open while the local time of its time zone is at or after `start` and before `end`. If `end` is earlier than `start`, it
is on the next day. Local time alone decides: an hour that is skipped when clocks are set forward does not exist, and an hour that
is repeated when they are set back counts twice.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from tuner.domain.errors import Fault
from tuner.domain.time import NS, Instant

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
        if self.timezone not in _zones().values():
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
def _zones() -> dict[str, str]:
    """Return the name of every time zone by its lowercase name."""
    return {name.lower(): name for name in sorted(available_timezones())}


def _no_zone(name: str) -> str:
    zones, wanted = _zones(), name.strip().lower().replace(" ", "_")
    cities = [zone for low, zone in zones.items() if wanted and low.rpartition("/")[2] == wanted]
    near = [zones[low] for low in get_close_matches(wanted, zones, n=3)]
    nearest = list(dict.fromkeys([*cities, *near]))[:3] or ["UTC", "Europe/Berlin", "America/New_York"]
    return f"there is no time zone {name[:100]!r}; the nearest are {', '.join(nearest)}"
