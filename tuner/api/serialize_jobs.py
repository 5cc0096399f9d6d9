"""Convert views of jobs, trials and plans to the models of `tuner.schemas`."""

from typing import Any

from tuner.domain import space as sp
from tuner.domain.budget import Budget
from tuner.domain.job import JobSpec, TrialLimits
from tuner.domain.money import MS_PER_HOUR, Cost, Money
from tuner.domain.records import AttemptRow
from tuner.domain.time import NS, rfc3339
from tuner.domain.trial import TRIAL_STATES
from tuner.domain.usage import Usage
from tuner.schemas import answers as answers_models
from tuner.schemas import job as job_models
from tuner.schemas import plan as plan_models
from tuner.service.answers import TrialRow, TrialView
from tuner.service.best import CostedReport
from tuner.service.plans import Inputs, JobPlan
from tuner.service.queue import QueueWait
from tuner.service.views import JobView, Launch, revision_of, rungs_of


def job_of(view: JobView) -> job_models.Job:
    row, account = view.row, view.summary.account
    spec, rate = row.spec, row.offer.rate(row.spec.resources)
    shown: dict[str, int] = dict.fromkeys(TRIAL_STATES, 0)
    shown.update({str(state): count for state, count in view.states.items()})
    wire = spec_to_wire(spec, row.budget)
    wire["resources"]["max_concurrent_trials"] = row.max_concurrent_trials
    return job_models.Job(
        id=row.id,
        name=spec.name,
        state=row.state,
        stop_reason=row.stop_reason,
        detail=row.detail or _waits(view.wait),
        **wire,
        tags=dict(row.tags),
        priority=row.priority,
        revision=revision_of(row),
        queue_position=view.wait.position,
        next_opening=time_of(view.wait.next_opening),
        concurrency=row.concurrency,
        rungs=list(rungs_of(row.spec)),
        price=job_models.NodePrice(
            instance_type=row.offer.instance_type,
            usd_per_hour=row.offer.price.usd_per_hour,
            cpus=row.offer.cpus,
            gpus=row.offer.gpus,
            trial_usd_per_hour=rate.price.usd_per_hour,
            source=row.offer.source,
        ),
        spend=job_models.Spend(
            usd=account.posted.usd.usd, gpu_hours=hours(account.posted), held_usd=account.held.usd.usd
        ),
        progress=job_models.Progress(
            trials=shown,
            steps=view.steps,
            budget_used=round(view.budget_used, 6),
            running_seconds=seconds(view.running_ns),
        ),
        best=None if view.best is None else best_of(view.best),
        confirmed_trial=view.confirmed_trial,
        links=job_models.Links(
            ray_dashboard=view.ray_dashboard,
            optuna_dashboard=view.optuna_dashboard,
            self=f"/v1/jobs/{row.id}",
        ),
        driver=_driver(view.summary.launch),
        created_at=rfc3339(row.created_at),
        started_at=time_of(row.started_at),
        ended_at=time_of(row.ended_at),
        warnings=list(view.warnings),
    )


def _driver(launch: Launch | None) -> job_models.Driver | None:
    """Return the facts about the driver that users see, or None if no driver runs the job."""
    runs = launch is not None and launch.has_driver
    return job_models.Driver.model_validate(launch) if runs else None


def _waits(wait: QueueWait) -> str:
    if wait.quota:
        return f"waits because the quota of the project allows {wait.quota}"
    if wait.cluster_starts:
        return "waits until the Ray cluster has started"
    return "" if wait.next_opening is None else "waits for its window to open"


def spec_to_wire(spec: JobSpec, budget: Budget) -> dict[str, Any]:
    """Return the specification as the body of a job request, with defaults filled in and without name and tags."""
    interval, plateau = spec.checkpoint.interval_ns, spec.plateau
    stop = (
        None
        if plateau is None
        else {"patience_usd": Money(plateau.patience_micro_usd).usd, "min_gain": plateau.min_gain}
    )
    worth = None if spec.worth_micro_usd is None else {"usd_per_point": Money(spec.worth_micro_usd).usd}
    return {
        "trainable": spec.trainable,
        "command": spec.command,
        "metrics_pattern": spec.metrics_pattern,
        "package": spec.package,
        "kind": spec.kind,
        "objective": fields_of(spec.objective),
        "objectives": None if spec.second is None else [fields_of(spec.objective), fields_of(spec.second)],
        "search_space": {name: _parameter_to_wire(p) for name, p in spec.space.parameters.items()},
        "constants": dict(spec.constants),
        "fidelity": fields_of(spec.fidelity),
        "budget": {
            "usd": None if budget.usd is None else budget.usd.usd,
            "gpu_hours": None if budget.gpu_ms is None else budget.gpu_ms / MS_PER_HOUR,
            "wall_clock": None if budget.wall_clock_ns is None else seconds(budget.wall_clock_ns),
            "trials": budget.trials,
            "on_exhausted": budget.on_exhausted,
        },
        "resources": {
            **fields_of(spec.resources),
            "processes_per_node": spec.resources.processes_per_node or "auto",
            "pack": spec.resources.pack or "auto",
        },
        "algorithm": fields_of(spec.algorithm),
        "stop": {"plateau": stop, "worth": worth, "trial": _trial_limits_to_wire(spec.trial_limits)},
        "confirm": None
        if spec.confirm is None
        else {"candidates": spec.confirm.candidates, "seeds": spec.confirm.seeds},
        "start": [
            dict(point.config)
            if point.metric is None
            else {"config": dict(point.config), "metric": point.metric}
            for point in spec.start
        ],
        "constraints": [fields_of(limit) for limit in spec.constraints],
        "checkpoint": {
            "interval": "auto" if interval is None else seconds(interval),
            "keep": spec.checkpoint.keep,
        },
        "artifacts": None
        if spec.retention is None
        else {
            "retain": spec.retention.retain,
            "for": None if spec.retention.for_ns is None else seconds(spec.retention.for_ns),
        },
        "warm_start": {"jobs": list(spec.warm_start_jobs), "checkpoints": spec.warm_start_checkpoints},
        "teacher": None
        if spec.teacher is None
        else {"job": spec.teacher.job, "trial": spec.teacher.trial, "step": spec.teacher.step},
        "window": None if spec.window is None else fields_of(spec.window),
    }


