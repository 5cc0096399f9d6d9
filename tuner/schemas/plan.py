"""Request and answer models of plans and pilots: estimates of a job's cost and results before anything runs."""

from typing import Any, Literal

from pydantic import Field

from tuner.schemas.base import Answer, Request, Six, Usd
from tuner.schemas.job import Duration, JobRequest, MarketName


class CandidateMachine(Request):
    """A machine type that the job could run on. Fields that are not given are looked up in the price catalogue.

    `speed` is relative to the machine on which step times are known. `step_seconds` is the time of a step on the candidate itself.
    """

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
    """A filter for machines of the price catalogue. A plan considers the cheapest matching machines on which a trial fits."""

    cloud: str | None = None
    region: str | None = None
    accelerator: str | None = None
    instance_type: str | None = None


class MachineNeeds(Request):
    """Requirements on machines in addition to the trial's `resources`. `step_seconds` is the longest acceptable time of a step."""

    memory_gib: float | None = None
    gpu_memory_gib: float | None = None
    step_seconds: float | None = None


class Pilot(Request):
    """The limits of a pilot: its own budget, and the number of configurations and steps.

    At least one of `usd` and `gpu_hours` is required. At most `trials` configurations are trained for `steps` steps each; the best of
    every four is then trained for four times as many steps.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    trials: int = 12
    steps: int = 2


class Planning(Request):
    """What you know about the job already, and the machines that a plan may choose from.

    `deadline` is a duration from now or a time. Unlike `budget.wall_clock`, it does not end the job. Without `step_seconds`, step times
    come from the jobs in `steps_from`, or, if none are named, from the newest earlier jobs of the trainable. `pilot` sets the limits of
    `POST /v1/pilots`. A plan only uses a pilot that has already run.
    """

    step_seconds: float | None = None
    step_spread: float | None = None
    setup_seconds: float | None = None
    restore_seconds: float | None = None
    checkpoint_seconds: float | None = None
    steps: int | None = None
    steps_from: list[str] = Field(default_factory=list, max_length=20)  # as in tuner.service.plans
    deadline: Duration | None = None
    candidates: list[CandidateMachine] = Field(default_factory=list, max_length=50)
    catalogue: CatalogueFilter | None = None
    needs: MachineNeeds = Field(default_factory=MachineNeeds)
    speeds: dict[str, float] = Field(default_factory=dict, max_length=100)
    markets: list[MarketName] = Field(default_factory=list, max_length=10)
    pilot: Pilot | None = None
    seed: int = 0


class PlanRequest(JobRequest):
    planning: Planning = Field(default_factory=Planning)


class Range(Answer):
    """A range of outcomes. `expected` is the mean. Eight of ten outcomes are expected between `low` and `high`."""

    expected: Six
    low: Six
    high: Six


class PlanRung(Answer):
    """The training between the previous rung and `step`, as means over the simulated runs.

    `trials` is the number of trials that reach `step`. `train_usd` is `steps` × `step_seconds` × `usd_per_hour` / 3600. `overhead_usd` is
    the cost of everything but training, and `usd` the sum of both.
    """

    step: int
    trials: float
    steps: float
    step_seconds: float
    usd_per_hour: Usd
    train_usd: Usd
    overhead_usd: Usd
    usd: Usd
    gpu_hours: Six


class PlanChance(Answer):
    """The share of simulated runs that met a condition: `met` of `runs`."""

    chance: Six
    met: int
    runs: int


class PlanTarget(Answer):
    """The chance that the job reaches its target."""

    chance: Six


class PlanAlternative(Answer):
    """A machine that the plan considered.

    `why_not` says why a machine was ruled out. `usd_per_hour` is the price of one trial's share. Figures that are not known are null.
    """

    instance_type: str
    market: str
    usd_per_hour: Usd | None
    concurrency: int
    source: str
    speed: Six | None
    chosen: bool
    why_not: str | None
    usd: Usd | None
    finish_seconds: Six | None
    trials: int | None
    usd_per_1000_steps: Usd | None
    in_time: PlanChance | None


class PlanChoice(Answer):
    what: str
    asked: str | None
    chosen: str
    why: str


class PlanComparison(Answer):
    name: str
    usd: Usd
    usd_low: Usd
    usd_high: Usd
    gpu_hours: Six
    finish_seconds: Six
    trials: int
    steps: int
    note: str


class PlanCheckpoints(Answer):
    every_steps: int
    every_seconds: float
    why: str


class PlanEvidence(Answer):
    """The source of the step times: `pilot`, `history`, `given` or `none`.

    `doubt` and `step_spread` are standard deviations of the logarithm of the step time. `doubt` is the uncertainty of the mean step time,
    and `step_spread` the difference between configurations. `idle_seconds` is how long the worker of an attempt waits for the driver.
    """

    source: Literal["pilot", "history", "given", "none"]
    jobs: list[str]
    trials: int
    step_seconds: float
    doubt: Six
    step_spread: Six
    setup_seconds: float
    warming_seconds: float
    restore_seconds: float
    checkpoint_seconds: float
    idle_seconds: float
    instance_type: str | None
    knows_curves: bool
    digest: str


class PlanPrice(Answer):
    instance_type: str
    market: str
    usd_per_hour: Usd
    cpus: float
    gpus: float
    trial_usd_per_hour: Usd
    source: str


class PlanInputs(Answer):
    """All inputs of the simulation. For each simulated run, `factors` has the run's step times divided by the expected ones."""

    evidence: PlanEvidence
    prices: list[PlanPrice]
    concurrency: int
    speed: float
    seed: int
    runs: int
    factors: list[Six]
    scheduler: str
    sampler: str


class Plan(Answer):
    """The expected cost, duration and results of a job.

    `ends` counts the simulated runs by the reason for which they ended. `best` is null if no learning curves are known.
    """

    name: str
    usd: Range
    gpu_hours: Range
    finish_seconds: Range
    trials: Range
    rungs: list[PlanRung]
    ends: dict[str, int]
    deadline_seconds: Six | None
    in_time: PlanChance | None
    target: PlanTarget | None
    best: Range | None
    checkpoints: PlanCheckpoints
    choices: list[PlanChoice]
    alternatives: list[PlanAlternative]
    comparisons: list[PlanComparison]
    warnings: list[str]
    inputs: PlanInputs
    job: dict[str, Any]


class PilotPlanning(Planning):
    pilot: Pilot


class PilotRequest(JobRequest):
    planning: PilotPlanning
