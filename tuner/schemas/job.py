"""A tuning job as it is asked for and as it is shown."""

from typing import Annotated, Any, Literal

from pydantic import Field

from tuner.schemas.base import Answer, Body, Request

Value = bool | int | float | str | None
When = dict[str, list[Value]]
Duration = int | float | str
Priority = Annotated[int, Field(ge=-1000, le=1000)]
MarketName = Literal["on_demand", "spot", "spot_with_fallback"]


class FloatParameter(Request):
    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    when: When = Field(default_factory=dict)


class IntParameter(Request):
    type: Literal["int"]
    low: int
    high: int
    log: bool = False
    when: When = Field(default_factory=dict)


class CategoricalParameter(Request):
    type: Literal["categorical"]
    choices: list[Value]
    when: When = Field(default_factory=dict)


Parameter = Annotated[FloatParameter | IntParameter | CategoricalParameter, Field(discriminator="type")]


class Objective(Request):
    metric: str
    mode: Literal["max", "min"]
    target: float | None = None


class Fidelity(Request):
    """`max` null: the trainable runs until it returns. Trials are compared at rungs a `reduction_factor` apart, from `min` on; the
    scheduler `auto` chooses its own from `min` on."""

    unit: str = "step"
    min: int = 1
    max: int | None = None
    reduction_factor: int = 3


class Budget(Request):
    """Each limit is hard. At least one of `usd` and `gpu_hours` is given; `wall_clock` counts while the job is running."""

    usd: float | None = None
    gpu_hours: float | None = None
    wall_clock: Duration | None = None
    trials: int | None = None
    on_exhausted: Literal["finish", "pause"] = "finish"


class BudgetChange(Request):
    """Only what is named changes."""

    usd: float | None = None
    gpu_hours: float | None = None
    wall_clock: Duration | None = None
    trials: int | None = None
    on_exhausted: Literal["finish", "pause"] | None = None


class Resources(Request):
    """What each trial takes of a node."""

    cpus: float = 1
    gpus: float = 0
    market: MarketName = "on_demand"
    instance_type: str | None = None
    region: str | None = None
    max_concurrent_trials: int | None = None


class Algorithm(Request):
    scheduler: Literal["auto", "asha", "asha_stopping", "none"] = "auto"
    sampler: Literal["auto", "tpe", "random", "gp", "cmaes", "qmc", "grid"] = "auto"
    seed: int = 0


class Plateau(Request):
    patience_usd: float
    min_gain: float = 0.0


class Stop(Request):
    plateau: Plateau | None = None


class Checkpoint(Request):
    interval: Duration = "auto"
    keep: int = 2


class WarmStart(Request):
    """`checkpoints`: the best trials of those jobs go on where they stood, too."""

    jobs: list[str] = Field(default_factory=list)
    checkpoints: bool = False


class Window(Request):
    """The job runs only while clocks in `timezone` (a name such as Europe/Berlin) show a time from `start` on and before `end`, on
    the next day where that is earlier."""

    start: str
    end: str
    timezone: str = "UTC"


class JobRequest(Body):
    """`package`: the uploaded one that the trainable comes from; null: it is a module of the workers' machines."""

    name: str
    trainable: str
    package: str | None = None
    objective: Objective
    search_space: dict[str, Parameter]
    budget: Budget
    constants: dict[str, Any] = Field(default_factory=dict)
    fidelity: Fidelity = Field(default_factory=Fidelity)
    resources: Resources = Field(default_factory=Resources)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    stop: Stop = Field(default_factory=Stop)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    warm_start: WarmStart = Field(default_factory=WarmStart)
    window: Window | None = None
    priority: Priority = 0
    tags: dict[str, str] = Field(default_factory=dict)

    def without_defaults(self) -> dict[str, Any]:
        """Return what differs from the default values, so that a field that is added later does not change it."""
        return self.model_dump(mode="json", exclude_defaults=True)


class JobPatch(Body):
    budget: BudgetChange | None = None
    tags: dict[str, str] | None = None
    priority: Priority | None = None


class Spend(Answer):
    usd: float
    gpu_hours: float
    held_usd: float


class Progress(Answer):
    """`trials` counts by state; `budget_used` is the fraction of the limit that is nearest to its end."""

    trials: dict[str, int]
    steps: int
    budget_used: float
    running_seconds: float


class Best(Answer):
    """A trial at a step. `cost_to_train_usd` (also named `cost_usd`), `gpu_hours` and `duration_seconds` are what training this
    configuration to there takes."""

    trial: str
    step: int
    metric: float | None
    config: dict[str, Any]
    cost_usd: float
    cost_to_train_usd: float
    gpu_hours: float
    duration_seconds: float
    metrics: dict[str, Any]
    checkpoint: str | None


class Links(Answer):
    ray_dashboard: str | None
    optuna_dashboard: str | None
    self: str


class Driver(Answer):
    """The process that conducts the job, one a launch: `version` is that of tuner. What it did not say is null."""

    launch: int
    version: str | None
    ray: str | None
    python: str | None


class NodePrice(Answer):
    """What a node costs, as taken down when the job was admitted, and what an hour of one trial does."""

    instance_type: str
    usd_per_hour: float
    cpus: float
    gpus: float
    trial_usd_per_hour: float
    source: str


class JobFacts(Answer):
    """`queue_position` is 1 for the next job to be launched; null for one that does not wait for its turn. `next_opening`: when the
    window opens that the job waits for. `rungs`: the steps at which its scheduler compares trials, lowest first. `revision` changes with budget,
    tags and priority, and with nothing else: a PATCH with `If-Match: "<revision>"` changes only what was seen. `driver` is null while the job has none."""

    id: str
    name: str
    state: str
    stop_reason: str | None
    detail: str
    trainable: str
    package: str | None = None
    objective: dict[str, Any]
    search_space: dict[str, Any]
    constants: dict[str, Any]
    fidelity: dict[str, Any]
    budget: dict[str, Any]
    resources: dict[str, Any]
    algorithm: dict[str, Any]
    stop: dict[str, Any]
    checkpoint: dict[str, Any]
    warm_start: dict[str, Any]
    window: dict[str, Any] | None
    tags: dict[str, str]
    priority: int
    revision: str
    queue_position: int | None
    next_opening: str | None
    concurrency: int
    rungs: list[int]
    price: NodePrice
    spend: Spend
    progress: Progress
    links: Links
    driver: Driver | None = None
    created_at: str
    started_at: str | None
    ended_at: str | None


class Job(JobFacts):
    """`best` is the best so far, null before the first report."""

    best: Best | None


class JobPage(Answer):
    items: list[Job]
    next_cursor: str | None
