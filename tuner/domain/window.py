"""The hours of the day in which a job may run.

A window is open while the clocks of its time zone show a time from `start` on and before `end`, on the next day where `end` is the
earlier one. Nothing else decides: where clocks are set forward over it, the hours that are left out are not there; where they
are set back, an hour that comes twice counts twice.
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
    """`start` and `end` are times of the day as HH:MM, `timezone` a name of the IANA time zone database."""

    start: str
    end: str
    timezone: str = "UTC"

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
        """`at` itself where it is open then, else when it opens next."""
        return self._next(at, open=True)

    def closing(self, at: Instant) -> Instant:
        """`at` itself where it is closed then, else when it closes next."""
        return self._next(at, open=False)

    def left_ns(self, at: Instant) -> int:
        """How long it stays open; 0 where it is closed."""
        return self.closing(at) - at

    def _is_open(self, second: int) -> bool:
        shown, start, end = self._shown(second), _seconds(self.start), _seconds(self.end)
        return start <= shown < end if start < end else shown >= start or shown < end

    def _next(self, at: Instant, *, open: bool) -> Instant:
        """From one change of the clocks to the next: in between they run on."""
        boundary = _seconds(self.start if open else self.end)
        second = at // NS
        while self._is_open(second) is not open:
            ahead = second + (boundary - self._shown(second)) % DAY_S
            if self._offset(ahead) == self._offset(second):
                return Instant(ahead * NS)
            second = self._change(second, ahead)
        return max(at, Instant(second * NS))

    def _change(self, before: int, after: int) -> int:
        """The first second with another offset from UTC than `before`; `after` has one."""
        offset = self._offset(before)
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (middle, after) if self._offset(middle) == offset else (before, middle)
        return after

    def _shown(self, second: int) -> int:
        """What the clocks show, in seconds of the day."""
        return (second + self._offset(second)) % DAY_S

    def _offset(self, second: int) -> int:
        found = datetime.fromtimestamp(second, UTC).astimezone(ZoneInfo(self.timezone)).utcoffset()
        assert found is not None
        return found.days * DAY_S + found.seconds


def _seconds(text: str) -> int:
    return int(text[:2]) * 3600 + int(text[3:]) * 60


@cache
def _zones() -> dict[str, str]:
    """Every time zone, by its name in small letters."""
    return {name.lower(): name for name in sorted(available_timezones())}


def _no_zone(name: str) -> str:
    zones, wanted = _zones(), name.strip().lower().replace(" ", "_")
    cities = [zone for low, zone in zones.items() if wanted and low.rpartition("/")[2] == wanted]
    near = [zones[low] for low in get_close_matches(wanted, zones, n=3)]
    nearest = list(dict.fromkeys([*cities, *near]))[:3] or ["UTC", "Europe/Berlin", "America/New_York"]
    return f"there is no time zone {name[:100]!r}; the nearest are {', '.join(nearest)}"
