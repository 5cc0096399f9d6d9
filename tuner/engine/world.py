"""The ports through which a loop acts: workers, and clocks."""

from dataclasses import dataclass
from typing import Protocol

from tuner.domain.money import Rate
from tuner.domain.offer import Offer
from tuner.domain.space import Config
from tuner.domain.time import Instant


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attempt to begin, not before `not_before_ns` of the loop's clock. `restore_step` None: from nothing; `lease_ns` is what is
    paid for so far; `offer` is what kind of machine it is to run on, None: on any."""

    trial: str
    attempt: int
    config: Config
    until: int | None
    lease_ns: int
    restore_step: int | None
    not_before_ns: int = 0
    offer: Offer | None = None
    job_best: float | None = (
        None  #: The job's best score so far. A worker always saves a step that is better.
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job runs under, beside its spec: fixed when its driver starts. `rate` is that of the dearest machine that its trials
    may be given, which is what the job's decisions count with."""

    job: str
    rate: Rate
    concurrency: int
    slice_ns: int


class World(Protocol):
    """Orders are sent, not waited for; what comes of them arrives at the loop as progress. Must not raise."""

    def begin(self, assignment: Assignment) -> None: ...

    def go(self, trial: str, until: int | None, lease_ns: int, job_best: float | None) -> None:
        """Let an attempt train up to a step. The lease is that of the whole attempt; `job_best` is as in an assignment."""

    def park(self, trial: str) -> None: ...

    def finish(self, trial: str) -> None: ...

    def stop(self, trial: str, *, keep_best: bool) -> None:
        """Stop an attempt at once. With `keep_best` its worker may first save a step that is the job's best."""


class Clock(Protocol):
    def now(self) -> Instant:
        """Wall clock; may jump, so it dates records and measures nothing."""

    def elapsed_ns(self) -> int:
        """Monotonic."""
