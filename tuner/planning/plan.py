"""A plan: the cost, time and result expected of a job, the choices and their reasons, and the inputs behind the figures.

Fields have the names and units of the answer of `POST /v1/plans`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.domain.job import MarketPolicy
from tuner.domain.money import Money, Price
from tuner.domain.offer import Offer
from tuner.planning.pace_evidence import PaceEvidence

ComparisonName = Literal["grid_search", "random_search", "on_demand", "spot", "spot_with_fallback"]


@dataclass(frozen=True, slots=True)
class Spread:
    """An expected value with an 80 % interval."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PlannedRung:
    """The training from the previous rung to the rung at `step`. All figures are means over the simulated runs.

    `train_usd` = `steps` x `step_seconds` x `usd_per_hour`, with the seconds converted to hours.
    """

    step: int
    trials: float  #: The number of trials that reach this rung.
    steps: float  #: The number of steps that all trials together train between the two rungs.
    step_seconds: float
    usd_per_hour: Price
    train_usd: Money
    overhead_usd: Money  #: Everything paid that is not training, such as setup and checkpoints.
    gpu_hours: float

    @property
    def usd(self) -> Money:
        return self.train_usd + self.overhead_usd


@dataclass(frozen=True, slots=True)
class Chance:
    """How many of the simulated runs met a limit."""

    met: int
    runs: int

    @property
    def chance(self) -> float:
        return self.met / self.runs


@dataclass(frozen=True, slots=True)
class TargetChance:
    """The chance that the job reaches its target, from the same distribution as the interval of the expected best metric."""

    chance: float


@dataclass(frozen=True, slots=True)
class Alternative:
    """A machine and market that the job could run on, with the mean figures of its simulated runs."""

    instance_type: str
    market: MarketPolicy
    usd_per_hour: Price | None  #: What one running trial costs. None if it is not known.
    concurrency: int
    source: str
    #: Relative to the machine whose step times are known. None if the speed is not known.
    speed: float | None
    chosen: bool = False
    why_not: str | None = None  #: Why it was not simulated. The figures below are None then.
    usd: Money | None = None
    finish_seconds: float | None = None
    trials: int | None = None
    usd_per_1000_steps: Money | None = None
    in_time: Chance | None = None


@dataclass(frozen=True, slots=True)
class SettingChoice:
    """A setting of the job, and the value that the planner chose.

    If `chosen` differs from a value that was requested, it is advice: the plan is for the requested value.
    """

    what: Literal[
        "instance_type", "market", "checkpoint_interval", "fidelity_min", "reduction_factor", "concurrency"
    ]
    asked: str | None  #: The value that the job requests. None if the job leaves the setting to the service.
    chosen: str
    why: str


@dataclass(frozen=True, slots=True)
class SimulatedComparison:
    """What the job would cost with another search method or on another market, as means of a few runs."""

    name: ComparisonName
    usd: Money
    usd_low: Money  #: The cheapest of the runs.
    usd_high: Money  #: The most expensive of the runs.
    gpu_hours: float
    finish_seconds: float
    #: The number of trials. Another search method gets as many as the plan. Grid search gets fewer if its grid has fewer points.
    trials: int
    steps: int
    note: str


@dataclass(frozen=True, slots=True)
class PlannedCheckpoints:
    """The planned checkpoint interval, in steps and in seconds of training, and the reason for it."""

    every_steps: int
    every_seconds: float
    why: str


@dataclass(frozen=True)
class Inputs:
    """Everything that the figures depend on. The same inputs give the same plan."""

    evidence: PaceEvidence
    offers: tuple[Offer, ...]
    concurrency: int
    speed: float  #: The chosen machine's speed, relative to the machine whose step times are known.
    seed: int
    runs: int
    factors: tuple[float, ...]  #: One per run: the factor by which steps take longer than expected.
    scheduler: str
    sampler: str


@dataclass(frozen=True)
class JobPlan:
    """What the planner predicts for a job, and what it recommends."""

    usd: Spread
    gpu_hours: Spread
    finish_seconds: Spread
    trials: Spread  #: The number of trials that are started.
    rungs: tuple[PlannedRung, ...]
    ends: Mapping[str, int]  #: The number of runs that ended for each reason.
    deadline_seconds: float | None  #: The deadline or the wall-clock limit, the earlier of the two.
    in_time: Chance | None
    target: TargetChance | None
    #: The best value of the objective's metric that the budget buys, if the job does not end at its target. None if no run has a score.
    best: Spread | None
    checkpoints: PlannedCheckpoints
    choices: tuple[SettingChoice, ...]
    alternatives: tuple[Alternative, ...]
    comparisons: tuple[SimulatedComparison, ...]
    warnings: tuple[str, ...]
    inputs: Inputs
