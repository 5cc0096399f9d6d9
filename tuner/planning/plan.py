"""A plan: what a job is expected to cost, to take and to find, what was chosen and why, and what it rests on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.domain.job import Market, StopReason
from tuner.domain.money import Money, Price
from tuner.domain.offer import Offer
from tuner.planning.evidence import Evidence

ComparisonName = Literal["grid_search", "random_search", "on_demand", "spot", "spot_with_fallback"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean, and what eight of ten are expected within. Whole units of whatever it is of."""

    expected: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the objective's metric as it is reported; `low` and `high` bound eight of ten."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PlannedRung:
    """The way from the rung below to `step`. `trials`: how many come to it; `milli_trials` and `milli_steps` in thousandths, as means
    are. `train` = steps x `step_ns` x `price`; `usd` = `train` + `overhead`."""

    step: int
    milli_trials: int
    milli_steps: int
    step_ns: int
    price: Price
    train: Money
    overhead: Money
    gpu_ms: int

    @property
    def usd(self) -> Money:
        return self.train + self.overhead


@dataclass(frozen=True, slots=True)
class Chance:
    """How many of the runs met the limit."""

    met: int
    runs: int

    @property
    def share(self) -> float:
        return self.met / self.runs


@dataclass(frozen=True, slots=True)
class Alternative:
    """A machine and market that the job could run on. `price`: of one trial, None: unknown. `why_not`: why it was left out; all figures are None then. `speed`: against the
    machine whose step times are known. `usd_per_1000_steps`: what the money buys."""

    instance_type: str
    market: Market
    price: Price | None
    concurrency: int
    source: str
    speed: float | None
    chosen: bool = False
    why_not: str | None = None
    usd: Money | None = None
    finish_ns: int | None = None
    trials: int | None = None
    usd_per_1000_steps: Money | None = None
    in_time: Chance | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Something that can be set. `asked` None: left to the service. Where `chosen` differs from what was asked it is advice, and the
    plan is for what was asked."""

    what: Literal[
        "instance_type", "market", "checkpoint_interval", "fidelity_min", "reduction_factor", "concurrency"
    ]
    asked: str | None
    chosen: str
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Another way to do it, by means of a few runs. `trials` are as many as the plan's, where the way is one of searching. `low` and
    `high` are of the runs."""

    name: ComparisonName
    usd: Money
    gpu_ms: int
    finish_ns: int
    trials: int
    note: str
    low: Money
    high: Money
    steps: int


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How often to save, in steps and time."""

    every_steps: int
    every_ns: int
    why: str


@dataclass(frozen=True)
class Inputs:
    """All that the figures follow from: the same inputs give the same plan."""

    evidence: Evidence
    offers: tuple[Offer, ...]
    trial_price: Price
    concurrency: int
    speed: float
    seed: int
    runs: int
    factors: tuple[float, ...]
    scheduler: str
    sampler: str


@dataclass(frozen=True)
class Plan:
    """`ends`: of how many runs each reason was the end. `trials`: begun."""

    cost: Spread
    gpu_ms: Spread
    finish_ns: Spread
    trials: Spread
    rungs: tuple[PlannedRung, ...]
    ends: Mapping[StopReason, int]
    deadline_ns: int | None
    in_time: Chance | None
    target: Chance | None
    best: Scores | None
    checkpointing: Checkpointing
    choices: tuple[Choice, ...]
    alternatives: tuple[Alternative, ...]
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...]
    inputs: Inputs