def _trial_limits_to_wire(limits: TrialLimits | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    duration_ns, micro_usd = limits.max_duration_ns, limits.max_cost_micro_usd
    return {
        "patience": limits.patience,
        "min_gain": limits.min_gain,
        "max_duration": None if duration_ns is None else seconds(duration_ns),
        "max_cost_usd": None if micro_usd is None else Money(micro_usd).usd,
    }


def _parameter_to_wire(parameter: sp.Parameter) -> dict[str, Any]:
    when = {name: list(values) for name, values in parameter.when.items()}
    shown: dict[str, Any]
    match parameter:
        case sp.Float(low, high, log) | sp.Int(low, high, log):
            kind = "float" if isinstance(parameter, sp.Float) else "int"
            shown = {"type": kind, "low": low, "high": high, "log": log}
            shown |= {"step": parameter.step} if parameter.step is not None else {}
        case sp.Categorical(choices):
            shown = {"type": "categorical", "choices": list(choices)}
    if parameter.prior is not None:
        shown["prior"] = fields_of(parameter.prior)
    return {**shown, "when": when} if when else shown


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name. Unlike `asdict`, it does not convert the values."""
    return {name: getattr(value, name) for name in value.__slots__}


def best_of(point: CostedReport) -> job_models.Best:
    return job_models.Best.model_validate(point)


def trial_detail_of(view: TrialView) -> answers_models.TrialDetail:
    attempts = [_attempt(row, used) for row, used in view.attempts]
    return answers_models.TrialDetail.model_validate(
        {
            **trial_of(view.row).model_dump(),
            "inherited": _inherited(view),
            "curve": view.curve,
            "bill": view.bill,
            "attempt_list": attempts,
            "checkpoints": view.checkpoints,
            "environment": next((each.environment for each in reversed(attempts) if each.environment), None),
        }
    )


def trial_of(row: TrialRow) -> answers_models.Trial:
    return answers_models.Trial.model_validate(row)


def _inherited(view: TrialView) -> dict[str, Any] | None:
    inherited = view.inherited
    if inherited is None:
        return None
    cost = next(point.cost for point in view.curve if point.step == inherited.step)
    return {"job": inherited.job, "trial": inherited.trial, "step": inherited.step, "cost": cost}


def _attempt(row: AttemptRow, used: Usage | None) -> answers_models.Attempt:
    shown = answers_models.Attempt.model_validate(row)
    shown.usage = None if used is None else _usage(used)
    return shown


def _usage(used: Usage) -> answers_models.AttemptUsage:
    """Convert an attempt's usage. Times in nanoseconds, whose names end with `_ns`, become seconds."""
    fields = fields_of(used)
    for name in [name for name in fields if name.endswith("_ns")]:
        ns = fields.pop(name)
        fields[name.removesuffix("ns") + "seconds"] = None if ns is None else seconds(ns)
    return answers_models.AttemptUsage.model_validate(fields)


def hours(cost: Cost) -> float:
    return round(cost.gpu_hours, 9)


def seconds(ns: int) -> float:
    return round(ns / NS, 6)


def usd_of(amount: Money | None) -> float | None:
    return None if amount is None else amount.usd


def time_of(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def plan_of(plan: JobPlan, spec: JobSpec) -> plan_models.Plan:
    # Show the planned job as the body of a job request, with defaults filled in.
    job = {"name": spec.name, **spec_to_wire(spec, spec.budget), "tags": dict(spec.tags)}
    fields = {**vars(plan), "name": spec.name, "job": job, "inputs": _inputs(plan.inputs, spec)}
    return plan_models.Plan.model_validate(fields)


def _inputs(inputs: Inputs, spec: JobSpec) -> plan_models.PlanInputs:
    evidence, delays, size = inputs.evidence, inputs.evidence.delays, spec.resources
    prices = [
        plan_models.PlanPrice(
            instance_type=offer.instance_type,
            market=offer.market,
            usd_per_hour=offer.price.usd_per_hour,
            cpus=offer.cpus,
            gpus=offer.gpus,
            trial_usd_per_hour=offer.rate(size).price.usd_per_hour,
            source=offer.source,
        )
        for offer in inputs.offers
    ]
    known = plan_models.PlanEvidence(
        source=evidence.source,
        jobs=list(evidence.jobs),
        trials=len(evidence.trials),
        step_seconds=evidence.step_ns / NS,
        doubt=evidence.doubt,
        step_spread=evidence.spread,
        setup_seconds=delays.setup_ns / NS,
        warming_seconds=delays.warming_ns / NS,
        restore_seconds=delays.restore_ns / NS,
        checkpoint_seconds=delays.save_ns / NS,
        idle_seconds=delays.idle_ns / NS,
        instance_type=evidence.machine or None,
        knows_curves=evidence.knows_curves,
        digest=evidence.digest,
    )
    fields = {**vars(inputs), "evidence": known, "prices": prices}
    del fields["offers"]
    return plan_models.PlanInputs.model_validate(fields)
