"""A plan: what is asked beside the job, and what is told of it before anything runs."""

from typing import Any, Literal

from pydantic import Field

from tuner.schemas.base import Answer, Request
from tuner.schemas.job import Duration, JobRequest, MarketName


class CandidateMachine(Request):
    """A kind of machine that the job could run on. What is left out is looked up in the price catalogue. `speed` is relative to the
    machine whose step times are known; `step_seconds` is what a step takes here."""

    instance_type: str
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    cpus: float | None = None
    gpus: float | None = None
    memory_gib: float | None = None
    gpu_memory_gib: float | None = None
    speed: float | None = None
    step_seconds: float | None = None
    market: MarketName | None = None
    cloud: str | None = None
    region: str | None = None


class CatalogueFilter(Request):
    """Which machines of the price catalogue come into question; the cheapest that a trial fits on are looked at."""

    cloud: str | None = None
    region: str | None = None
    accelerator: str | None = None
    instance_type: str | None = None


class MachineNeeds(Request):
    """What a machine has to have beside the trial's `resources`. `step_seconds`: the longest that a step may take."""

    memory_gib: float | None = None
    gpu_memory_gib: float | None = None
    step_seconds: float | None = None


class Pilot(Request):
    """A budget of its own, at least one of `usd` and `gpu_hours`, and at most how many configurations are trained for how many
    `steps`; the best of every four goes on six times as far."""

    usd: float | None = None
    gpu_hours: float | None = None
    trials: int = 12
    steps: int = 2


class Planning(Request):
    """What is known already, and what to choose from. `deadline` is a duration from now or a time; it ends no job, unlike
    `budget.wall_clock`. Without `step_seconds` earlier jobs of the trainable are gone by: those of `steps_from`, or the newest.
    `pilot` is what `POST /v1/pilots` runs; a plan goes by one that has been run."""

    step_seconds: float | None = None
    step_spread: float | None = None
    setup_seconds: float | None = None
    restore_seconds: float | None = None
    checkpoint_seconds: float | None = None
    steps: int | None = None
    steps_from: list[str] = Field(default_factory=list)
    deadline: Duration | None = None
    candidates: list[CandidateMachine] = Field(default_factory=list)
    catalogue: CatalogueFilter | None = None
    needs: MachineNeeds = Field(default_factory=MachineNeeds)
    speeds: dict[str, float] = Field(default_factory=dict)
    markets: list[MarketName] = Field(default_factory=list)
    pilot: Pilot | None = None
    seed: int = 0


class PlanRequest(JobRequest):
    planning: Planning = Field(default_factory=Planning)


class Range(Answer):
    """`expected` is the mean; eight of ten are expected from `low` to `high`."""

    expected: float
    low: float
    high: float


class PlanRung(Answer):
    """The way from the rung below to `step`, by means over the runs: `train_usd` is `steps` times `step_seconds` times `usd_per_hour`,
    `overhead_usd` all else that is paid for, and `usd` both. `trials`: how many come to `step`."""

    step: int
    trials: float
    steps: float
    step_seconds: float
    usd_per_hour: float
    train_usd: float
    overhead_usd: float
    usd: float
    gpu_hours: float


class PlanChance(Answer):
    """In how many of the runs it was met."""

    chance: float
    met: int
    runs: int


class PlanAlternative(Answer):
    """`why_not` says why a machine was left out. `usd_per_hour` is of one trial. Null: not known."""

    instance_type: str
    market: str
    usd_per_hour: float | None
    concurrency: int
    source: str
    speed: float | None
    chosen: bool
    why_not: str | None
    usd: float | None
    finish_seconds: float | None
    trials: int | None
    usd_per_1000_steps: float | None
    in_time: PlanChance | None


class PlanChoice(Answer):
    what: str
    asked: str | None
    chosen: str
    why: str


class PlanComparison(Answer):
    name: str
    usd: float
    usd_low: float
    usd_high: float
    gpu_hours: float
    finish_seconds: float
    trials: int
    steps: int
    note: str


class PlanCheckpoints(Answer):
    every_steps: int
    every_seconds: float
    why: str


class PlanEvidence(Answer):
    """What the step times are from: `pilot`, `history`, `given` or `none`. `doubt` and `step_spread` are standard deviations of
    logarithms: of how far the mean may be off, and of how configurations differ."""

    source: Literal["pilot", "history", "given", "none"]
    jobs: list[str]
    trials: int
    step_seconds: float
    doubt: float
    step_spread: float
    setup_seconds: float
    warming_seconds: float
    restore_seconds: float
    checkpoint_seconds: float
    instance_type: str | None
    knows_curves: bool
    digest: str


class PlanPrice(Answer):
    instance_type: str
    market: str
    usd_per_hour: float
    cpus: float
    gpus: float
    trial_usd_per_hour: float
    source: str


class PlanInputs(Answer):
    """All that the figures follow from. `factors`: in each run steps take so many times as long as expected."""

    evidence: PlanEvidence
    prices: list[PlanPrice]
    concurrency: int
    speed: float
    seed: int
    runs: int
    factors: list[float]
    scheduler: str
    sampler: str


class Plan(Answer):
    """What the job is expected to cost, to take and to find. `ends`: in how many runs it ended for which reason. `best` is null where
    no learning curves are known."""

    name: str
    usd: Range
    gpu_hours: Range
    finish_seconds: Range
    trials: Range
    rungs: list[PlanRung]
    ends: dict[str, int]
    deadline_seconds: float | None
    in_time: PlanChance | None
    target: PlanChance | None
    best: Range | None
    checkpoints: PlanCheckpoints
    choices: list[PlanChoice]
    alternatives: list[PlanAlternative]
    comparisons: list[PlanComparison]
    warnings: list[str]
    inputs: PlanInputs
    job: dict[str, Any]
