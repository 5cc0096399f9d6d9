"""Request and answer models of jobs."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from tuner.schemas.base import Answer, Body, GpuHours, Request, Usd

Value = bool | int | float | str | None
When = dict[str, list[Value]]
Duration = int | float | str
Priority = Annotated[int, Field(ge=-1000, le=1000)]
MAX_CONSTRAINTS = 20
MarketName = Literal["on_demand", "spot", "spot_with_fallback"]


def _plain(choice: object) -> object:
    """Refuse a list or an object with one error. Pydantic's union would return one for each type that a choice may have."""
    if isinstance(choice, list | dict):
        raise ValueError(
            "must be a number, text, true, false or null; give this choice a name, and look its value up in the trainable"
        )
    return choice


Choice = Annotated[Value, BeforeValidator(_plain)]


class Prior(Request):
    """The value that you expect to be the best, and how sure you are. `high` means that the best is expected close to the center."""

    center: Value
    confidence: Literal["low", "medium", "high"] = "medium"


class FloatParameter(Request):
    """A number between `low` and `high`. With `step`, it is one of `low`, `low + step` and so on, up to the last that is at most `high`.
    `log` and `step` exclude each other. `when` lists values of other parameters by name: the parameter is active only if each of them
    is active with a listed value.
    """

    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    step: float | None = None
    prior: Prior | None = None
    when: When = Field(default_factory=dict)


class IntParameter(Request):
    """A whole number between `low` and `high`. With `step`, it is one of `low`, `low + step` and so on, up to the last that is at most
    `high`. `log` and a `step` other than 1 exclude each other. `when` lists values of other parameters by name: the parameter is
    active only if each of them is active with a listed value.
    """

    type: Literal["int"]
    low: int
    high: int
    log: bool = False
    step: int | None = None
    prior: Prior | None = None
    when: When = Field(default_factory=dict)


class CategoricalParameter(Request):
    """One of `choices`. `when` lists values of other parameters by name: the parameter is active only if each of them is active with a
    listed value.
    """

    type: Literal["categorical"]
    choices: list[Choice]
    prior: Prior | None = None
    when: When = Field(default_factory=dict)


Parameter = Annotated[FloatParameter | IntParameter | CategoricalParameter, Field(discriminator="type")]


class Objective(Request):
    metric: str
    mode: Literal["max", "min"]
    target: float | None = None


class Constraint(Request):
    """The range that a metric must keep: at least `min`, at most `max`, or both. The trainable reports it with each report of the
    objective's metric.
    """

    metric: str
    min: float | None = None
    max: float | None = None


class Fidelity(Request):
    """How long trials may train, and where they are compared.

    If `max` is null, the trainable runs until it returns. Trials are compared at rungs: the first is at `min`, and each next one is
    `reduction_factor` times as far. The scheduler `auto` chooses its own rungs, starting at `min`.

    `proxies` makes early steps cheaper: for each name, such as `resolution` or `data_fraction`, it lists one value per rung. A trial gets the
    value of the rung that it trains for from `run.fidelity(name)`. With proxies, `auto` uses the rungs of `min` and `reduction_factor`, too.
    """

    unit: str = "step"
    min: int = 1
    max: int | None = None
    reduction_factor: int = 3
    proxies: dict[str, list[int | float]] | None = None


class Budget(Request):
    """The limits of a job. Each limit is hard.

    At least one of `usd` and `gpu_hours` is required. `wall_clock` counts only while the job is running.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    wall_clock: Duration | None = None
    trials: int | None = None
    on_exhausted: Literal["finish", "pause"] = "finish"


class BudgetChange(Request):
    """New limits. Limits that are not given stay as they are."""

    usd: float | None = None
    gpu_hours: float | None = None
    wall_clock: Duration | None = None
    trials: int | None = None
    on_exhausted: Literal["finish", "pause"] | None = None


class Resources(Request):
    """The resources that each trial takes, and the machines it may run on.

    `cpus` and `gpus` are those of each node. A trial runs on `nodes` machines at once, and pays for all of them.
    `processes_per_node` is the number of processes that a trial has on each node, as with `torchrun`. `auto` is one process for each
    GPU, and one process without GPUs.
    """

    cpus: float = 1
    gpus: float = 0
    market: MarketName = "on_demand"
    instance_type: str | None = None
    region: str | None = None
    max_concurrent_trials: int | None = None
    nodes: int = 1
    processes_per_node: int | Literal["auto"] = "auto"


class Algorithm(Request):
    scheduler: Literal["auto", "asha", "asha_stopping", "none"] = "auto"
    sampler: Literal["auto", "tpe", "random", "gp", "cmaes", "qmc", "grid"] = "auto"
    seed: int = 0


class Plateau(Request):
    """Stop the job after it has spent `patience_usd` without improving its best result by at least `min_gain`."""

    patience_usd: float
    min_gain: float = 0.0


class Worth(Request):
    """Stop the job when a point, which is 0.01 of the metric, is expected to cost more than `usd_per_point`.

    For an accuracy between 0 and 1, a point is one percentage point. The rest of the budget is released.
    """

    usd_per_point: float


class TrialStop(Request):
    """Stop a trial after `patience` steps without a gain of more than `min_gain` over its best metric, or before training its
    configuration takes longer than `max_duration` or costs more than `max_cost_usd`. Each is checked after a step, with the length of
    the latest steps as that of the next one. At least one of them is required.
    """

    patience: int | None = None
    min_gain: float = 0.0
    max_duration: Duration | None = None
    max_cost_usd: float | None = None


class Stop(Request):
    plateau: Plateau | None = None
    worth: Worth | None = None
    trial: TrialStop | None = None


class Confirm(Request):
    """Train the best `candidates` configurations again with other seeds, at the end of the job and within its budget.

    `seeds` is the number of runs of the best ones, including the run of the search. Worse ones get fewer. The money for it is reserved. It needs the
    scheduler `auto`, `on_exhausted: finish` and `fidelity.max`. A job that ends by its target, by `stop`, by its wall clock or by a user does not
    confirm.
    """

    candidates: int = 3
    seeds: int = 3


class Checkpoint(Request):
    """When trials save checkpoints, and how many are kept. The interval `auto` is chosen from the cost of a checkpoint."""

    interval: Duration = "auto"
    keep: int = 2


class Artifacts(Request):
    """What is kept of the job's checkpoints and artifacts after it has ended.

    `retain` names the trials whose files are kept: `all`, the `best` one, those on the Pareto `front`, or `none`. The files of the
    others are deleted one day after the end. With `for`, those that are kept are deleted too, that long after the end.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    retain: Literal["all", "best", "front", "none"] = "all"
    for_: Duration | None = Field(None, alias="for")


