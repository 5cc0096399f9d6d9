"""The simulated workers of a run: which are up, which have a preemption notice, and which attempts wait for a worker.

An attempt that begins while no worker is free waits in a queue, as a real attempt waits for Ray to find a node. Waiting
is not billed. A worker with a notice gets no new attempt. Its current attempt ends as preempted, and is saved if there
is time. Work that is not saved is lost when the worker is taken away.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.checkpointing import Losses
from tuner.domain.cost import Meter
from tuner.domain.job import Resources
from tuner.domain.money import Rate
from tuner.domain.offer import Offer, WorkerMachine
from tuner.domain.time import Instant
from tuner.driver.fallback import placement_of
from tuner.driver.messages import WorkerMessage
from tuner.driver.placement import OFFER_WAIT_NS, AllowedPlaces, Placement
from tuner.driver.ports import Assignment
from tuner.simulator.journal import Committed, Tables
from tuner.simulator.traces import UpTimes
from tuner.simulator.worker import SimulatedAttempt, SimulatedClock


@dataclass(slots=True)
class SimulatedWorker:
    """A simulated worker on one machine."""

    offer: Offer | None = None  #: The offer of its machine. None means that it fits every offer.
    up: bool = True  #: Whether its machine is available.
    has_notice: bool = False  #: Whether it has a preemption notice.
    cold: bool = True  #: Whether it has not run an attempt since it last started.
    attempt: SimulatedAttempt | None = None

    @property
    def busy(self) -> SimulatedAttempt | None:
        return self.attempt if self.attempt is not None and not self.attempt.over else None

    @property
    def there(self) -> bool:
        """Whether the worker's machine is up and has no preemption notice, so that attempts may be placed on it."""
        return self.up and not self.has_notice

    def free_for(self, offer: Offer | None) -> bool:
        return self.there and self.busy is None and (offer is None or self.offer in (None, offer))


class Fleet:
    """All workers of a run, and the queue of attempts that wait for a worker.

    Args:
        clock: The simulated clock of the run.
        workers: The workers.
        make: Creates the attempt of an assignment. Its second argument is true if the worker has not run an attempt yet (it is cold).
        on_preempted: Called with each attempt that is lost because its worker was taken away.
    """

    def __init__(
        self,
        clock: SimulatedClock,
        workers: Sequence[SimulatedWorker],
        *,
        make: Callable[[Assignment, bool], SimulatedAttempt],
        on_preempted: Callable[[SimulatedAttempt], None],
    ) -> None:
        self.workers = workers
        self._clock, self._make, self._on_preempted = clock, make, on_preempted
        self._queue: deque[Assignment] = deque()

    def follow(self, up_times: list[Iterator[UpTimes]], *, notice_ns: int | None) -> None:
        """Schedule the times at which each worker starts and is preempted. Workers on on-demand machines are always up.

        Args:
            up_times: The periods in which each of the other workers is up, counted from now, in the order of the workers.
            notice_ns: The time from a worker's preemption notice to its preemption. None means no notice.
        """
        others = [worker for worker in self.workers if worker.offer is None or worker.offer.market == "spot"]
        for worker, times in zip(others, up_times, strict=True):
            worker.up = False
            self._next_up(worker, times, self._clock.elapsed_ns(), notice_ns)

    def begin(self, assignment: Assignment) -> None:
        """Queue an attempt. It replaces a waiting attempt of the same trial."""
        self._drop(assignment.trial)
        self._queue.append(assignment)
        wait_ns = assignment.not_before_ns - self._clock.elapsed_ns()
        if wait_ns > 0:
            self._clock.after(wait_ns, self.place)
        self.place()

    def place(self) -> None:
        """Start queued attempts on free workers of their offer, in the order of the queue.

        Attempts whose earliest start has not passed yet remain in the queue.
        """
        while placement := self._match():
            given, worker = placement
            self._queue.remove(given)
            worker.attempt = self._make(given, worker.cold)
            worker.cold = False
            worker.attempt.start()

    def _match(self) -> tuple[Assignment, SimulatedWorker] | None:
        for given in self.waiting():
            worker = next((candidate for candidate in self.workers if candidate.free_for(given.offer)), None)
            if worker is not None:
                return given, worker
        return None

    def waiting(self) -> list[Assignment]:
        """Return the queued attempts whose earliest start has passed."""
        now = self._clock.elapsed_ns()
        return [assignment for assignment in self._queue if assignment.not_before_ns <= now]

    @property
    def is_wanted(self) -> bool:
        """Whether a worker is wanted: at least one attempt is in the queue."""
        return bool(self._queue)

    def _drop(self, trial: str) -> Assignment | None:
        assignment = next(
            (queued_assignment for queued_assignment in self._queue if queued_assignment.trial == trial), None
        )
        if assignment is not None:
            self._queue.remove(assignment)
        return assignment

    def call_off(self, trial: str, state: Literal["paused", "stopped"]) -> WorkerMessage | None:
        """Remove the trial's waiting attempt from the queue, and return the final message of that attempt for the driver loop.

        The message has the state `state`. Return None if the trial has no waiting attempt.
        """
        assignment = self._drop(trial)
        if assignment is None:
            return None
        restored = assignment.restore_step
        return WorkerMessage(trial, assignment.attempt, state, Meter(), saved_step=restored)

    def crashed(self, attempt: SimulatedAttempt) -> None:
        """End an attempt because its worker died. A new worker, which has not run an attempt yet, takes the place of the dead one."""
        attempt.vanish()
        for worker in self.workers:
            if worker.attempt is attempt:
                worker.cold = True

    def end_all(self) -> None:
        """End all attempts and clear the queue, because the driver died."""
        self._queue.clear()
        for worker in self.workers:
            if worker.attempt is not None:
                worker.attempt.over = True
            worker.attempt, worker.cold = None, True

    # Each worker passes through these states again and again: up, with a preemption notice, down

    def _next_up(
        self, worker: SimulatedWorker, times: Iterator[UpTimes], start_ns: int, notice_ns: int | None
    ) -> None:
        span = next(times, None)
        if span is None:
            return

        def come() -> None:
            worker.up, worker.has_notice, worker.cold = True, False, True
            if span.end_ns is not None:
                left_ns = start_ns + span.end_ns - self._clock.elapsed_ns()
                worker.has_notice = notice_ns is not None and left_ns <= notice_ns
                if notice_ns is not None and not worker.has_notice:
                    self._clock.after(left_ns - notice_ns, lambda: self._notice(worker, notice_ns))
                self._clock.after(left_ns, go)
            self.place()

        def go() -> None:
            self._take_away(worker)
            self._next_up(worker, times, start_ns, notice_ns)

        self._clock.after(start_ns + span.begin_ns - self._clock.elapsed_ns(), come)

    def _notice(self, worker: SimulatedWorker, left_ns: int) -> None:
        worker.has_notice = True
        if worker.busy is not None:
            worker.busy.leave(left_ns)

    def _take_away(self, worker: SimulatedWorker) -> None:
        attempt = worker.busy
        worker.up, worker.has_notice, worker.attempt = False, False, None
        if attempt is not None:
            attempt.vanish()
            self._on_preempted(attempt)


