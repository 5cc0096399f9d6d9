"""Convert requests about jobs, plans and pilots to domain values.

This module only reads amounts and times. The domain checks whether the values are valid.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from tuner.domain import space as sp
from tuner.domain.budget import Budget
from tuner.domain.calendar import Window
from tuner.domain.command import name_of
from tuner.domain.errors import Fault, Invalid
from tuner.domain.job import (
    AUTO_PACK,
    PACK_RANGE,
    Algorithm,
    CheckpointPolicy,
    Confirm,
    JobSpec,
    Plateau,
    Resources,
    StartPoint,
    Teacher,
    TrialLimits,
)
from tuner.domain.money import MS_PER_HOUR, Money, Price
from tuner.domain.objective import Constraint, Fidelity, Objective
from tuner.domain.retention import RetentionPolicy
from tuner.domain.time import Instant, is_time, parse_duration_ns, parse_rfc3339, seconds_ns
from tuner.schemas import job as job_models
from tuner.schemas import plan as plan_models
from tuner.schemas.plan import Pilot
from tuner.service.pilots import PilotLimits
from tuner.service.plans import (
    MAX_NS,
    DescribedMachine,
    MachineFilter,
    MachineRequirements,
    PlanningFacts,
    RequestedMachines,
)

MAX_GPU_HOURS = 1e9
T = TypeVar("T")


class RequestReader:
    """Converts the values of a request and collects their faults, so that one error can report all of them."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def convert(self, pointer: str, read: Callable[[Any], T], value: Any) -> T | None:
        """Return `read(value)`, or None if the value is None. If `read` raises ValueError, record a fault at `pointer` and return None."""
        if value is None:
            return None
        try:
            return read(value)
        except ValueError as error:
            self.faults.append(Fault(pointer, str(error)))
            return None

    def check(self) -> None:
        if self.faults:
            raise Invalid(*self.faults)


def spec_of(request: job_models.JobRequest) -> JobSpec:
    """Convert a job request. Raise Invalid if amounts or durations cannot be read."""
    read = RequestReader()
    objective, *others = _objectives(read, request)
    budget = Budget(
        usd=read.convert("/budget/usd", Money.from_usd, request.budget.usd),
        gpu_ms=read.convert("/budget/gpu_hours", gpu_ms_of, request.budget.gpu_hours),
        wall_clock_ns=read.convert("/budget/wall_clock", parse_duration_ns, request.budget.wall_clock),
        trials=request.budget.trials,
        on_exhausted=request.budget.on_exhausted,
    )
    space = sp.Space({name: _parameter(given) for name, given in request.search_space.items()})
    interval = None if request.checkpoint.interval == "auto" else request.checkpoint.interval
    spec = JobSpec(
        name=request.name,
        trainable=_trainable(read, request),
        package=request.package,
        command=request.command,
        metrics_pattern=request.metrics_pattern,
        kind=request.kind,
        objective=objective,
        second=others[0] if others else None,
        space=space,
        budget=budget,
        constants=request.constants,
        fidelity=_fidelity(request.fidelity),
        resources=_resources(read, request.resources),
        algorithm=Algorithm(**request.algorithm.model_dump()),
        plateau=_plateau(read, request.stop.plateau),
        worth_micro_usd=_worth(read, request.stop.worth),
        confirm=None if request.confirm is None else Confirm(**request.confirm.model_dump(), distinct=True),
        trial_limits=_trial_limits(read, request.stop.trial),
        start=tuple(_start_point(space, entry) for entry in request.start),
        constraints=tuple(Constraint(**limit.model_dump()) for limit in request.constraints),
        checkpoint=CheckpointPolicy(
            interval_ns=read.convert("/checkpoint/interval", parse_duration_ns, interval),
            keep=request.checkpoint.keep,
        ),
        retention=_retention(read, request.artifacts),
        warm_start_jobs=tuple(request.warm_start.jobs),
        warm_start_checkpoints=request.warm_start.checkpoints,
        teacher=None if request.teacher is None else Teacher(**request.teacher.model_dump()),
        window=None if request.window is None else Window(**request.window.model_dump()),
        tags=request.tags,
    )
    read.check()
    return spec


