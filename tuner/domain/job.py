"""A job: one tuning request, its states and the transitions between them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from tuner.domain.budget import Budget
from tuner.domain.calendar import Window
from tuner.domain.command import PROGRAM_ENTRY, command_faults, name_of, pattern_faults
from tuner.domain.errors import MAX_FAULTS, Conflict, Fault
from tuner.domain.ids import PACKAGE_ID
from tuner.domain.listing import MARKETS, Market
from tuner.domain.objective import (
    SERVING_METRICS,
    Constraint,
    Fidelity,
    Objective,
    constraint_faults,
    lacking,
    violation,
)
from tuner.domain.retention import RetentionPolicy
from tuner.domain.space import Config, Space, Value

JobState = Literal["queued", "running", "paused", "succeeded", "cancelled", "failed"]
StopReason = Literal[
    "budget_usd",
    "budget_gpu_hours",
    "wall_clock",
    "trials",
    "target",
    "plateau",
    "worth",
    "space_exhausted",
    "confirmed",
    "cancelled",
    "error",
]
MarketPolicy = Literal["on_demand", "spot", "spot_with_fallback"]
SchedulerName = Literal["auto", "asha", "asha_stopping", "none"]
TrainableKind = Literal["ray_tune", "optuna"]
MAX_CONCURRENT_TRIALS = 10_000
MAX_START = (
    1000  # the most configurations that a user may give at once, and the most that may wait to be tried
)
MAX_CONFIRM = 20  # the most configurations to confirm, and the most seeds of each
SamplerName = Literal["auto", "tpe", "random", "gp", "cmaes", "qmc", "grid"]

MAX_NODES = 64  # the most nodes of a trial
MAX_PROCESSES = 256  # the most processes of a trial on each node
MAX_PACK = 64  # the most trials that share a worker
# The value of `pack` in a request with `pack: auto`. The service replaces it before it records the job.
AUTO_PACK = 0
PACK_RANGE = f"must be auto, or between 1 and {MAX_PACK}"
JOB_STATES: tuple[JobState, ...] = get_args(JobState)
FINAL: frozenset[JobState] = frozenset({"succeeded", "cancelled", "failed"})
# A job in one of these states cannot be resumed.
PERMANENT: frozenset[JobState] = frozenset({"cancelled", "failed"})
COST_LIMITS: frozenset[StopReason] = frozenset({"budget_usd", "budget_gpu_hours"})
BUDGET_LIMITS: frozenset[StopReason] = COST_LIMITS | {"wall_clock", "trials"}
UNFINISHED: tuple[JobState, ...] = tuple(state for state in JOB_STATES if state not in FINAL)
MOVES: Mapping[JobState, frozenset[JobState]] = {
    "queued": frozenset({"running", "paused", "cancelled", "failed"}),
    "running": frozenset({"paused", "succeeded", "cancelled", "failed"}),
    # A job that was paused before it began returns to the queue.
    "paused": frozenset({"queued", "running", "cancelled", "failed"}),
    "succeeded": frozenset({"running"}),  # after a top-up and a resume
    "cancelled": frozenset(),
    "failed": frozenset(),
}


def check_move(old: JobState, new: JobState) -> None:
    """Raise Conflict if a job cannot change from state `old` to state `new`."""
    if new not in MOVES[old]:
        raise Conflict(f"a job that is {old} cannot become {new}")


def markets_of(policy: MarketPolicy) -> tuple[Market, ...]:
    """Return the markets of the machines that trials may use."""
    return MARKETS if policy == "spot_with_fallback" else (policy,)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of each trial, and the machines on which it may run."""

    cpus: float = 1  #: CPUs of each node.
    gpus: float = 0  #: GPUs of each node.
    market: MarketPolicy = "on_demand"
    instance_type: str | None = None  #: None if any machine type of the cluster may be used.
    region: str | None = None  #: None if any region of the cluster may be used.
    max_concurrent_trials: int | None = None
    nodes: int = field(default=1, metadata={"new": True})  #: The number of nodes on which each trial runs.
    #: The processes of a trial on each node. None means one for each whole GPU, and at least one.
    processes_per_node: int | None = field(default=None, metadata={"new": True})
    #: How many trials share the resources of one worker: each worker runs up to this many trials at the same time.
    pack: int = field(default=1, metadata={"new": True})

    @property
    def processes(self) -> int:
        """The number of processes of a trial on each node."""
        return max(1, int(self.gpus)) if self.processes_per_node is None else self.processes_per_node

    @property
    def on_one_node(self) -> "Resources":
        """These resources on a single node, without sharing them. Exports, and tests of restoring a checkpoint, run in this way for all jobs."""
        return replace(self, nodes=1, pack=1)

    @property
    def can_be_packed(self) -> bool:
        """Whether several trials can share a worker. Each trial must then be a single process on a single node."""
        return self.nodes == 1 and self.processes == 1

    def workers(self, trials: int) -> int:
        """Return how many workers this many trials need if each worker runs as many of them as it may."""
        return -(-trials // self.pack)

    @property
    def all_cpus(self) -> float:
        """The CPUs of a trial on all its nodes."""
        return self.cpus * self.nodes

    @property
    def all_gpus(self) -> float:
        """The GPUs of a trial on all its nodes."""
        return self.gpus * self.nodes

    def faults(self) -> list[Fault]:
        faults, most = [], MAX_CONCURRENT_TRIALS
        if not 0.001 <= self.cpus <= 10_000:
            faults.append(Fault("/resources/cpus", "must be between 0.001 and 10000"))
        if not 0 <= self.gpus <= 1000:
            faults.append(Fault("/resources/gpus", "must be between 0 and 1000"))
        elif self.gpus > 1 and self.gpus != int(self.gpus):
            faults.append(Fault("/resources/gpus", "must be a whole number, or a fraction below 1"))
        elif 0 < self.gpus < 0.001:
            faults.append(Fault("/resources/gpus", "must be 0 or at least 0.001"))
        if self.max_concurrent_trials is not None and not 1 <= self.max_concurrent_trials <= most:
            faults.append(Fault("/resources/max_concurrent_trials", f"must be between 1 and {most}"))
        return [*faults, *self._process_faults(), *self._pack_faults()]

    def _process_faults(self) -> list[Fault]:
        faults, each = [], self.processes_per_node
        if not 1 <= self.nodes <= MAX_NODES:
            faults.append(Fault("/resources/nodes", f"must be between 1 and {MAX_NODES}"))
        if each is not None and not 1 <= each <= MAX_PROCESSES:
            faults.append(
                Fault("/resources/processes_per_node", f"must be auto, or between 1 and {MAX_PROCESSES}")
            )
        elif each is not None and each > 1 and 0 < self.gpus < each:
            detail = f"must be at most {max(1, int(self.gpus))}, because each process uses a GPU of its own"
            faults.append(Fault("/resources/processes_per_node", detail))
        return faults

    def _pack_faults(self) -> list[Fault]:
        at = "/resources/pack"
        if self.pack == AUTO_PACK:
            return []
        if not 1 <= self.pack <= MAX_PACK:
            return [Fault(at, PACK_RANGE)]
        if self.pack == 1 or self.can_be_packed:
            return []
        if self.nodes != 1:
            return [
                Fault(at, "must be 1 if each trial runs on several nodes; set nodes to 1, or leave out pack")
            ]
        detail = (
            f"must be 1, because each trial starts {self.processes} processes: a trial with several GPUs starts one process for each GPU; "
            "set gpus or processes_per_node to 1, or leave out pack"
        )
        return [Fault(at, detail)]


@dataclass(frozen=True, slots=True)
class Algorithm:
    scheduler: SchedulerName = "auto"
    sampler: SamplerName = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Plateau:
    """The plateau rule: the job stops once it has spent `patience_micro_usd` without improving its best metric by `min_gain`."""

    patience_micro_usd: int
    min_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Confirm:
    """The confirmation: the best configurations are trained again with other seeds, from a reserved part of the budget."""

    candidates: int  #: How many configurations are trained again.
    seeds: int  #: With how many seeds the best candidate is trained, including the seed of the search.
    #: Whether the candidates are different configurations. Jobs of earlier releases do not have this rule, and no events record the choice
    #: of a repeat, so a driver that continues such a job must choose as before.
    distinct: bool = field(default=False, metadata={"new": True})

    def faults(self) -> list[Fault]:
        limits = {"candidates": (self.candidates, 1), "seeds": (self.seeds, 2)}
        return [
            Fault(f"/confirm/{name}", f"must be between {least} and {MAX_CONFIRM}")
            for name, (count, least) in limits.items()
            if not least <= count <= MAX_CONFIRM
        ]


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """Limits at which a single trial stops. None means no limit.

    The limits of duration and cost are compared with the totals of training the trial's configuration since the first step.
    """

    patience: int | None = (
        None  #: How many steps may pass without a gain of at least `min_gain` over the trial's best metric.
    )
    min_gain: float = 0.0
    max_duration_ns: int | None = None
    max_cost_micro_usd: int | None = None

    def faults(self) -> list[Fault]:
        at, faults = "/stop/trial", []
        limits = {
            "patience": self.patience,
            "max_duration": self.max_duration_ns,
            "max_cost_usd": self.max_cost_micro_usd,
        }
        faults += [
            Fault(f"{at}/{name}", "must be more than 0")
            for name, limit in limits.items()
            if limit is not None and limit <= 0
        ]
        if all(limit is None for limit in limits.values()):
            faults.append(Fault(at, f"give at least one of {', '.join(limits)}"))
        if not 0 <= self.min_gain < math.inf:
            faults.append(Fault(f"{at}/min_gain", "must be 0 or more"))
        return faults


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A configuration that the user gives.

    Without a metric, it is tried before any configuration that the sampler suggests. With a metric, it is not tried: the sampler learns
    from it as from the result of a complete training. Only in a space with very many configurations, a sampler may still suggest it.
    """

    config: Config
    metric: float | None = None  #: The objective's metric after the last step. None if it is not known.


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """How often checkpoints are saved, and how many are kept."""

    interval_ns: int | None = None  #: None if the worker chooses the interval from the cost of a checkpoint.
    keep: int = 2


@dataclass(frozen=True, slots=True)
class Teacher:
    """A trial of an earlier job whose model the trials of this job learn from (distillation)."""

    job: str
    trial: str = "best"  #: The trial's id, or `best` in a request. Admission replaces `best` by an id.
    #: The step of the teacher's checkpoint. None in a request means the checkpoint with the best metric.
    step: int | None = None
    attempt: int | None = None  #: The attempt that saved the checkpoint. None until the job is admitted.


@dataclass(frozen=True)
class JobSpec:
    """The request of a job. It never changes; changes of the budget and the tags are stored separately."""

    name: str
    trainable: str  #: `module:function`, or the name of the command (`name_of`). Jobs with the same trainable are compared.
    objective: Objective
    space: Space
    budget: Budget
    constants: Mapping[str, object] = field(default_factory=dict)
    fidelity: Fidelity = field(default_factory=Fidelity)
    resources: Resources = field(default_factory=Resources)
    algorithm: Algorithm = field(default_factory=Algorithm)
    plateau: Plateau | None = None
    trial_limits: TrialLimits | None = field(default=None, metadata={"new": True})
    #: Configurations to try first, and known results.
    start: tuple[StartPoint, ...] = field(default=(), metadata={"new": True})
    #: Ranges of metrics that a feasible configuration must keep.
    constraints: tuple[Constraint, ...] = field(default=(), metadata={"new": True})
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    warm_start_jobs: tuple[str, ...] = ()
    warm_start_checkpoints: bool = False
    window: Window | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    #: The uploaded package of the trainable. None if the trainable is a module on the workers' machines.
    package: str | None = field(default=None, metadata={"new": True})
    #: The command line of the program that each trial runs. None if the trainable is a function.
    command: str | None = field(default=None, metadata={"new": True})
    #: A regular expression that finds metrics in the program's output. None if the program writes them to a file.
    metrics_pattern: str | None = field(default=None, metadata={"new": True})
    #: The argument with which the trainable is called. None means a dictionary with the configuration, and "optuna" a trial of Optuna.
    #: "ray_tune" means a nested dictionary, in which the parameter or constant `model.width` is `config["model"]["width"]`.
    kind: TrainableKind | None = field(default=None, metadata={"new": True})
    #: How long checkpoints and artifacts are kept after the job has ended. If it is None, the service's setting applies.
    retention: RetentionPolicy | None = field(default=None, metadata={"new": True})
    #: The trial whose checkpoint every trial can read. None if there is none.
    teacher: Teacher | None = field(default=None, metadata={"new": True})
    #: The worth of a point (0.01 of the metric) in micro-dollars. The job stops once the next point is expected to cost more. None if
    #: the job does not stop for this reason.
    worth_micro_usd: int | None = field(default=None, metadata={"new": True})
    #: How the best configurations are trained again with other seeds. None if they are not trained again.
    confirm: Confirm | None = field(default=None, metadata={"new": True})
    #: The second objective. Only the Pareto front considers it. The search and the best result depend on `objective` alone.
    second: Objective | None = field(default=None, metadata={"new": True})

    @property
    def entry(self) -> str:
        """The function that a worker calls: the trainable, or the function that runs the command of the job."""
        return self.trainable if self.command is None else PROGRAM_ENTRY

    def rank(self, step: int, value: float) -> tuple[int, float]:
        """Return the key by which reports are compared: the stage of the step, then the score of the metric. Greater is better.

        A proxy is a setting with a cheaper value in early steps. A stage is a range of steps with the same values of the proxies. The stage
        comes first in the key, because metrics of different stages are not comparable.
        """
        return self.fidelity.stage(step), self.objective.score(value)

    @property
    def side_metrics(self) -> list[str]:
        """Return the metrics of the constraints and of the second objective."""
        second = [] if self.second is None else [self.second.metric]
        return [*(limit.metric for limit in self.constraints), *second]

    @property
    def serving_metrics(self) -> tuple[str, ...]:
        """Return the metrics in `SERVING_METRICS` that an objective or a constraint names."""
        return tuple(name for name in SERVING_METRICS if name in (self.objective.metric, *self.side_metrics))

    def lacks(self, metrics: Mapping[str, object]) -> str | None:
        """Return the first of `side_metrics` that a report lacks, or None if it has all of them."""
        return lacking(self.side_metrics, metrics)

    def violation(self, metrics: Mapping[str, object]) -> float | None:
        """Return by how much a report violates the constraints, or 0 if it is feasible.

        Return None if the report lacks one of `side_metrics`.
        """
        return None if self.lacks(metrics) is not None else violation(self.constraints, metrics)

    @property
    def first_configs(self) -> list[Config]:
        """Return the configurations that are tried first, in order."""
        return [point.config for point in self.start if point.metric is None]

    def begin_config(self, config: Mapping[str, Value]) -> dict[str, object]:
        """Return the dictionary with which a worker calls the function `entry`.

        It contains the constants and the values of the configuration, which override constants. If the job has a command, the dictionary
        contains the command and these values.
        """
        values = config_values(config, self.constants, self.kind)
        return (
            values
            if self.command is None
            else program_config(self.command, self.metrics_pattern, self.fidelity.max, values)
        )

    def faults(self) -> list[Fault]:
        """Return every error of the request that can be found without the database, the cluster or other jobs."""
        faults = [*_name_faults(self.name), *self._code_faults(), *_package_faults(self.package)]
        faults += self._objective_faults()
        space_faults = self.space.faults()
        faults += space_faults
        for part in (self.fidelity, self.budget, self.resources):
            faults += part.faults()
        faults += constraint_faults(self.constraints)
        faults += self.window.faults() if self.window is not None else []
        faults += self.retention.faults() if self.retention is not None else []
        faults += self.trial_limits.faults() if self.trial_limits is not None else []
        faults += self._value_faults()
        faults += self._start_faults() if not space_faults else []
        if self.resources.gpus == 0 and self.budget.bound_by_gpus_alone:
            faults.append(Fault("/budget/usd", "give usd: trials without GPUs never use up gpu_hours"))
        if not -(2**63) <= self.algorithm.seed < 2**63:
            faults.append(Fault("/algorithm/seed", "must fit into 64 bits"))
        if not 1 <= self.checkpoint.keep <= 1000:
            faults.append(Fault("/checkpoint/keep", "must be between 1 and 1000"))
        if self.checkpoint.interval_ns is not None and self.checkpoint.interval_ns <= 0:
            faults.append(Fault("/checkpoint/interval", "must be more than 0 seconds, or auto"))
        if self.plateau is not None and self.plateau.patience_micro_usd <= 0:
            faults.append(Fault("/stop/plateau/patience_usd", "must be more than 0"))
        if self.plateau is not None and not 0 <= self.plateau.min_gain < float("inf"):
            faults.append(Fault("/stop/plateau/min_gain", "must be 0 or more"))
        return [*faults, *self._worth_faults(), *self._confirm_faults()]

    def _objective_faults(self) -> list[Fault]:
        if self.second is None:
            return self.objective.faults()
        at = "/objectives/1"
        faults = [*self.objective.faults("/objectives/0"), *self.second.faults(at)]
        if self.second.metric == self.objective.metric:
            faults.append(Fault(f"{at}/metric", "name a metric other than that of the first objective"))
        if self.second.target is not None:
            faults.append(
                Fault(f"{at}/target", "only the first objective can have a target; leave this target out")
            )
        return faults

    def _confirm_faults(self) -> list[Fault]:
        if self.confirm is None:
            return []
        faults = self.confirm.faults()
        if self.fidelity.max is None:
            detail = "needs the last step of a trial; set fidelity.max, or leave out confirm"
            faults.append(Fault("/confirm", detail))
        if self.algorithm.scheduler != "auto" or self.budget.on_exhausted != "finish":
            detail = "needs algorithm.scheduler auto and budget.on_exhausted finish, because other settings reserve no budget for confirm"
            faults.append(Fault("/confirm", detail))
        return faults

    def _worth_faults(self) -> list[Fault]:
        if self.worth_micro_usd is None:
            return []
        if self.worth_micro_usd <= 0:
            return [Fault("/stop/worth/usd_per_point", "must be more than 0")]
        if self.fidelity.proxies is not None:
            return [
                Fault(
                    "/stop/worth",
                    "cannot be combined with fidelity.proxies, because metrics of different steps are then not comparable; leave out one of the two",
                )
            ]
        return []

    def _code_faults(self) -> list[Fault]:
        if self.command is None:
            only = Fault(
                "/metrics_pattern",
                "applies only to the output of a command; leave out metrics_pattern, or give a command",
            )
            if (
                self.trainable == PROGRAM_ENTRY
            ):  # without this check, a service that allows all modules (`*`) would allow all programs too
                return [
                    Fault(
                        "/trainable",
                        "is the function that runs a command; give command instead of trainable",
                    )
                ]
            return [*entry_faults(self.trainable), *([only] if self.metrics_pattern is not None else [])]
        names = [*self.space.parameters, *self.constants]
        faults = command_faults(self.command, names, has_steps=self.fidelity.max is not None)
        if self.trainable != name_of(self.command):
            faults.append(Fault("/command", "give either trainable or command, not both"))
        if self.kind is not None:
            faults.append(
                Fault(
                    "/kind",
                    "says how a trainable function is called; leave out kind if the job has a command",
                )
            )
        if self.metrics_pattern is not None:
            limits = {f"/constraints/{i}/metric": limit.metric for i, limit in enumerate(self.constraints)}
            first = "/objective" if self.second is None else "/objectives/0"
            metrics = {f"{first}/metric": self.objective.metric, **limits}
            if self.second is not None:
                metrics = {"/objectives/1/metric": self.second.metric, **metrics}
            faults += pattern_faults(self.metrics_pattern, metrics)
        return faults

    def _value_faults(self) -> list[Fault]:
        """Return a fault for each name that is both a parameter and a constant.

        If `kind` is "ray_tune", also return a fault if a name cannot be nested (`_nesting_faults`).
        """
        clashes = sorted(set(self.space.parameters) & set(self.constants))
        faults = [
            Fault("/constants", f"{clash!r} is also in the search space; remove one of the two")
            for clash in clashes
        ]
        if self.kind == "ray_tune":
            faults += _nesting_faults(list(self.space.parameters), list(self.constants))
        return faults

    def _start_faults(self) -> list[Fault]:
        if len(self.start) > MAX_START:
            return [Fault("/start", f"give at most {MAX_START} configurations")]
        faults: list[Fault] = []
        seen = dict[str, int]()
        for i, point in enumerate(self.start):
            at = f"/start/{i}" if point.metric is None else f"/start/{i}/config"
            if len(faults) > MAX_FAULTS:  # the answer lists no more, and checking all could take a long time
                return faults
            faults += self.space.config_faults(point.config, at)
            if point.metric is not None and not math.isfinite(point.metric):
                faults.append(Fault(f"/start/{i}/metric", "must be a finite number"))
            first = seen.setdefault(repr(sorted(point.config.items())), i)
            if first != i:
                faults.append(
                    Fault(f"/start/{i}", f"is the same configuration as /start/{first}; give it once")
                )
        most, count = self.budget.trials, len(self.first_configs)
        if most is not None and count > most:
            faults.append(Fault("/start", f"has {count} configurations to try, but budget.trials is {most}"))
        return faults


def _name_faults(name: str) -> list[Fault]:
    allowed = all(c.isalnum() or c in " ._-" for c in name) and name.isascii()
    if name and name[0].isalnum() and len(name) <= 100 and allowed:
        return []
    return [
        Fault(
            "/name",
            "use 1 to 100 letters, digits, spaces, dots, dashes and underscores; begin with a letter or digit",
        )
    ]


def entry_faults(entry: str) -> list[Fault]:
    module, colon, attribute = entry.partition(":")
    if colon and len(entry) <= 300 and all(part.isidentifier() for part in [*module.split("."), attribute]):
        return []
    return [
        Fault("/trainable", "write the trainable as module:function, such as trainables.digits_cnn:train")
    ]


def _package_faults(package: str | None) -> list[Fault]:
    if package is None or PACKAGE_ID.fullmatch(package):
        return []
    return [
        Fault(
            "/package",
            "give the id of a package, pkg_ and 64 hexadecimal digits, as shown by `tuner packages list`",
        )
    ]


def program_config(
    command: str, metrics_pattern: str | None, steps: int | None, values: Mapping[str, object]
) -> dict[str, object]:
    """Build the argument of `tuner.worker.program:run`, the function that runs the command of a job on a worker."""
    return {"command": command, "metrics_pattern": metrics_pattern, "steps": steps, "values": dict(values)}


def _nesting_faults(parameters: Sequence[str], constants: Sequence[str]) -> list[Fault]:
    """Return a fault for the first name that cannot become a key of nested dictionaries. Return an empty list if all names can.

    A name such as `a..b` has an empty part. Of `a` and `a.b`, only one may exist, because `a` cannot be both a value and a dictionary.
    """
    names = [*parameters, *constants]
    for name in names:
        at, parts = "/search_space" if name in parameters else "/constants", name.split(".")
        if not all(parts):
            return [Fault(at, f"{name!r} has an empty part; name a nested value in the form 'model.width'")]
        for end in range(1, len(parts)):
            if (outer := ".".join(parts[:end])) in names:
                return [
                    Fault(
                        at,
                        f"{name!r} is nested in {outer!r}, which is already a value; rename one of the two",
                    )
                ]
    return []


def config_values(
    config: Mapping[str, Value], constants: Mapping[str, object], kind: str | None
) -> dict[str, object]:
    """Return the values with which the trainable is called. The configuration overrides the constants.

    If `kind` is "ray_tune", the values are nested: the value named `a.b` becomes the key `b` of the dictionary `a`.
    """
    values = {**constants, **config}
    if kind != "ray_tune":
        return values
    nested: dict[str, object] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        inside: Any = nested
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return nested
