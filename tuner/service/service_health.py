"""Counters of this process and the times of the last passes of its threads, for `/metrics`."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.time import Instant

Counted = Literal[
    "controller_failures",
    "reconciler_failures",
    "launches",
    "launch_failures",
    "driver_restarts",
    "jobs_given_up",
    "webhooks_taken",
    "webhooks_refused",
    "ledger_checks",
]


@dataclass
class ServiceHealth:
    """State of this process. Thread-safe."""

    #: End of the last successful pass of the controller as leader; None if there was none yet.
    controller_at: Instant | None = None
    #: End of the last successful pass of the reconciler; None if there was none yet.
    reconciler_at: Instant | None = None
    checked_at: Instant | None = None  #: End of the last complete round of the ledger's audit.
    #: Whether the checkpoint storage worked at the last check; None if it was not checked yet.
    storage: bool | None = None
    several_projects: bool = False  #: Whether the database had several projects at the last check.
    leads: Callable[[], bool] | None = None  #: Returns whether this service leads.
    #: Faults of the accounts that the audit found wrong at their last check, by account.
    violations: dict[str, str] = field(default_factory=dict)
    _counts: dict[Counted, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: Counted) -> None:
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + 1

    def counted(self, what: Counted) -> int:
        with self._lock:
            return self._counts.get(what, 0)