def _objectives(read: RequestReader, request: job_models.JobRequest) -> list[Objective]:
    """Return one or two objectives. Record a fault if `objective` is not the first of `objectives`."""
    given = request.objectives or [objective for objective in [request.objective] if objective is not None]
    if request.objective not in (None, given[0]):
        read.faults.append(Fault("/objectives", "the first item differs from objective; leave out objective"))
    objectives = [Objective(**objective.model_dump()) for objective in given]
    # The domain reports the faults of a single objective at /objective. Report them here if the request names it in /objectives.
    if request.objectives is not None and len(objectives) == 1:
        read.faults += objectives[0].faults("/objectives/0")
    return objectives


def _resources(read: RequestReader, given: job_models.Resources) -> Resources:
    each, pack = given.processes_per_node, given.pack
    # The domain accepts AUTO_PACK, so refuse a request with this number here.
    if pack == AUTO_PACK:
        read.faults.append(Fault("/resources/pack", PACK_RANGE))
    return Resources(
        **given.model_dump(exclude={"processes_per_node", "pack"}),
        processes_per_node=None if each == "auto" else each,
        pack=AUTO_PACK if pack == "auto" else pack,
    )


def _fidelity(fidelity: job_models.Fidelity) -> Fidelity:
    proxies = (
        None
        if fidelity.proxies is None
        else {name: tuple(values) for name, values in fidelity.proxies.items()}
    )
    return Fidelity(fidelity.unit, fidelity.min, fidelity.max, fidelity.reduction_factor, proxies)


def _trainable(read: RequestReader, request: job_models.JobRequest) -> str:
    """Return the trainable. If the request has only a command, return the name under which the command is recorded as a trainable.

    Record a fault if the request has neither.
    """
    if request.trainable is None and request.command is None:
        read.faults.append(Fault("/trainable", "is required, unless the job has a command"))
    return request.trainable or name_of(request.command or "")


def budget_patch_of(change: job_models.BudgetChange) -> dict[str, Any]:
    """Return the fields of the budget that the request names, with their new values. Raise Invalid if a value cannot be read."""
    read = RequestReader()
    readers: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "usd": ("usd", Money.from_usd),
        "gpu_hours": ("gpu_ms", gpu_ms_of),
        "wall_clock": ("wall_clock_ns", parse_duration_ns),
        "trials": ("trials", int),
    }
    limits = {
        ours: read.convert(f"/budget/{name}", reader, getattr(change, name))
        for name, (ours, reader) in readers.items()
        if name in change.model_fields_set
    }
    read.check()
    return {**limits, "on_exhausted": change.on_exhausted} if change.on_exhausted else limits


def pilot_limits_of(given: Pilot) -> PilotLimits:
    """Convert the limits of a pilot. Raise Invalid if an amount cannot be read."""
    read = RequestReader()
    limits = PilotLimits(
        usd=read.convert("/planning/pilot/usd", Money.from_usd, given.usd),
        gpu_ms=read.convert("/planning/pilot/gpu_hours", gpu_ms_of, given.gpu_hours),
        trials=given.trials,
        steps=given.steps,
    )
    read.check()
    return limits


def gpu_ms_of(hours: float) -> int:
    if not -MAX_GPU_HOURS <= hours <= MAX_GPU_HOURS:
        raise ValueError(f"must be at most {MAX_GPU_HOURS:g} hours")
    return round(hours * MS_PER_HOUR)


def _plateau(read: RequestReader, given: job_models.Plateau | None) -> Plateau | None:
    if given is None:
        return None
    patience = read.convert("/stop/plateau/patience_usd", Money.from_usd, given.patience_usd)
    return Plateau(patience.micro_usd if patience else 0, given.min_gain)


def _worth(read: RequestReader, given: job_models.Worth | None) -> int | None:
    if given is None:
        return None
    usd = read.convert("/stop/worth/usd_per_point", Money.from_usd, given.usd_per_point)
    return usd.micro_usd if usd else 0


def _retention(read: RequestReader, given: job_models.Artifacts | None) -> RetentionPolicy | None:
    if given is None:
        return None
    return RetentionPolicy(given.retain, read.convert("/artifacts/for", parse_duration_ns, given.for_))


def _trial_limits(read: RequestReader, given: job_models.TrialStop | None) -> TrialLimits | None:
    if given is None:
        return None
    cost = read.convert("/stop/trial/max_cost_usd", Money.from_usd, given.max_cost_usd)
    return TrialLimits(
        given.patience,
        given.min_gain,
        read.convert("/stop/trial/max_duration", parse_duration_ns, given.max_duration),
        None if cost is None else cost.micro_usd,
    )