# The markets of a simulated job: spot machines, on-demand machines that are always available, and their prices.

ONE = Resources()  # each trial takes a whole machine


@dataclass(frozen=True, slots=True)
class Markets:
    """The offers that a simulated job may use."""

    offers: tuple[Offer, ...]  #: The offers of the markets that the job may use, spot first.
    spot_wait_ns: int = (
        OFFER_WAIT_NS  #: A trial falls back to on-demand after this time without a spot machine.
    )
    wanted: Resources = ONE  #: The resources of a trial, which are those of a whole machine.

    @property
    def are_several(self) -> bool:
        return len(self.offers) > 1

    @property
    def rate(self) -> Rate:
        """The rate of a trial on the most expensive offer. The job uses it to estimate costs in advance."""
        rates = [offer.rate(self.wanted) for offer in self.offers]
        return max(rates, key=lambda rate: rate.price)

    def workers(self, count: int) -> list[SimulatedWorker]:
        """Create `count` workers for each offer."""
        return [SimulatedWorker(offer) for offer in self.offers for _ in range(count)]

    def placement(self, fleet: Fleet) -> Placement:
        """Return the placement policy of a real driver, for the machines of the fleet that are up."""
        return placement_of(
            AllowedPlaces(self.offers, self.wanted, lambda: machines(fleet.workers, self.wanted)),
            spot_wait_ns=self.spot_wait_ns,
        )


def machines(workers: Sequence[SimulatedWorker], wanted: Resources = ONE) -> list[WorkerMachine]:
    """Return the machines of the workers that are up and have no notice, in the form in which Ray lists machines.

    Each machine has the size of one trial, which is `wanted`.
    """
    there = (worker.offer for worker in workers if worker.offer is not None and worker.there)
    return [WorkerMachine(_labels(offer), wanted.cpus, wanted.gpus) for offer in there]


def _labels(offer: Offer) -> dict[str, str]:
    return {name: value for name, value in offer.labels if not value.startswith("!")}


@dataclass(slots=True)
class LossesSeen:
    """The number of a job's attempts by outcome, and the time that they had machines.

    It is computed from the simulated journal as `tuner.store.evidence` computes it from the database.
    """

    _machine_ns: int = 0
    _outcomes: dict[str, int] = field(default_factory=dict)
    _since: dict[tuple[str, int], Instant] = field(default_factory=dict)

    def recorded(self, tables: Tables, committed: Committed) -> None:
        for row in committed.attempts:
            key = row.trial, row.attempt
            if row.ended_at is None or row.end is None:
                if row.assigned_at is not None:
                    self._since[key] = row.assigned_at
                continue
            since = self._since.pop(key, row.ended_at)
            self._machine_ns += max(0, row.ended_at - since)
            self._outcomes[row.end] = self._outcomes.get(row.end, 0) + 1

    def at(self, now: Instant) -> Losses:
        machine_ns = self._machine_ns + sum(max(0, now - since) for since in self._since.values())
        return Losses(machine_ns, dict(self._outcomes))
