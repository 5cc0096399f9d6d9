"""A simulated attempt on a simulated clock. Like a real worker, it reports, waits, saves, and ends when its lease ends."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tuner.domain.cost import CostKind, Meter
from tuner.domain.preemption_policy import MARGIN_NS, in_time
from tuner.domain.space import Config
from tuner.domain.time import Instant
from tuner.driver.messages import AttemptFailure, Saved, StepReport, WorkerMessage
from tuner.driver.ports import Assignment
from tuner.worker.orders import WorkerState
from tuner.worker.saves import Saves

EPOCH_NS = 1_700_000_000_000_000_000


class SimulatedClock:
    """A simulated clock. `now` can jump like a real wall clock. `elapsed_ns` never goes back."""

    def __init__(self) -> None:
        self._elapsed = 0
        self.offset_ns = EPOCH_NS
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def now(self) -> Instant:
        return Instant(self._elapsed + self.offset_ns)

    def elapsed_ns(self) -> int:
        return self._elapsed

    def after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """Schedule a call of `act` after `delay_ns`. Calls for the same time run in the order in which they were scheduled."""
        self._count += 1
        heapq.heappush(self._due, (self._elapsed + max(0, delay_ns), self._count, act))

    def run_next(self) -> bool:
        if not self._due:
            return False
        at, _, act = heapq.heappop(self._due)
        self._elapsed = max(self._elapsed, at)
        act()
        return True


class Training(Protocol):
    """A simulated training: the duration in nanoseconds and the metric of each step of a configuration.

    Both methods must be pure functions.
    """

    def step_ns(self, config: Config, step: int) -> int: ...

    def value(self, config: Config, step: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Overheads:
    """How long setup, restores and saves take in a simulated attempt, and how often it saves."""

    warming_ns: int = 0  #: Setup of the first attempt of each worker, in addition to `setup_ns`.
    setup_ns: int = 200_000_000
    resumed_setup_ns: int | None = (
        None  #: Setup of an attempt that then restores a checkpoint. None means `setup_ns`.
    )
    restore_ns: int = 100_000_000
    save_ns: int = 50_000_000  #: Time until a checkpoint is durable. An attempt waits for it at its end.
    stall_ns: int = 0  #: How long training is stalled by each save in the background.
    #: Time between saves in the background. "auto" means the rule of real workers, None means never.
    save_every_ns: int | Literal["auto"] | None = None
    resumable: bool = True

    def before_ns(self, *, resumed: bool) -> int:
        return self.resumed_setup_ns if resumed and self.resumed_setup_ns is not None else self.setup_ns


HEARTBEAT_NS = 1_000_000_000
FLUSH_NS = 200_000_000  # least time between two messages with reports, unless the worker waits for the driver


@dataclass(slots=True)
class SimulatedAttempt:
    """One attempt on a simulated worker. Times are in nanoseconds of `clock`."""

    given: Assignment
    training: Training
    overheads: Overheads
    clock: SimulatedClock
    send: Callable[["SimulatedAttempt", WorkerMessage], None]  # sends a message to the driver
    metric: str
    max_step: int | None
    saves: Saves | None = None  # decides when to save in the background; None means never
    warming_ns: int = 0  # additional setup time on a cold worker, one that has not run an attempt yet
    heartbeat_ns: int = HEARTBEAT_NS
    kind: CostKind = "setup"  # the cost kind of the time that passes now
    since_ns: int = 0  # when the time of this cost kind began
    before_ns: int = 0  # billed time before `since_ns`
    ns: dict[CostKind, int] = field(default_factory=dict)  # the billed time before `since_ns`, by cost kind
    lease_ns: int = 0
    target_step: int | None = None
    step: int = 0
    saved: int = 0  # the newest durable step
    over: bool = False
    waiting: bool = False  # whether it waits for the driver
    need_ns: int = 0  # by how much the lease is too short for the next step
    pausing: bool = False  # whether the driver ordered a pause
    has_notice: bool = False  # whether the worker has a preemption notice
    recent_ns: deque[int] = field(default_factory=lambda: deque(maxlen=3))
    generation: int = 0  # scheduled calls store this number; they are ignored if it has increased since
    pending: list[StepReport] = field(default_factory=list)
    took_ns: int = 0  # duration of the newest step
    last_sent_ns: int = 0  # when the last message was sent
    flushing: bool = False  # whether a message with pending reports is scheduled
    line_ns: int = 0  # when the last message arrives at the driver
    sent_saved: int = 0  # the value of `saved` in the last message to the driver
    saving: int | None = None  # the step that is being saved in the background
    ends_as: WorkerState | None = None  # the state with which the attempt ends after the save in progress
    step_began_ns: int = 0  # when the current step began
    returns_at: int | None = None  # the step after which user code returns, although the job has no last step

    def start(self) -> None:
        self.lease_ns, self.target_step = self.given.lease_ns, self.given.target_step
        self.step = self.saved = self.sent_saved = self.given.restore_step or 0
        self.since_ns = self.last_sent_ns = self.clock.elapsed_ns()
        setup_ns = self.warming_ns + self.overheads.before_ns(resumed=self.step > 0)
        self._later(setup_ns, self._restore if self.step else self._next_step)
        self._later(self._heartbeat_ns(), self._send_heartbeat, keep=True)

    # Commands

    def continue_to(self, target_step: int | None, lease_ns: int) -> None:
        self.target_step, self.lease_ns = target_step, max(lease_ns, self.lease_ns)
        if self.waiting and not self.over:
            self.waiting = False
            self._next_step()

    def pause(self) -> None:
        self.pausing = True
        if self.waiting and not self.over:
            self._save_and("paused")

    def finish(self) -> None:
        if self.waiting and not self.over:
            self._save_and("finished")

    def stop(self) -> None:
        self._end("stopped")

    def leave(self, left_ns: int) -> None:
        """Handle a preemption notice, which says that the worker will be taken away in `left_ns` nanoseconds.

        As on a real worker, the duration of the current step is predicted from recent steps. If the step can be finished and saved in
        time, the attempt ends after it. Otherwise it ends now. An attempt that waits for the driver trains no step: it saves, then ends.
        """
        if self.over:
            return
        self.has_notice = True
        ends_ns, save_ns = self.clock.elapsed_ns() + left_ns, self.overheads.save_ns
        if self.waiting:
            self._save_and("preempted")
        elif self.kind == "train" and self._gains(ends_ns):
            generation = self.generation
            self._later(left_ns - save_ns - MARGIN_NS, lambda: self._give_up(generation), keep=True)
            self._say("running")
        elif self.kind != "checkpoint":
            self._leave_now()

    def _gains(self, ends_ns: int) -> bool:
        """Return whether the current step can probably be finished and saved before `ends_ns`, when the worker is taken away."""
        now, seen_ns = self.clock.elapsed_ns(), max(self.recent_ns, default=None)
        step_ns = None if seen_ns is None else self.since_ns + seen_ns - now
        unsaveable = seen_ns is not None and not self.overheads.resumable
        return not unsaveable and in_time(ends_ns - now, step_ns=step_ns, save_ns=self.overheads.save_ns)

    def _give_up(self, generation: int) -> None:
        if self.kind == "train" and generation == self.generation:
            self._leave_now()

    def _leave_now(self) -> None:
        """Give up the current step and end the attempt as preempted. If a save is in progress, end after the save."""
        if self.saving is None:
            self._end("preempted")
        else:
            self.ends_as = "preempted"

    def vanish(self) -> None:
        """End the attempt without a message, because its worker died."""
        self.over = True

    # What the attempt does without a command

    def _later(self, delay_ns: int, act: Callable[[], None], *, keep: bool = False) -> None:
        """Schedule a call of `act` after `delay_ns`. The call is dropped if the attempt has ended by then.

        Args:
            delay_ns: The delay.
            act: The function to call.
            keep: Whether to call `act` even if a final save has begun by then. If false, the call is part of the attempt's work: it is
                dropped if a final save has begun, and if the lease ends before the call, the attempt ends.
        """
        left = self.lease_ns - self._used_ns()
        generation = self.generation
        if keep:
            self.clock.after(delay_ns, lambda: None if self.over else act())
        elif delay_ns > left:
            self.clock.after(left, lambda: self._lease_ended(generation, delay_ns - left, act))
        else:
            self.clock.after(delay_ns, lambda: None if self.over or generation != self.generation else act())

    def _lease_ended(self, generation: int, rest_ns: int, act: Callable[[], None]) -> None:
        if self.over or generation != self.generation:
            return
        if self.lease_ns > self._used_ns():  # the lease was extended after this call was scheduled
            self._later(rest_ns, act)
            return
        self._end(
            "paused", AttemptFailure("lease", "", "the attempt's lease ended before the step was finished")
        )

    def _restore(self) -> None:
        self._switch("restore")
        self._later(self.overheads.restore_ns, self._next_step)

    def _next_step(self) -> None:
        if self.returns_at is not None and self.step >= self.returns_at:
            self._save_and("finished")
            return
        if self.pausing or self.has_notice:
            self._save_and("paused" if self.pausing else "preempted")
            return
        at_rung = self.target_step is not None and self.step >= self.target_step
        at_end = self.max_step is not None and self.step >= self.max_step
        left = self.lease_ns - self._used_ns()
        need = self.took_ns + self.overheads.save_ns
        if at_rung or at_end or (self.took_ns and left < need):
            self._switch("idle")
            self.waiting = True
            self.need_ns = max(0, need - left) if not at_rung and not at_end else 0
            self._say("waiting")
            return
        self._flush()
        self._go_on()

    def _go_on(self) -> None:
        due, self.step_began_ns = self._save_is_due(), self.clock.elapsed_ns()
        if self.saves is not None:
            self.saves.answered(self.step_began_ns, save=due)
        if due:
            self._save_in_background(self.step)
        if due and self.overheads.stall_ns:
            self._switch("checkpoint")
            self._later(self.overheads.stall_ns, self._copied)
        else:
            self._step_on()

    def _copied(self) -> None:
        """Train the next step after the start of a save has stalled the training.

        If a pause or a preemption notice arrived during the stall, end the attempt instead.
        """
        if self.has_notice or self.pausing:
            self._next_step()
        else:
            self._step_on()

    def _step_on(self) -> None:
        self._switch("train")
        self.took_ns = self.training.step_ns(self.given.config, self.step + 1)
        self._later(self.took_ns, self._stepped)

    def _stepped(self) -> None:
        self.step += 1
        self.recent_ns.append(self.took_ns)
        value = self.training.value(self.given.config, self.step)
        shown: object = "NaN" if math.isnan(value) else value
        at = self.clock.now()
        if self.saves is not None:
            self.saves.stepped(self.clock.elapsed_ns() - self.step_began_ns)
        self.pending.append(
            StepReport(self.step, {self.metric: shown}, self.overheads.resumable, self.meter(), at)
        )
        self._next_step()

    # Checkpoints

    def _save_is_due(self) -> bool:
        ready = self.overheads.resumable and self.saving is None and bool(self.recent_ns)
        return (
            ready and self.saves is not None and self.saves.due(max(self.recent_ns), self.clock.elapsed_ns())
        )

    def _save_in_background(self, step: int) -> None:
        assert self.saves is not None
        self.saves.phase("checkpoint", self.step_began_ns)
        self.saves.phase("train", self.step_began_ns + self.overheads.stall_ns)
        self.saving = step
        if self.overheads.save_ns:
            self._later(self.overheads.save_ns, lambda: self._made_durable(step), keep=True)
        else:
            self._made_durable(step)

    def _made_durable(self, step: int) -> None:
        assert self.saves is not None
        self.saved, self.saving = max(step, self.saved), None
        self.saves.made_durable(self.clock.elapsed_ns())
        if self.ends_as is not None:
            self._end(self.ends_as)

    def _save_and(self, state: WorkerState) -> None:
        self.waiting, self.ends_as = False, None
        if not self.overheads.resumable or self.step == self.saved:
            self._end(state)
            return
        self._switch("checkpoint")
        self.generation += 1
        if self.saving == self.step:
            self.ends_as = state
        else:
            self._later(self.overheads.save_ns, lambda: self._saved(state))

    def _saved(self, state: WorkerState) -> None:
        self.saved = self.step
        self._end(state)

    def _send_heartbeat(self) -> None:
        """Send a message if none was sent during the last heartbeat interval, so that the lease is renewed during long steps."""
        silent_ns = self.clock.elapsed_ns() - self.last_sent_ns
        if silent_ns >= self._heartbeat_ns():
            self._say("waiting" if self.waiting else "running")
            silent_ns = 0
        self._later(self._heartbeat_ns() - silent_ns, self._send_heartbeat, keep=True)

    def _heartbeat_ns(self) -> int:
        """Return the time until the next heartbeat, in nanoseconds.

        It is 5/8 of the rest of the lease, because the driver renews a lease after half of it is used. It is at
        least the constant `HEARTBEAT_NS` and at most the field `heartbeat_ns`. A heartbeat every second would work
        too, but takes longer to simulate.
        """
        soon_ns = (self.lease_ns - self._used_ns()) * 5 // 8
        return min(self.heartbeat_ns, max(HEARTBEAT_NS, soon_ns))

    def _flush(self) -> None:
        """Send the pending reports, but not before `FLUSH_NS` have passed since the last message."""
        if not self.pending or self.flushing:
            return
        wait_ns = self.last_sent_ns + FLUSH_NS - self.clock.elapsed_ns()
        if wait_ns <= 0:
            self._say("running")
            return
        self.flushing = True
        self._later(wait_ns, self._flushed, keep=True)

    def _flushed(self) -> None:
        self.flushing = False
        if self.pending and not self.waiting:
            self._say("running")

    def _end(self, state: WorkerState, failure: AttemptFailure | None = None) -> None:
        if self.over:
            return
        meter = self.meter()
        self.over = True
        self._say(state, failure=failure, meter=meter)

    def _say(
        self,
        state: WorkerState,
        *,
        failure: AttemptFailure | None = None,
        meter: Meter | None = None,
    ) -> None:
        reports, self.pending = tuple(self.pending), []
        new = (Saved(self.saved, f"sim://{self.given.trial}/{self.saved}", 1, 0.0),)
        checkpoints = new if self.saved > self.sent_saved else ()
        self.sent_saved = self.saved
        progress = WorkerMessage(
            self.given.trial,
            self.given.attempt,
            state,
            meter or self.meter(),
            reports,
            checkpoints,
            self.need_ns if state == "waiting" else 0,
            self.saved or None,
            failure,
            self.warming_ns,
            has_notice=self.has_notice,
        )
        self.last_sent_ns = self.clock.elapsed_ns()
        self.send(self, progress)

    def _switch(self, kind: CostKind) -> None:
        self.ns = dict(self.meter().ns)
        self.before_ns = sum(self.ns.values())
        self.kind, self.since_ns = kind, self.clock.elapsed_ns()

    def _used_ns(self) -> int:
        """Return the billed time so far. It is at most the lease, because a real supervisor kills the child when the lease ends."""
        return min(self.lease_ns, self.before_ns + self.clock.elapsed_ns() - self.since_ns)

    def meter(self) -> Meter:
        ns = dict(self.ns)
        ns[self.kind] = ns.get(self.kind, 0) + self._used_ns() - self.before_ns
        return Meter(ns)
