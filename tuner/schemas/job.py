"""Request and answer models of jobs."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from tuner.domain.job import MAX_START
from tuner.domain.space import MAX_CHOICES
from tuner.schemas.base import Answer, Body, GpuHours, Request, Usd

Value = bool | int | float | str | None
Duration = int | float | str
Priority = Annotated[int, Field(ge=-1000, le=1000)]
MAX_CONSTRAINTS = 20
MarketName = Literal["on_demand", "spot", "spot_with_fallback"]


def _plain(choice: object) -> object:
    """Refuse a choice that is a list or an object, with a single error. Without this check, Pydantic's union would return one error for
    each type that a choice may have.
    """
    if isinstance(choice, list | dict):
        raise ValueError(
            "must be a number, text, true, false or null; for any other value, use a name as the choice and look up the value in the trainable"
        )
    return choice


Choice = Annotated[Value, BeforeValidator(_plain)]
# Only the first invalid value of a condition is reported, because a body has room for many conditions.
When = dict[str, Annotated[list[Choice], Field(max_length=MAX_CHOICES, fail_fast=True)]]


class Prior(Request):
    """The value of a parameter that you expect to be the best (`center`), and how sure you are (`confidence`). `high` means that the best
    value is expected close to `center`.
    """

    center: Value
    confidence: Literal["low", "medium", "high"] = "medium"


class FloatParameter(Request):
    """A parameter whose value is a number between `low` and `high`. With `step`, the values are `low`, `low + step` and so on, up to the
    last one that is at most `high`. `log` and `step` cannot be combined. `when` maps names of other parameters to lists of values: the
    parameter is active only if each of these other parameters is active and has a listed value.
    """

    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    step: float | None = None
    prior: Prior | None = None
    when: When = Field(default_factory=dict)


class IntParameter(Request):
    """A parameter whose value is a whole number between `low` and `high`. With `step`, the values are `low`, `low + step` and so on, up to
    the last one that is at most `high`. `log` and a `step` other than 1 cannot be combined. `when` maps names of other parameters to lists
    of values: the parameter is active only if each of these other parameters is active and has a listed value.
    """

    type: Literal["int"]
    low: int
    high: int
    log: bool = False
    step: int | None = None
    prior: Prior | None = None
    when: When = Field(default_factory=dict)


class CategoricalParameter(Request):
    """A parameter whose value is one of `choices`. `when` maps names of other parameters to lists of values: the parameter is active only
    if each of these other parameters is active and has a listed value.
    """

    type: Literal["categorical"]
    choices: Annotated[list[Choice], Field(max_length=MAX_CHOICES)]
    prior: Prior | None = None
    when: When = Field(default_factory=dict)


Parameter = Annotated[FloatParameter | IntParameter | CategoricalParameter, Field(discriminator="type")]


class Objective(Request):
    metric: str
    mode: Literal["max", "min"]
    target: float | None = None


class Constraint(Request):
    """The range in which a metric must stay: at least `min`, at most `max`, or both. The trainable must include this metric in each report
    of the objective's metric.
    """

    metric: str
    min: float | None = None
    max: float | None = None


class Fidelity(Request):
    """How many steps a trial may train, and the steps (rungs) at which trials are compared.

    If `max` is null, a trial trains until the trainable returns, and has no rungs. With `asha` and `asha_stopping`, the first rung is step
    `min`, and each further rung is the step of the previous rung times `reduction_factor`. With `auto`, the first rung is at a
    twelfth of `max`, but at least at `min`, and each further rung is at twice the steps of the one before. `reduction_factor` applies only to
    `asha`, `asha_stopping` and proxies.

    `proxies` makes early steps cheaper: for each name, such as `resolution` or `data_fraction`, it lists one value per rung. While a trial
    trains towards a rung, `run.fidelity(name)` returns the value of that rung. After the last rung, it returns the last value. With
    proxies, `auto` uses the rungs that `min` and `reduction_factor` define.
    """

    unit: str = "step"
    min: int = 1
    max: int | None = None
    reduction_factor: int = 3
    proxies: dict[str, Annotated[list[int | float], Field(fail_fast=True)]] | None = None


class Budget(Request):
    """The limits of a job. Each limit is hard.

    At least one of `usd` and `gpu_hours` is required. `wall_clock` counts only while the job is running. A limit that is null does not apply.

    `on_exhausted` says what happens when the budget is used up. With `finish`, the job ends with the best that the budget has paid for. With
    `pause`, the job keeps a checkpoint of every trial, and waits until the budget is raised and the job is resumed.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    wall_clock: Duration | None = None
    trials: int | None = None
    on_exhausted: Literal["finish", "pause"] = "finish"


class BudgetChange(Request):
    """New limits of a job's budget.

    Limits that are not given are left unchanged. A limit that is null is removed, but the job keeps `usd` or `gpu_hours`.
    """

    usd: float | None = None
    gpu_hours: float | None = None
    wall_clock: Duration | None = None
    trials: int | None = None
    on_exhausted: Literal["finish", "pause"] | None = None


