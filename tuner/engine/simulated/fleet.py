"""The simulated workers: who is up, who is about to be taken away, and which attempts wait for one.

An attempt that begins while no worker is up waits in a queue, as it waits for Ray to find it a node: nothing is billed,
its meter starts with its worker. A worker that is to be taken away with a notice is given nothing new, and what it
trains ends as preempted, saved if there is time; what is not saved by then is lost with it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.domain.cost import Meter
from tuner.domain.offer import Offer
from tuner.engine.messages import Progress
from tuner.engine.simulated.clock import SimulatedClock
from tuner.engine.simulated.traces import UpTimes
from tuner.engine.simulated.worker import SimulatedAttempt
from tuner.engine.world import Assignment


@dataclass(slots=True)
class Worker:
    """`offer`: of which kind its machine is, None: of any. `leaving`: it had its notice. A worker that comes back is a new one, and
    cold."""

    offer: Offer | None = None
    up: bool = True
    leaving: bool = False
    cold: bool = True
    attempt: SimulatedAttempt | None = None

    @property
    def busy(self) -> SimulatedAttempt | None:
        return self.attempt if self.attempt is not None and not self.attempt.over else None

    @property
    def there(self) -> bool:
        """Whether attempts could be placed on it, as far as its machine goes."""
        return self.up and not self.leaving

    def free_for(self, offer: Offer | None) -> bool:
        return self.there and self.busy is None and (offer is None or self.offer in (None, offer))


class Fleet:
    """`make` makes an attempt for a worker, cold or not; `taken` is told of each one that a worker took with it."""

    def __init__(
        self,
        clock: SimulatedClock,
        workers: Sequence[Worker],
        *,
        make: Callable[[Assignment, bool], SimulatedAttempt],
        taken: Callable[[SimulatedAttempt], None],
    ) -> None:
        self.workers = workers
        self._clock, self._make, self._taken = clock, make, taken
        self._queue: deque[Assignment] = deque()

    def follow(self, up_times: list[Iterator[UpTimes]], *, notice_ns: int | None) -> None:
        """The first workers come and go by these times from now on. `notice_ns` None: without a word."""
        for worker, times in zip(self.workers, up_times, strict=False):
            worker.up = False
            self._next_up(worker, times, self._clock.elapsed_ns(), notice_ns)

    def begin(self, assignment: Assignment) -> None:
        """A trial's next attempt takes the place of one that waits."""
        self._drop(assignment.trial)
        self._queue.append(assignment)
        wait_ns = assignment.not_before_ns - self._clock.elapsed_ns()
        if wait_ns > 0:
            self._clock.after(wait_ns, self.place)
        self.place()

    def place(self) -> None:
        """Waiting attempts whose time has come onto free workers of their kind, first come, first served."""
        while found := self._match():
            given, worker = found
            self._queue.remove(given)
            worker.attempt = self._make(given, worker.cold)
            worker.cold = False
            worker.attempt.start()

    def _match(self) -> tuple[Assignment, Worker] | None:
        for given in self.waiting():
            worker = next((one for one in self.workers if one.free_for(given.offer)), None)
            if worker is not None:
                return given, worker
        return None

    def waiting(self) -> list[Assignment]:
        """Attempts whose time has come, and that have no worker."""
        now = self._clock.elapsed_ns()
        return [one for one in self._queue if one.not_before_ns <= now]

    @property
    def is_wanted(self) -> bool:
        """Whether any attempt has no worker yet."""
        return bool(self._queue)

    def _drop(self, trial: str) -> Assignment | None:
        found = next((one for one in self._queue if one.trial == trial), None)
        if found is not None:
            self._queue.remove(found)
        return found

    def call_off(self, trial: str, state: Literal["paused", "stopped"]) -> Progress | None:
        """Takes an attempt that has no worker out of the queue: the end that its loop waits for."""
        assignment = self._drop(trial)
        if assignment is None:
            return None
        restored = assignment.restore_step
        return Progress(trial, assignment.attempt, state, Meter(), saved_step=restored)

    def crashed(self, attempt: SimulatedAttempt) -> None:
        """The worker of this attempt dies, and another one takes its place."""
        attempt.vanish()
        for worker in self.workers:
            if worker.attempt is attempt:
                worker.cold = True

    def end_all(self) -> None:
        """The driver died, and what it had begun ends with it."""
        self._queue.clear()
        for worker in self.workers:
            if worker.attempt is not None:
                worker.attempt.over = True
            worker.attempt, worker.cold = None, True

    # One worker's time: up, a notice, down, up again

    def _next_up(
        self, worker: Worker, times: Iterator[UpTimes], start_ns: int, notice_ns: int | None
    ) -> None:
        span = next(times, None)
        if span is None:
            return

        def come() -> None:
            worker.up, worker.leaving, worker.cold = True, False, True
            if span.end_ns is not None:
                left_ns = start_ns + span.end_ns - self._clock.elapsed_ns()
                worker.leaving = notice_ns is not None and left_ns <= notice_ns
                if notice_ns is not None and not worker.leaving:
                    self._clock.after(left_ns - notice_ns, lambda: self._notice(worker, notice_ns))
                self._clock.after(left_ns, go)
            self.place()

        def go() -> None:
            self._take_away(worker)
            self._next_up(worker, times, start_ns, notice_ns)

        self._clock.after(start_ns + span.begin_ns - self._clock.elapsed_ns(), come)

    def _notice(self, worker: Worker, left_ns: int) -> None:
        worker.leaving = True
        if worker.busy is not None:
            worker.busy.leave(left_ns)

    def _take_away(self, worker: Worker) -> None:
        attempt = worker.busy
        worker.up, worker.leaving, worker.attempt = False, False, None
        if attempt is not None:
            attempt.vanish()
            self._taken(attempt)
