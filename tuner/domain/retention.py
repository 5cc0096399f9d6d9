"""Retention: how long the checkpoints and artifacts of a job are kept after it has ended."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from tuner.domain.errors import Fault
from tuner.domain.time import NS, Instant, parse_duration_ns

Retain = Literal["all", "best", "front", "none"]
RETAINS: tuple[Retain, ...] = get_args(Retain)
# A job keeps the files of all trials for this time after it has ended, because it may be topped up and resumed. If `artifacts.for` is
# shorter, the files are deleted earlier.
GRACE_NS = 24 * 3600 * NS


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which files of a job are kept after it has ended, and for how long."""

    #: The trials whose files are kept: all, the best one, those on the Pareto front, or none.
    retain: Retain = "all"
    for_ns: int | None = (
        None  #: How long after the job's end the remaining files are deleted too. None means never.
    )

    def faults(self) -> list[Fault]:
        if self.for_ns is not None and self.for_ns <= 0:
            return [Fault("/artifacts/for", "must be more than 0 seconds")]
        return []

    def keeps(self, ended_at: Instant, now: Instant) -> Retain:
        """Return whose files are still kept at `now` if the job ended at `ended_at`: all trials, the best one, the Pareto front, or none."""
        passed_ns = now - ended_at
        if self.for_ns is not None and passed_ns >= self.for_ns:
            return "none"
        return "all" if passed_ns < GRACE_NS else self.retain

    def next_change(self, ended_at: Instant, now: Instant) -> Instant | None:
        """Return when the job next keeps fewer files, or None if that never happens."""
        times = [] if self.retain == "all" else [ended_at + GRACE_NS]
        times += [] if self.for_ns is None else [ended_at + self.for_ns]
        later = [time for time in times if time > now]
        return Instant(min(later)) if later else None


def parse_retention(text: str) -> RetentionPolicy:
    """Parse a retention policy such as `best` or `best:30d`. Raise ValueError for any other text.

    >>> parse_retention("best:30d")
    RetentionPolicy(retain='best', for_ns=2592000000000000)
    """
    match = re.fullmatch(r"(\w+)(?::(.+))?", text.strip())
    retain = next(
        (known_retain for known_retain in RETAINS if match is not None and known_retain == match[1]), None
    )
    if match is None or retain is None:
        raise ValueError(
            f"{text!r} is not a retention policy; write one of {', '.join(RETAINS)}, optionally with a time, such as best:30d"
        )
    for_ns = None if match[2] is None else parse_duration_ns(match[2])
    if for_ns == 0:
        raise ValueError(f"{text!r} would keep files for 0 seconds; write none instead")
    return RetentionPolicy(retain, for_ns)