class Resources(Request):
    """The resources that each trial uses, and the machines on which it may run.

    `cpus` and `gpus` are the numbers of CPUs and GPUs that a trial uses on each node. A trial runs on `nodes` machines at once, and all of
    them are billed to it. `processes_per_node` is the number of processes that a trial runs on each node, as with `torchrun`. `auto` means
    one process for each GPU, or a single process if the trial uses no GPUs.

    `market` says whether trials run on machines at the on-demand price, on spot machines, which the cloud may take away, or, with
    `spot_with_fallback`, on spot machines and on on-demand machines if spot is not available in time. If `instance_type` or `region` is null,
    any machine type or region of the cluster may be used. `max_concurrent_trials` limits how many trials run at once. If it is null, they
    may use the whole cluster, as far as the project's quota allows.

    A worker holds the resources of one trial. `pack` is the number of trials that may share a worker, so that they run at the same time on
    its CPUs and GPU. While several trials run on a worker, each is billed an equal share of the worker's time. More than one trial needs
    `nodes: 1` and a single process per trial. With `auto`, the service chooses the number when the job is submitted, and the job then
    shows the chosen number.
    """

    cpus: float = 1
    gpus: float = 0
    market: MarketName = "on_demand"
    instance_type: str | None = None
    region: str | None = None
    max_concurrent_trials: int | None = None
    nodes: int = 1
    processes_per_node: int | Literal["auto"] = "auto"
    pack: int | Literal["auto"] = 1


class Algorithm(Request):
    scheduler: Literal["auto", "asha", "asha_stopping", "none"] = "auto"
    sampler: Literal["auto", "tpe", "random", "gp", "cmaes", "qmc", "grid"] = "auto"
    seed: int = 0


class Plateau(Request):
    """Stop the job after it has spent `patience_usd` without improving its best result by at least `min_gain`."""

    patience_usd: float
    min_gain: float = 0.0


class Worth(Request):
    """Stop the job when it is expected to pay more than `usd_per_point` for the next point. A point is 0.01 of the metric.

    For an accuracy between 0 and 1, a point is one percentage point. When the job stops, the rest of its budget is released.
    """

    usd_per_point: float


class TrialStop(Request):
    """Limits at which a single trial is stopped. At least one of `patience`, `max_duration` and `max_cost_usd` is required.

    A trial is stopped when its best metric has not improved by at least `min_gain` within `patience` steps. It is also stopped if one more
    step would make the training of its configuration take longer than `max_duration` or cost more than `max_cost_usd`. The limits are
    checked after each step, and the next step is assumed to take as long as the trial's recent steps.
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

    The best of these configurations are trained with `seeds` seeds, including the seed of the search, and the others with fewer. A part of the
    budget is reserved for these trials. `confirm` requires the scheduler `auto`, `on_exhausted: finish` and `fidelity.max`. These
    trials are omitted if the job ends because of its target, a rule of `stop`, its wall-clock limit or a user. The service sets the seeds; a
    trainable that sets a seed of its own, such as `random_state=0`, trains the same model again.
    """

    candidates: int = 3
    seeds: int = 3


class Checkpoint(Request):
    """When a trial saves checkpoints, and how many of them are kept. The interval `auto` is chosen from the cost of a checkpoint."""

    interval: Duration = "auto"
    keep: int = 2


class Artifacts(Request):
    """The retention of a job's checkpoints and artifacts after the job has ended.

    `retain` names the trials whose files are kept: `all`, the `best` one, those on the Pareto `front`, or `none`. The files of all other
    trials are deleted one day after the job's end. If `for` is given, all remaining files are deleted when that time has passed since the
    job's end.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    retain: Literal["all", "best", "front", "none"] = "all"
    for_: Duration | None = Field(None, alias="for")


class WarmStart(Request):
    """Earlier jobs to learn from. If `checkpoints` is true, the best trials of those jobs are also continued from their checkpoints.

    A continued trial keeps a learning-rate schedule that its checkpoint holds, even if it was made for another `fidelity.max`.
    """

    jobs: list[str] = Field(default_factory=list, max_length=50)  # as in tuner.service.submit
    checkpoints: bool = False


class Teacher(Request):
    """A trial of an earlier job whose model the trials of this job learn from.

    `trial` is the id of the trial, or `best` for the trial with the best metric. `step` is the step of its checkpoint; null means the
    checkpoint with the best metric. The earlier job must have ended, and its files are kept until this job has ended. Answers contain the
    trial and the step that were chosen when this job was submitted, instead of `best` and null.
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
    """A configuration whose metric at the last step is already known. The configuration is not trained and costs nothing."""

    config: dict[str, Value]
    metric: float | None = None


