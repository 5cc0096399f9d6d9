"""When an attempt saves, by what its saves take and what may end it. Guarded by the supervisor's lock; no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tuner.domain.time import NS
from tuner.tuning.checkpointing import STALL_PART, Exposure, Saving, steps_between

# The least that a save is taken to cost, however short its stall: writing it takes a core's time beside the training, and a
# dozen requests to object storage cost what a machine of $1 an hour does in a tenth of a second.
LEAST_NS = NS // 10
GUESS = Saving(stall_ns=LEAST_NS, durable_ns=30_000_000)  # until one was made


@dataclass
class Saves:
    """`interval_ns` None: by the rule of `tuner.tuning.checkpointing`. `ordered_at` is when the last save was, or the attempt
    began."""

    exposure: Exposure
    interval_ns: int | None
    ordered_at: int
    saving: Saving | None = None
    _ordered: bool = False  # or user code saves that was not asked to
    _trained_ns: int = 0  # since the last save
    _stall_ns: int = 0  # of the last save
    _stalled_ns: int = 0  # in the step under way
    _stalls_since: int | None = None

    @classmethod
    def of(cls, order: Mapping[str, Any], now: int) -> Self:
        """As the driver's order to begin has it."""
        return cls(order.get("exposure") or Exposure(), order.get("checkpoint_interval_ns"), now)

    @property
    def durable_ns(self) -> int:
        """From the end of a step until what was saved of it is durable; the longest of late."""
        return (self.saving or GUESS).durable_ns

    def phase(self, kind: str, at: int) -> None:
        """What the child does from `at` on; training waits while that is `checkpoint`."""
        if self._stalls_since is not None:
            self._stall_ns = max(0, at - self._stalls_since)
            self._stalled_ns += self._stall_ns
        self._stalls_since = at if kind == "checkpoint" else None

    def stepped(self, ns: int) -> int:
        """A step was reported, so long after the report before was answered. How much of that was training."""
        trained = max(0, ns - self._stalled_ns)
        self._trained_ns += trained
        return trained

    def due(self, step_ns: int, now: int) -> bool:
        """At the end of a step: whether so much was trained since the last save that it is worth another. `step_ns` is how long
        a step takes, the longest of late."""
        if self.interval_ns is not None:
            return now - self.ordered_at >= self.interval_ns
        stall_ns = max(LEAST_NS, (self.saving or GUESS).stall_ns)
        saving = Saving(stall_ns, self.durable_ns)
        steps = steps_between(step_ns=step_ns, saving=saving, exposure=self.exposure)
        return self._trained_ns >= max(STALL_PART * stall_ns, steps * step_ns - step_ns // 2)

    def cheap(self, step_ns: int) -> bool:
        """Return whether saving at every step costs little: a stall takes at most a twentieth of a step, and a save is stored
        before the next one."""
        return max(STALL_PART * max(LEAST_NS, (self.saving or GUESS).stall_ns), self.durable_ns) <= step_ns

    def answered(self, at: int, *, save: bool) -> None:
        """The next step begins; with `save`, once the child has copied what there is to save."""
        self._stalled_ns = 0
        if save:
            self.ordered_at, self._trained_ns, self._ordered = at, 0, True

    def made_durable(self, at: int) -> None:
        """What was ordered last, that is. One that failed says nothing of what a save takes; the next is an interval later."""
        if not self._ordered:
            return
        took = self._stall_ns, at - self.ordered_at
        self.saving = self.saving.after(*took) if self.saving else Saving(*took)
