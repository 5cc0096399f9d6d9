"""Inputs and outcomes of the simulations for a plan. The planner receives the simulator itself as a function."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.domain.job import JobSpec, StopReason
from tuner.domain.money import Cost, Money
from tuner.domain.offer import Offer
from tuner.domain.time import NS
from tuner.planning.evidence import Delays
from tuner.planning.paces import Paces

# Spot markets as (share of the time in which a machine was available, mean hours until its preemption). They are the deciles, by share, of
# the 30 AWS markets (zone and type) recorded for "Can't Be Late" (Wu et al., NSDI 2024) from October 2022 to May 2023.
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
    """The availability of spot machines in a simulation. Their lifetimes are exponentially distributed."""

    mean_ns: int | None  #: The mean lifetime. None means that they are never preempted.
    wait_ns: int = 120 * NS  #: The time from a preemption until another machine is available.
    notice_ns: int | None = 30 * NS  #: The time from the notice to the preemption.
    patience_ns: int = (
        60 * NS
    )  #: How long a trial with fallback waits for a spot machine before it uses an on-demand one.
    share: float = 1.0  #: The probability that a machine is available when the job starts.

    def of_market(self, place: float) -> "SpotLife":
        """Return the availability in one of the recorded markets. `place` is from 0 for the scarcest to below 1 for the best.

        If machines are never preempted, return the availability unchanged.
        """
        if self.mean_ns is None:
            return self
        share, hours = MARKETS[int(place * len(MARKETS))]
        mean_ns = round(hours * 3600) * NS
        return replace(self, mean_ns=mean_ns, wait_ns=round(mean_ns * (1 - share) / share), share=share)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A job to simulate."""

    spec: JobSpec  #: The job. Its fidelity counts simulated steps.
    offers: tuple[Offer, ...]  #: The offers that its trials may run on.
    concurrency: int
    paces: Paces
    factor: float  #: The factor by which steps take longer than expected.
    delays: Delays
    slice_ns: int  #: The length of a lease.
    coarse: float = 1  #: The number of the job's steps in a simulated step.
    spot: SpotLife | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RungUse:
    """The trials that reached a rung, and the time and money spent between the previous rung and this one."""

    trials: int
    steps: int
    train_ns: int
    train: Money  #: The money for steps that were not lost.
    overhead: (
        Money  #: The money for everything else: setup, loading, saving, waiting, and steps that were lost.
    )
    gpu_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation."""

    cost: Cost
    elapsed_ns: int
    reason: StopReason | None
    trials: int
    rungs: tuple[RungUse, ...]  #: One for each rung, and one for the last step.
    best: float | None  #: The best score. None if no trial has one.
    preemptions: int

    @property
    def steps(self) -> int:
        return sum(rung.steps for rung in self.rungs)


Simulate = Callable[[Scenario], Outcome]
