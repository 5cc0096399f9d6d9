"""The port through which a watcher reads one source of notices."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tuner.domain.time import Instant
from tuner.engine.notices.notice import Notice


@dataclass(frozen=True, slots=True)
class Look:
    """The answer of one source: all its current notices for this machine."""

    notices: tuple[Notice, ...]
    doubt: str = ""  #: Why some notices may be missing, or an empty text. If it is set, missing notices do not count as withdrawn.


class Feed(ABC):
    """One source of notices. One task uses it, with one request at a time."""

    name: str
    pause_s: float
    """Seconds between two calls of `look`."""

    @abstractmethod
    async def look(self, *, wait: bool) -> Look:
        """Return the current notices. May raise any exception.

        Args:
            wait: Whether the call may wait until the notices change, if the source supports that.
        """

    async def release(self, notice_id: str) -> bool:
        """Tell the source that the remaining time is not needed. Return False if it does not support that. May raise any exception."""
        return False


def wall_clock() -> Instant:
    return Instant(time.time_ns())
