"""The ports through which a loop acts: workers, and clocks."""

from dataclasses import dataclass
from typing import Protocol

from tuner.domain.space import Config
from tuner.domain.time import Instant


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attempt to begin, not before `not_before_ns` of the loop's clock. `restore_step` None: from nothing; `lease_ns` is what is
    paid for so far."""

    trial: str
    attempt: int
    config: Config
    until: int | None
    lease_ns: int
    restore_step: int | None
    not_before_ns: int = 0


class World(Protocol):
    """Orders are sent, not waited for; what comes of them arrives at the loop as progress. Must not raise."""

    def begin(self, assignment: Assignment) -> None: ...

    def go(self, trial: str, until: int | None, lease_ns: int) -> None:
        """The lease is that of the whole attempt."""

    def park(self, trial: str) -> None: ...

    def finish(self, trial: str) -> None: ...

    def stop(self, trial: str) -> None: ...


class Clock(Protocol):
    def now(self) -> Instant:
        """Wall clock; may jump, so it dates records and measures nothing."""

    def elapsed_ns(self) -> int:
        """Monotonic."""