class WarmStart(Request):
    """Earlier jobs to learn from. If `checkpoints` is true, the best trials of those jobs are also continued from their checkpoints."""

    jobs: list[str] = Field(default_factory=list)
    checkpoints: bool = False


class Teacher(Request):
    """A trial of an earlier job whose model the trials of this job learn from.

    `trial` is its id, or `best` for the one with the best metric. `step` is the step of its checkpoint; null means the one with the
    best metric. The job must have ended. Its files are kept until this job has ended. In an answer, `trial` and `step` are those that
    were chosen when this job was submitted.
    """

    job: str
    trial: str = "best"
    step: int | None = None


class Window(Request):
    """The time of day in which the job may run.

    The job runs while the clock in `timezone` (a name such as Europe/Berlin) is at or after `start` and before `end`. If `end` is
    earlier than `start`, the window ends on the next day.
    """

    start: str
    end: str
    timezone: str = "UTC"


class KnownResult(Request):
    """A configuration with the metric that it is known to reach at the last step. It is not trained and costs nothing."""

    config: dict[str, Value]
    metric: float | None = None


def _kind_of_start(entry: Any) -> str:
    """Return the form of an entry of `start`. No parameter has an object as its value, so a parameter may be named `config`."""
    config = entry.get("config") if isinstance(entry, dict) else getattr(entry, "config", None)
    return "result" if isinstance(config, dict) else "config"


Start = Annotated[
    Annotated[KnownResult, Tag("result")] | Annotated[dict[str, Value], Tag("config")],
    Discriminator(_kind_of_start),
]


