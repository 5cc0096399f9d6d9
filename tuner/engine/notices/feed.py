"""The port through which a watcher looks."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tuner.domain.time import Instant
from tuner.engine.notices.notice import Notice


@dataclass(frozen=True, slots=True)
class Look:
    """All notices for this machine that stand. `doubt`: why there may be more of them, or ""; what is missing then was not
    withdrawn."""

    notices: tuple[Notice, ...]
    doubt: str = ""


class Feed(ABC):
    """One place that notices come from. Asked by one task, one question at a time."""

    name: str
    pause_s: float
    """Between two looks."""

    @abstractmethod
    async def look(self, *, wait: bool) -> Look:
        """`wait`: it may wait until something has changed since the last look, where the source can tell. May raise anything."""

    async def release(self, notice_id: str) -> bool:
        """Tells the source that nobody needs the time that is left; False where it takes no such word. May raise anything."""
        return False


def wall_clock() -> Instant:
    return Instant(time.time_ns())