def _kind_of_start(entry: Any) -> str:
    """Return whether an entry of `start` is a `result` (a configuration with a metric) or a bare `config`.

    An entry is a result if its `config` is an object. A parameter may also be named `config`, but its value is never an object.
    """
    config = entry.get("config") if isinstance(entry, dict) else getattr(entry, "config", None)
    return "result" if isinstance(config, dict) else "config"


Start = Annotated[
    Annotated[KnownResult, Tag("result")] | Annotated[dict[str, Value], Tag("config")],
    Discriminator(_kind_of_start),
]


class JobRequest(Body):
    """A tuning job. Give either `trainable`, as `module:function`, or `command`.

    `command` is the command line of a program. `{name}` in it is replaced by the value of a parameter or constant, `{seed}` by
    `algorithm.seed`, and `{steps}` by `fidelity.max`. After each step, the program appends a line of JSON to the file that the environment
    variable `TUNER_METRICS` names. If `metrics_pattern` is given, the metrics are read from the program's output instead. The pattern is
    a regular expression of Python with named groups.

    `package` is the id of an uploaded package that contains the trainable. Null means that the trainable's module is installed on the
    workers.

    `kind` determines the argument with which the trainable is called. Null means a dictionary with the configuration. `ray_tune` means a
    nested dictionary, in which the value of `model.width` is `config["model"]["width"]`. `optuna` means that the trainable is an Optuna
    objective, which is called with an Optuna trial.

    `artifacts` determines how long the job's files are kept after its end. Null means the service's own setting.

    `start` lists configurations that are tried first, in this order. An entry `{config: {...}, metric: 0.91}` has a known metric: it is not
    trained and costs nothing, and samplers that learn from results use it like the result of a complete training.

    `constraints` limit other metrics that the trainable reports. A report that satisfies all of them is feasible. Feasible trials are
    ranked before all others, and only feasible reports count for the best result, the Pareto front, the target and the plateau.

    `objectives` replaces `objective`, and may list a second objective, such as the latency. The trainable reports both metrics together.
    The search, the best result and the target use only the first objective. The Pareto front shows which values of both metrics were
    reached at which cost.
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
    )  # declared after `objectives`, because the validator of `objective` reads it
    search_space: dict[str, Parameter]
    budget: Budget
    constants: dict[str, Any] = Field(default_factory=dict)
    fidelity: Fidelity = Field(default_factory=Fidelity)
    resources: Resources = Field(default_factory=Resources)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    stop: Stop = Field(default_factory=Stop)
    confirm: Confirm | None = None
    start: list[Start] = Field(default_factory=list, max_length=MAX_START)
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
        """Refuse a job that has neither `objective` nor `objectives`. A field validator does this, so that the error is reported together
        with the errors of other fields.
        """
        if objective is None and info.data.get("objectives", ()) is None:
            raise PydanticCustomError("missing", "is required, unless the job has objectives")
        return objective

    def without_defaults(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults. A field that a later release adds therefore does not change the stored form of
        a request.
        """
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
    """A trial at one of its steps, with the metric that it reported there.

    `cost_to_train_usd` (also available as `cost_usd`), `gpu_hours` and `duration_seconds` are the cost and the time of training this
    configuration from the beginning to that step.
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
    """The price of a node, recorded when the job was admitted. `trial_usd_per_hour` is the price of the share of the node that one trial uses."""

    instance_type: str
    usd_per_hour: float
    cpus: float
    gpus: float
    trial_usd_per_hour: float
    source: str


class JobFacts(Answer):
    """The fields of a job except `best` and `artifacts`, because the client's `Job` has methods with these two names.

    If the job has a command, `trainable` is the command, shortened to 300 characters.

    `objectives` is null for a job with one objective. Otherwise its first entry is the same as `objective`.

    `queue_position` is 1 for the next job to be launched, and null for a job that does not wait in the queue. If the job waits for its time
    window, `next_opening` is the time at which the window opens. `rungs` lists the steps at which the job's scheduler compares trials,
    lowest first. `driver` is null while no driver runs the job.

    `confirmed_trial` is the trial that `best` without limits returns, if the job has ended and trained its best configurations with several
    seeds. It may be another trial than that of the best single result.

    `revision` changes only when the budget, the tags, the priority or `max_concurrent_trials` change. A PATCH with `If-Match: "<revision>"`
    is refused if any of these has changed since the revision was read.

    `warnings` is empty except in the answers to a change of the budget and to a resume. There it says if the job may spend the rest of its
    budget on the start of its workers, before the first step, and how much to add.
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
    confirmed_trial: str | None = None
    created_at: str
    started_at: str | None
    ended_at: str | None
    warnings: list[str] = []


class Job(JobFacts):
    """A job.

    `best` is the best result so far, or null before the first report that satisfies the job's constraints. `artifacts` determines which
    files are kept after the job's end, and for how long. Null means the service's own setting.
    """

    best: Best | None
    artifacts: dict[str, Any] | None = None


class JobPage(Answer):
    items: list[Job]
    next_cursor: str | None
