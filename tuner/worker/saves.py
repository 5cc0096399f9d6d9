"""Decide when an attempt saves, from the duration of its saves and from how likely it is to be lost.

The supervisor's lock guards this state. The module does no I/O.
"""

from dataclasses import dataclass
from typing import Self

from tuner.domain.checkpointing import STALL_PART, InterruptionRisk, SaveTimes, steps_between
from tuner.domain.time import NS
from tuner.worker.orders import BeginOrder

# The least cost of a save, expressed as time for which training is stalled. A save with a shorter stall still uses a core
# during the training, and its dozen requests to object storage cost as much as a $1/h machine costs in a tenth of a second.
LEAST_NS = NS // 10
PIECE_NS = NS  # in the middle of a long step, saves are planned as if each second of it were a step
GUESS = SaveTimes(stall_ns=LEAST_NS, durable_ns=30_000_000)  # used until a save was measured


@dataclass
class Saves:
    """Measures the saves of one attempt and decides when the next save is due. Instants are in nanoseconds on the caller's clock."""

    risk: InterruptionRisk
    interval_ns: int | None  # time between saves; None means that `tuner.domain.checkpointing` decides
    ordered_at: int  # when the last save was ordered, or when the attempt began
    saving: SaveTimes | None = None  # the measured cost of a save; None before the first one
    _ordered: bool = False  # whether a save was ever ordered; user code may also save without an order
    _trained_ns: int = 0  # training time since the last save
    _stall_ns: int = 0  # stall of the last save
    _stalled_ns: int = 0  # stalls in the current step
    _stalls_since: int | None = None  # when the current stall began

    @classmethod
    def of(cls, order: BeginOrder, now: int) -> Self:
        """Create the object from the driver's order to begin an attempt."""
        return cls(order.get("exposure") or InterruptionRisk(), order.get("checkpoint_interval_ns"), now)

    @property
    def durable_ns(self) -> int:
        """Nanoseconds from the order to save until the checkpoint is durable: about the longest time of recent saves."""
        return (self.saving or GUESS).durable_ns

    def phase(self, kind: str, at: int) -> None:
        """Record that the child's time belongs to this cost kind from `at` on.

        Training is stalled while the cost kind is `checkpoint`.
        """
        if self._stalls_since is not None:
            self._stall_ns = max(0, at - self._stalls_since)
            self._stalled_ns += self._stall_ns
        self._stalls_since = at if kind == "checkpoint" else None

    def stepped(self, ns: int) -> int:
        """Record that a step took `ns` nanoseconds. Return the duration of the step without the stalls for saves."""
        trained = max(0, ns - self._stalled_ns)
        self._trained_ns += trained
        return trained

    def due(self, step_ns: int, now: int) -> bool:
        """Return whether a save is due at the end of a step. `step_ns` is the longest duration of the recent steps.

        If the job sets an interval, a save is due when the interval has passed since the last ordered save. Otherwise a save is due when the
        training time since the last save is worth the cost of another save.
        """
        if self.interval_ns is not None:
            return now - self.ordered_at >= self.interval_ns
        stall_ns = max(LEAST_NS, (self.saving or GUESS).stall_ns)
        saving = SaveTimes(stall_ns, self.durable_ns)
        steps = steps_between(step_ns=step_ns, saving=saving, risk=self.risk)
        return self._trained_ns >= max(STALL_PART * stall_ns, steps * step_ns - step_ns // 2)

    def due_within(self, step_ns: int, now: int) -> bool:
        """Return whether a save is due in the middle of a step, of which `step_ns` nanoseconds have passed."""
        if self.interval_ns is not None:
            return now - self.ordered_at >= self.interval_ns
        stall_ns = max(LEAST_NS, (self.saving or GUESS).stall_ns)
        saving = SaveTimes(stall_ns, self.durable_ns)
        pieces = steps_between(step_ns=PIECE_NS, saving=saving, risk=self.risk)
        trained_ns = self._trained_ns + step_ns - self._stalled_ns
        return trained_ns >= max(STALL_PART * stall_ns, pieces * PIECE_NS)

    def ordered_within(self, step_ns: int, now: int) -> None:
        """Record that a save was ordered in the middle of a step, of which `step_ns` nanoseconds have passed."""
        self.ordered_at, self._ordered = now, True
        self._trained_ns = (
            self._stalled_ns - step_ns
        )  # negative: `stepped` will later add the whole step, including the part that is saved now

    def is_cheap(self, step_ns: int) -> bool:
        """Return whether saving at every step costs little.

        Saving costs little if a step takes at least `STALL_PART` times as long as the stall of a save, and if a save becomes durable
        before the next save. `step_ns` is the duration of a step.
        """
        return max(STALL_PART * max(LEAST_NS, (self.saving or GUESS).stall_ns), self.durable_ns) <= step_ns

    def answered(self, at: int, *, save: bool) -> None:
        """Record that the reply to a report was sent at `at` and the next step begins.

        `save` is whether the reply orders a save.
        """
        self._stalled_ns = 0
        if save:
            self.ordered_at, self._trained_ns, self._ordered = at, 0, True

    def made_durable(self, at: int) -> None:
        """Measure the save that was ordered last, which became durable at `at`. Do nothing if no save was ordered."""
        if not self._ordered:
            return
        took = self._stall_ns, at - self.ordered_at
        self.saving = self.saving.after(*took) if self.saving else SaveTimes(*took)