def _start_point(space: sp.Space, entry: job_models.KnownResult | dict[str, job_models.Value]) -> StartPoint:
    if isinstance(entry, job_models.KnownResult):
        return StartPoint(space.typed(entry.config), entry.metric)
    return StartPoint(space.typed(entry))


def _parameter(
    given: job_models.FloatParameter | job_models.IntParameter | job_models.CategoricalParameter,
) -> sp.Parameter:
    when = {name: tuple(values) for name, values in given.when.items()}
    prior = None
    if given.prior is not None:
        center, is_float = given.prior.center, given.type == "float"
        is_whole = is_float and isinstance(center, int) and not isinstance(center, bool)
        prior = sp.Prior(float(str(center)) if is_whole else center, given.prior.confidence)
    match given:
        case job_models.FloatParameter():
            step = None if given.step is None else float(given.step)
            return sp.Float(float(given.low), float(given.high), given.log, when, step, prior)
        case job_models.IntParameter():
            step = None if given.step == 1 else given.step
            return sp.Int(given.low, given.high, given.log, when, step, prior)
        case job_models.CategoricalParameter():
            return sp.Categorical(tuple(given.choices), when, prior)


def facts_of(planning: plan_models.Planning) -> PlanningFacts:
    """Convert the `planning` section of a request. Raise Invalid if amounts or times cannot be read."""
    read = RequestReader()
    at = "/planning"

    def ns(name: str) -> int | None:
        return read.convert(f"{at}/{name}", _seconds_ns, getattr(planning, name))

    deadline = read.convert(f"{at}/deadline", _deadline, planning.deadline)
    needs = planning.needs
    facts = PlanningFacts(
        step_ns=ns("step_seconds"),
        spread=planning.step_spread,
        setup_ns=ns("setup_seconds"),
        restore_ns=ns("restore_seconds"),
        save_ns=ns("checkpoint_seconds"),
        steps=planning.steps,
        steps_from=tuple(planning.steps_from),
        deadline_ns=deadline[0] if deadline else None,
        deadline_at=deadline[1] if deadline else None,
        pilot=planning.pilot is not None,
        machines=RequestedMachines(
            tuple(
                _described(read, candidate, f"{at}/candidates/{i}")
                for i, candidate in enumerate(planning.candidates)
            ),
            None if planning.catalogue is None else MachineFilter(**planning.catalogue.model_dump()),
            MachineRequirements(
                needs.memory_gib,
                needs.gpu_memory_gib,
                read.convert(f"{at}/needs/step_seconds", _seconds_ns, needs.step_seconds),
            ),
            planning.speeds,
            tuple(dict.fromkeys(planning.markets)),
        ),
        seed=planning.seed,
    )
    read.check()
    return facts


def _described(read: RequestReader, machine: plan_models.CandidateMachine, at: str) -> DescribedMachine:
    fields: dict[str, Any] = machine.model_dump()
    step_s, usd, spot = (fields.pop(name) for name in ("step_seconds", "usd_per_hour", "spot_usd_per_hour"))
    return DescribedMachine(
        **fields,
        price=read.convert(f"{at}/usd_per_hour", Price.from_usd_per_hour, usd),
        spot_price=read.convert(f"{at}/spot_usd_per_hour", Price.from_usd_per_hour, spot),
        step_ns=read.convert(f"{at}/step_seconds", _seconds_ns, step_s),
    )


def _seconds_ns(seconds: float) -> int:
    """Return the nanoseconds of a duration in seconds. Raise ValueError if it is less than minus one year or more than two years.

    The domain allows durations of up to a year. A value slightly out of its bounds is converted, so that the domain reports it together with
    other faults.
    """
    if not -MAX_NS <= seconds * 1e9 <= 2 * MAX_NS:
        raise ValueError("must be more than 0 and at most a year")
    return seconds_ns(seconds)


def _deadline(given: float | str) -> tuple[int | None, Instant | None]:
    """Return a deadline as a pair: nanoseconds from now, and a time. One of the two is None."""
    if is_time(given):
        return None, parse_rfc3339(str(given))
    try:
        return parse_duration_ns(given), None
    except ValueError as error:
        raise ValueError(f"{error}, or a time such as 2026-12-01T08:00:00Z") from error
