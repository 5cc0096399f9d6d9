"""What is simulated for a plan, and what came of it. The simulator itself is handed to the planner as a function."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.domain.job import JobSpec, StopReason
from tuner.domain.money import Cost, Money
from tuner.domain.offer import Offer
from tuner.domain.time import NS
from tuner.planning.evidence import Delays
from tuner.planning.paces import Paces

# Markets differ: the share of the time that a machine was there, and the mean hours until it was taken away. Deciles of the 30 markets
# (zone and type) of AWS that were watched for "Can't Be Late" (Wu et al., NSDI 2024), October 2022 to May 2023, by that share.
MARKETS = (
    (0.17, 0.7),
    (0.33, 1.6),
    (0.42, 1.8),
    (0.47, 1.5),
    (0.59, 2.0),
    (0.68, 4.3),
    (0.73, 2.3),
    (0.79, 3.8),
    (0.88, 6.1),
    (0.91, 10.5),
)


@dataclass(frozen=True, slots=True)
class SpotLife:
    """How spot machines come and go: exponential lives of `mean_ns` (None: they stay), another machine after `wait_ns`, a word
    `notice_ns` before; they are there for `share` of the time, and so when the job begins. Without one for `patience_ns` a trial that may goes on demand."""

    mean_ns: int | None
    wait_ns: int = 120 * NS
    notice_ns: int | None = 30 * NS
    patience_ns: int = 60 * NS
    share: float = 1.0

    def of_market(self, place: float) -> "SpotLife":
        """In one of the recorded markets, 0 the scarcest, below 1 the best."""
        if self.mean_ns is None:
            return self
        share, hours = MARKETS[int(place * len(MARKETS))]
        mean_ns = round(hours * 3600) * NS
        return replace(self, mean_ns=mean_ns, wait_ns=round(mean_ns * (1 - share) / share), share=share)


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
