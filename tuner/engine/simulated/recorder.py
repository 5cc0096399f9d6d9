"""Record results of a simulated job while it runs: the best value against the money spent, and a trace."""

import math
from dataclasses import dataclass, field
from typing import TextIO

from tuner.domain import events as ev
from tuner.domain.ids import trial_number
from tuner.domain.money import ZERO, Money
from tuner.engine.simulated.journal import Committed, Tables
from tuner.engine.simulated.world import SimulatedRun
from tuner.store.codec import encode


@dataclass
class BestCurve:
    """The best reported value against the money that the whole job had spent by then, without idle time.

    Pass the method `recorded` to the run as a watcher. Pass the run to `follow` at once, because the curve
    also counts money that is spent but not posted to the ledger yet.
    """

    points: list[tuple[Money, float]] = field(default_factory=list)
    best: float = -math.inf
    best_trial: int | None = None
    best_step: int = 0
    _busy_posted: Money = ZERO
    _run: SimulatedRun | None = None

    def follow(self, run: SimulatedRun) -> None:
        self._run = run

    def recorded(self, tables: Tables, committed: Committed) -> None:
        for entry in committed.entries:
            if entry.kind is not None and entry.kind != "idle":
                self._busy_posted = self._busy_posted + entry.cost.usd
        for event in committed.events:
            if isinstance(event, ev.Reported) and event.value is not None and event.value > self.best:
                self.best, self.best_step = event.value, event.step
                self.best_trial = trial_number(event.trial)
                self.points.append((self._busy_posted + self._unposted(), event.value))

    def _unposted(self) -> Money:
        """Return the money that running attempts have used of their current leases."""
        if self._run is None:
            return ZERO
        spent = ZERO
        for lease in self._run.loop.leases.values():
            attempt = self._run.world.attempts.get(lease.trial)
            if attempt is not None and attempt.given.attempt == lease.attempt:
                busy_ns = max(0, attempt.meter().busy_ns - lease.settled.busy_ns)
                spent = spent + lease.rate.price.of(busy_ns)
        return spent


class TraceWriter:
    """Write every recorded event and ledger entry as one JSON value per line. The same seed writes the same bytes."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def recorded(self, tables: Tables, committed: Committed) -> None:
        for value in (*committed.events, *committed.entries):
            self._file.write(f"{encode(value)}\n")