class JobRequest(Body):
    """A tuning job. Give either `trainable`, as `module:function`, or `command`.

    `command` is the command line of a program. `{name}` in it stands for the value of a parameter or constant, `{seed}` for
    `algorithm.seed`, and `{steps}` for `fidelity.max`. The program appends a line of JSON for each step to the file that `TUNER_METRICS`
    names. With `metrics_pattern`, a regular expression of Python with named groups, its output is read instead.

    `package` is the id of an uploaded package that contains the trainable. If it is null, the trainable is a module that is installed
    on the workers.

    `kind` says what the trainable is called with. If it is null, that is a dictionary with the configuration. With `ray_tune`, the
    value of a name with dots is nested: `model.width` is `config["model"]["width"]`. With `optuna`, the trainable is an objective,
    which is called with a trial.

    `artifacts` says how long the job's files are kept after its end. If it is null, the service's own setting applies.
    `start` lists configurations that are tried first, in this order. An entry `{config: {...}, metric: 0.91}` with a known metric is not
    trained and costs nothing: samplers that learn take it as the result of a complete training.
    `constraints` limit other metrics that the trainable reports. A report that keeps all of them is feasible. Feasible trials are ranked
    before all others, and only feasible reports count for the best result, the Pareto front, the target and the plateau.
    `objectives` takes the place of `objective`, and may name a second one, such as the latency. The trainable reports both metrics together.
    The search, the best result and the target are those of the first. The Pareto front shows which values of both were reached at which cost.
    """

    name: str
    trainable: str | None = None
    command: str | None = None
    metrics_pattern: str | None = None
    package: str | None = None
    kind: Literal["ray_tune", "optuna"] | None = None
    objectives: list[Objective] | None = Field(None, min_length=1, max_length=2)
    objective: Objective | None = Field(
        None, validate_default=True
    )  # after `objectives`, which its validator reads
    search_space: dict[str, Parameter]
    budget: Budget
    constants: dict[str, Any] = Field(default_factory=dict)
    fidelity: Fidelity = Field(default_factory=Fidelity)
    resources: Resources = Field(default_factory=Resources)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    stop: Stop = Field(default_factory=Stop)
    confirm: Confirm | None = None
    start: list[Start] = Field(default_factory=list)
    constraints: list[Constraint] = Field(default_factory=list, max_length=MAX_CONSTRAINTS)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    artifacts: Artifacts | None = None
    warm_start: WarmStart = Field(default_factory=WarmStart)
    teacher: Teacher | None = None
    window: Window | None = None
    priority: Priority = 0
    tags: dict[str, str] = Field(default_factory=dict)

    @field_validator("objective")
    @classmethod
    def _is_given(cls, objective: Objective | None, info: ValidationInfo) -> Objective | None:
        """Refuse a job without any objective. As an error of the field, it is reported with the other errors of the request."""
        if objective is None and info.data.get("objectives", ()) is None:
            raise PydanticCustomError("missing", "is required, unless the job has objectives")
        return objective

    def without_defaults(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, so that a field that is added later does not change the stored request."""
        return self.model_dump(mode="json", exclude_defaults=True)


class JobPatch(Body):
    budget: BudgetChange | None = None
    tags: dict[str, str] | None = None
    priority: Priority | None = None
    max_concurrent_trials: int | None = None


class EnqueueRequest(Body):
    """A configuration of the job's search space, to be tried next. Every active parameter needs a value."""

    config: dict[str, Value]


class Spend(Answer):
    usd: float
    gpu_hours: float
    held_usd: float


class Progress(Answer):
    """The progress of a job.

    `trials` counts trials by state. `budget_used` is the used fraction of the limit that is closest to exhaustion.
    """

    trials: dict[str, int]
    steps: int
    budget_used: float
    running_seconds: float


class Best(Answer):
    """A trial at a step.

    `cost_to_train_usd` (also available as `cost_usd`), `gpu_hours` and `duration_seconds` are what it takes to train this configuration
    to that step.
    """

    trial: str
    step: int
    metric: float | None = Field(validation_alias="value")
    config: dict[str, Any]
    cost_usd: Usd = Field(validation_alias="cost")
    cost_to_train_usd: Usd = Field(validation_alias="cost")
    gpu_hours: GpuHours = Field(validation_alias="cost")
    duration_seconds: float
    metrics: dict[str, Any]
    checkpoint: str | None = Field(validation_alias="checkpoint_uri")


class Links(Answer):
    ray_dashboard: str | None
    optuna_dashboard: str | None
    self: str


class Driver(Answer):
    """The process that runs the job. Each launch starts a new one.

    `version` is the version of tuner. Versions that the driver did not report are null.
    """

    launch: int = Field(validation_alias="epoch")
    version: str | None = Field(validation_alias="tuner_version")
    ray: str | None = Field(validation_alias="ray_version")
    python: str | None = Field(validation_alias="python_version")


class NodePrice(Answer):
    """The price of a node, recorded when the job was admitted. `trial_usd_per_hour` is the price of one trial's share."""

    instance_type: str
    usd_per_hour: float
    cpus: float
    gpus: float
    trial_usd_per_hour: float
    source: str


class JobFacts(Answer):
    """A job without its best result and its retention, whose names are methods of the client's job.

    `trainable` of a job with a command is the command, shortened to 300 characters.

    `objectives` is null for a job with one objective. Its first entry is `objective`.

    `queue_position` is 1 for the next job to be launched, and null for a job that does not wait in the queue. `next_opening` is when
    the window opens that the job waits for. `rungs` lists the steps at which its scheduler compares trials, lowest first. `driver` is
    null while the job has none.

    `revision` changes with the budget, tags, priority and `max_concurrent_trials`, and with nothing else. A PATCH with `If-Match: "<revision>"` is refused if
    they have changed since the revision was read.
    """

    id: str
    name: str
    state: str
    stop_reason: str | None
    detail: str
    trainable: str
    command: str | None = None
    metrics_pattern: str | None = None
    package: str | None = None
    kind: str | None = None
    objective: dict[str, Any]
    objectives: list[dict[str, Any]] | None = None
    search_space: dict[str, Any]
    constants: dict[str, Any]
    fidelity: dict[str, Any]
    budget: dict[str, Any]
    resources: dict[str, Any]
    algorithm: dict[str, Any]
    stop: dict[str, Any]
    start: list[Any] = []
    constraints: list[dict[str, Any]] = []
    checkpoint: dict[str, Any]
    warm_start: dict[str, Any]
    teacher: dict[str, Any] | None = None
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
    """A job.

    `best` is the best result so far, or null before the first report that keeps the job's constraints. `artifacts` says which files
    are kept after the job's end, and for how long. If it is null, the service's own setting applies.
    """

    best: Best | None
    artifacts: dict[str, Any] | None = None


class JobPage(Answer):
    items: list[Job]
    next_cursor: str | None
