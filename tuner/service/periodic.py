"""The base class of the threads that do the same work at intervals while the service runs."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.errors import Fenced, TunerError
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

# An error that occurs again within this time is not logged again, even if passes have succeeded since. While Ray refuses a driver, for
# example, each second pass submits it and fails.
REPEATS_WITHIN_S = 60.0


@dataclass
class ServiceHealth:
    """Counters of this process and the times of the last passes of its threads, for `/metrics`. Thread-safe."""

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
    #: The time of `controller_at` on the process's monotonic clock. None before the first pass.
    _controller_passed_s: float | None = None
    _counts: dict[Counted, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def controller_passed(self, at: Instant) -> None:
        """Record the end of a successful pass of the controller as leader."""
        self.controller_at, self._controller_passed_s = at, time.monotonic()

    def controller_pass_age_s(self) -> float | None:
        """Return the seconds since that pass, which do not depend on the wall clock. Return None if there was none yet."""
        return None if self._controller_passed_s is None else time.monotonic() - self._controller_passed_s

    def count(self, what: Counted) -> None:
        with self._lock:
            self._counts[what] = self._counts.get(what, 0) + 1

    def counted(self, what: Counted) -> int:
        with self._lock:
            return self._counts.get(what, 0)


class PeriodicService(threading.Thread, ABC):
    """Call `one_pass` at intervals in a thread, until `stop()` is called. A stopped thread cannot be started again.

    A failed pass is counted and logged, and the next pass starts from the beginning. A `TunerError` that repeats in successive passes, or
    within `REPEATS_WITHIN_S`, is logged only once.
    """

    def __init__(
        self,
        name: str,
        *,
        every_s: float,
        first_s: float = 0.0,
        health: ServiceHealth | None = None,
        failures: Counted | None = None,
    ) -> None:
        """Create the thread.

        Args:
            name: The name of the thread. Its log is `tuner.` and this name.
            every_s: Seconds from the end of a pass to the beginning of the next one.
            first_s: Seconds until the first pass.
            health: Where failed passes are counted. If `health` or `failures` is None, they are not counted.
            failures: The name of the counter in `health` that counts failed passes.
        """
        super().__init__(name=name, daemon=True)
        self.ready = threading.Event()  #: Set after the first successful pass.
        self._over = threading.Event()
        self._every_s, self._first_s = every_s, first_s
        self._health, self._failures = health, failures
        # The error that was logged last. Empty if the same error would be logged again.
        self._error_text = ""
        self._error_s = 0.0  # When it occurred last, on the process's monotonic clock.
        self._log = logging.getLogger(f"tuner.{name}")

    @abstractmethod
    def one_pass(self) -> None:
        """Do the work once. Any exception ends the pass, and the next pass starts from the beginning."""

    def run(self) -> None:
        wait_s = self._first_s
        while not self._over.wait(wait_s):
            wait_s = self._every_s
            try:
                self.one_pass()
                if time.monotonic() - self._error_s > REPEATS_WITHIN_S:
                    self._error_text = ""
                self.ready.set()
            except Fenced as fenced:
                self._log.warning("a pass ended early, because another service leads now: %s", fenced.detail)
            except TunerError as error:
                self._count_failure()
                error_text = f"{error.title()}: {error.detail}"
                if error_text != self._error_text:
                    self._log.warning("%s", error_text)
                self._error_text, self._error_s = error_text, time.monotonic()
            except Exception:
                self._count_failure()
                self._log.exception("a pass failed; the next one starts from the beginning")

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the thread, and wait at most `timeout_s` seconds for the end of its current pass.

        A thread that was not started makes no pass, even if it is started later.
        """
        self._over.set()
        if self.is_alive():
            self.join(timeout_s)

    def _count_failure(self) -> None:
        if self._health is not None and self._failures is not None:
            self._health.count(self._failures)
