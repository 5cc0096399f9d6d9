"""What this process has done since it began, and when its threads last came round: counted where it happens, told at `/metrics`."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.time import Instant

Counted = Literal[
    "controller_failures",
    "keeper_failures",
    "launches",
    "launch_failures",
    "driver_restarts",
    "jobs_given_up",
    "webhooks_taken",
    "webhooks_refused",
    "ledger_checks",
]


@dataclass
class Vitals:
    """Thread-safe. `controller_at` and `keeper_at`: the end of the last pass as the leader that went well (None: none yet). `leads`:
    whether this service is the one that acts. `violations` are the
    accounts that their last check found wrong, `checked_at` is when a round of all accounts was last done. `storage` is whether the checkpoint storage answered last (None: it was not asked yet).
    `several_projects`: that there were, when somebody last looked."""

    controller_at: Instant | None = None
    keeper_at: Instant | None = None
    checked_at: Instant | None = None
    storage: bool | None = None
    several_projects: bool = False
    leads: Callable[[], bool] | None = None
    violations: dict[str, str] = field(default_factory=dict)
    _counts: dict[Counted, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: Counted) -> None:
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + 1

    def counted(self, what: Counted) -> int:
        with self._lock:
            return self._counts.get(what, 0)
