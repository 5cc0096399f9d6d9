"""The ports of a loop to the outside: `World` sends commands to workers, and `Clock` returns the time."""

from dataclasses import dataclass
from typing import Protocol

from tuner.domain.money import Rate
from tuner.domain.offer import Offer
from tuner.domain.space import Config
from tuner.domain.time import Instant


@dataclass(frozen=True, slots=True)
class Assignment:
    """The order to begin an attempt on a worker."""

    trial: str
    attempt: int
    config: Config
    until: int | None  #: The step to train to. None: the trial's last step.
    lease_ns: int  #: The length of its lease: the time that its hold pays for.
    restore_step: int | None  #: The checkpoint to continue from. None: none.
    not_before_ns: int = 0  #: The earliest start, on the loop's monotonic clock.
    offer: Offer | None = None  #: The kind of machine to run on. None: any.
    job_best: float | None = (
        None  #: The job's best score so far. A worker always saves a step that is better.
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions of a job beyond its spec, fixed when its driver starts."""

    job: str
    #: The rate of the most expensive machine that the job's trials may be given. Decisions estimate costs
    #: with it.
    rate: Rate
    concurrency: int
    slice_ns: int  #: The usual length of a lease.


class World(Protocol):
    """Send commands to workers without waiting for them.

    Results arrive at the loop as progress. Methods must not raise.
    """

    def begin(self, assignment: Assignment) -> None: ...

    def go(self, trial: str, until: int | None, lease_ns: int, job_best: float | None) -> None:
        """Let an attempt train up to the step `until`.

        `lease_ns` is the length of the attempt's whole lease, counted from its beginning. `job_best` is the
        job's best score so far.
        """

    def park(self, trial: str) -> None: ...

    def finish(self, trial: str) -> None: ...

    def stop(self, trial: str, *, keep_best: bool) -> None:
        """Stop an attempt at once. With `keep_best` its worker may first save a step that is the job's best."""


class Clock(Protocol):
    def now(self) -> Instant:
        """Return the wall clock's time. It may jump, so it is used for dates only, never to measure durations."""

    def elapsed_ns(self) -> int:
        """Return the time of a monotonic clock."""
