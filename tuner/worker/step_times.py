"""Measure how long the steps and saves of an attempt take.

The supervisor's lock guards this state. The module does no I/O.
"""

import time
from collections import deque
from dataclasses import dataclass, field

from tuner.training.channel import ASK_S
from tuner.worker.child_channel import PhaseMessage
from tuner.worker.metering import Stopwatch
from tuner.worker.saves import Saves

ASK_NS = int(ASK_S * 1e9)


@dataclass
class StepTimes:
    """The times of one attempt. Instants are on the monotonic clock."""

    watch: Stopwatch
    saves: Saves
    warming_ns: int = 0  # setup time until the attempt had a child
    # How long the attempt waited for storage that failed, or for datasets while they arrived
    outage_ns: int = 0
    # If the attempt began in the middle of a step: how long earlier attempts had trained that step
    carried_ns: int = 0
    step_ns: deque[int] = field(default_factory=lambda: deque(maxlen=3))  # how long the last three steps took
    ask_gap_ns: int = 0  # the longest time between two questions; 0 if the child never asked
    _stepped_at: int = 0  # when the current step began; 0 before the first step
    _setup_at: int = 0  # when the child began to measure latency in the middle of a step; otherwise 0
    _asked_at: int = 0  # when the child last asked in the middle of a step
    _reported_train_ns: int = 0  # the attempt's training time at its last report
    # When the newest line of the `ReadLog` was read, if the line says that the child waits for a dataset; otherwise 0
    _data_seen_at: int = 0
    # Whether time counts as setup now, instead of training, because the child waits for a dataset
    _data_is_setup: bool = False

    def forked(self, lease_ns: int) -> None:
        """Record that the attempt has a child now. The setup time so far was used to prepare the worker, and is kept as `warming_ns`."""
        self.warming_ns = self.watch.reading(lease_ns).get("setup", 0)

    def add_outage(self, ns: int) -> None:
        """Count `ns` nanoseconds as a storage outage. Do nothing unless the attempt restores or saves a checkpoint instead of training."""
        if self.watch.kind in ("restore", "checkpoint"):
            self.outage_ns += ns

    def waited_for_data(self, waits: bool, *, in_first_step: bool) -> None:
        """Record whether the child waits for a dataset. Call this when a dataset reader of the child has added a line to the `ReadLog`.

        Before the first report, the time for which the child waits counts as setup and not as hanging. When a line arrives, the time since
        the line before it counts, because some file systems report bytes only every few seconds. A stalled download adds no line, so
        its time does not count. After the first report, no time counts, because the child may read data in advance.
        """
        now, before = time.monotonic_ns(), self._data_seen_at
        self._data_seen_at = now if waits and in_first_step else 0
        if self._data_seen_at:
            if self.watch.kind == "train":
                self.watch.switch("setup")
                self._data_is_setup = True
            waited_ns = now - before if before else 0
            self.outage_ns += waited_ns
            if self._data_is_setup and self._stepped_at:
                self._stepped_at += waited_ns
        elif self._data_is_setup:
            self.watch.switch("train")
            self._data_is_setup = False

    def phase(self, message: PhaseMessage) -> None:
        """Count the time from `message.at` on as the cost kind that the child announced."""
        self._data_is_setup = False
        self.watch.switch(message.kind, message.at)
        self.saves.phase(message.kind, message.at)
        if message.kind == "train" and not self._stepped_at:
            self._stepped_at = message.at
        elif message.kind == "setup" and self._stepped_at:
            self._setup_at = message.at
        elif self._setup_at:  # setup does not count for the duration of the step
            self._stepped_at += message.at - self._setup_at
            self._setup_at = 0

    def reported(self, at: int, *, in_first_step: bool) -> None:
        """Record the end of a step, which the child reported at the instant `at`."""
        if self._stepped_at:
            trained = self.saves.stepped(max(0, at - self._stepped_at))
            self.step_ns.append(trained + (self.carried_ns if in_first_step else 0))
        self._data_is_setup = False
        self.watch.switch("idle", at)
        self._reported_train_ns, self._asked_at = self.watch.of("train"), 0

    def asked(self, at: int) -> bool:
        """Record that the child asked in the middle of a step. Return whether it asked at the expected interval after its last question."""
        began = self._asked_at or self._stepped_at
        self.ask_gap_ns = max(self.ask_gap_ns, at - began if began else 0, ASK_NS)
        is_regular = bool(self._asked_at) and at - self._asked_at >= ASK_NS // 2
        self._asked_at = at
        self._data_is_setup = False
        self.watch.switch("idle", at)
        return is_regular

    def answered_report(self, *, save: bool) -> None:
        """Record that the reply to a report is sent now. `save` is whether it orders a save."""
        self._stepped_at = time.monotonic_ns()
        self.saves.answered(self._stepped_at, save=save)

    def answered_question(self) -> None:
        """Record that the reply to a question is sent now. The time for which the child waited for it does not count as training."""
        now = time.monotonic_ns()
        if self._stepped_at:
            self._stepped_at += now - self._asked_at
        self._asked_at = now

    def ordered_part(self, *, in_first_step: bool, from_scratch: bool) -> tuple[int, int]:
        """Record that a save is ordered in the middle of a step.

        Returns:
            The attempt's training time, and the training time of the step, including that of earlier attempts.
        """
        trained = self.watch.of("train")
        of_step = trained - self._reported_train_ns
        if in_first_step:  # earlier attempts may have begun the step
            begins = from_scratch and not self.carried_ns
            of_step += self.carried_ns + (self.watch.of("setup") if begins else 0)
        self.saves.ordered_within(self.in_step_ns(), self._asked_at)
        return trained, of_step

    def in_step_ns(self) -> int:
        """Return how long the current step has taken so far in this attempt."""
        return max(0, time.monotonic_ns() - self._stepped_at) if self._stepped_at else 0

    @property
    def is_starting(self) -> bool:
        """Whether the attempt is in its setup or restores a checkpoint. False while the child measures latency in the middle of a step."""
        return self.watch.kind in ("setup", "restore") and not self._setup_at

    def until_save_ns(self) -> int | None:
        """Return how many nanoseconds are left until the child can save, at the end of the step or its next question. None if unknown."""
        left = self._stepped_at + max(self.step_ns) - time.monotonic_ns() if self.step_ns else None
        return min(left or self.ask_gap_ns, self.ask_gap_ns) if self.ask_gap_ns else left
