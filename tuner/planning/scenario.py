"""What is simulated for a plan, and what came of it. The simulator itself is handed to the planner as a function."""

from collections.abc import Callable
from dataclasses import dataclass

from tuner.domain.job import JobSpec, StopReason
from tuner.domain.money import Cost, Money
from tuner.domain.offer import Offer
from tuner.domain.time import NS
from tuner.planning.evidence import Delays
from tuner.planning.paces import Paces


@dataclass(frozen=True, slots=True)
class SpotLife:
    """How spot machines come and go: exponential lives of `mean_ns` (None: they stay), another machine after `wait_ns`, a word
    `notice_ns` before. Without one for `patience_ns` a trial that may goes on demand."""

    mean_ns: int | None
    wait_ns: int = 120 * NS
    notice_ns: int | None = 30 * NS
    patience_ns: int = 60 * NS


@dataclass(frozen=True, slots=True)
class Scenario:
    """A job as it is simulated. `offers` are what its trials may run on; `factor` how many times as long as expected its steps take;
    `coarse`: so many steps of the job are one of the simulation, whose spec counts in those."""

    spec: JobSpec
    offers: tuple[Offer, ...]
    concurrency: int
    paces: Paces
    factor: float
    delays: Delays
    slice_ns: int
    coarse: float = 1
    spot: SpotLife | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RungUse:
    """Of a rung: how many trials came to it, and what the way there from the rung below took. `train` is of steps that count;
    `overhead` everything else that was paid for: setup, loading, saving, waiting, and steps that were lost."""

    trials: int
    steps: int
    train_ns: int
    train: Money
    overhead: Money
    gpu_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rungs`: of each rung, and of the last step at the end. `best`: a score, and None where there is none."""

    cost: Cost
    elapsed_ns: int
    reason: StopReason | None
    trials: int
    rungs: tuple[RungUse, ...]
    best: float | None
    preemptions: int

    @property
    def steps(self) -> int:
        return sum(rung.steps for rung in self.rungs)


Simulate = Callable[[Scenario], Outcome]
