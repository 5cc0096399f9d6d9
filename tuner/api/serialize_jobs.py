"""Answers of the service, converted to the models of `tuner.schemas`."""

import json
from collections.abc import Mapping
from typing import Any

from tuner.api.serialize_advice import usage_of
from tuner.api.serialize_driver import driver_of
from tuner.domain import space as sp
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind, total
from tuner.domain.ids import RESTORED, SELF_TEST
from tuner.domain.job import JobSpec
from tuner.domain.money import MS_PER_HOUR, Cost, Money
from tuner.domain.records import AttemptRow, MachineFound
from tuner.domain.time import NS, rfc3339
from tuner.domain.usage import Usage
from tuner.schemas import answers as show
from tuner.schemas import job as wire
from tuner.service.answers import BillView, EntryRow, TrialRow, TrialView
from tuner.service.best import Reached
from tuner.service.queue import Wait
from tuner.service.report import Estimate, ReportView
from tuner.service.trainables import Described
from tuner.service.views import JobView, revision_of


def job_of(view: JobView) -> wire.Job:
    row, account = view.row, view.account
    spec, rate = row.spec, row.offer.rate(cpus=row.spec.resources.cpus, gpus=row.spec.resources.gpus)
    shown: dict[str, int] = dict.fromkeys(
        ("pending", "running", "paused", "completed", "stopped", "failed"), 0
    )
    shown.update({str(state): count for state, count in view.states.items()})
    return wire.Job(
        id=row.id,
        name=spec.name,
        state=row.state,
        stop_reason=row.stop_reason,
        detail=row.detail or _waits(view.wait),
        **spec_to_wire(spec, row.budget),
        tags=dict(row.tags),
        priority=row.priority,
        revision=revision_of(row),
        queue_position=view.wait.position,
        next_opening=_time(view.wait.next_opening),
        concurrency=row.concurrency,
        rungs=list(view.rungs),
        price=wire.NodePrice(
            instance_type=row.offer.instance_type,
            usd_per_hour=row.offer.price.usd_per_hour,
            cpus=row.offer.cpus,
            gpus=row.offer.gpus,
            trial_usd_per_hour=rate.price.usd_per_hour,
            source=row.offer.source,
        ),
        spend=wire.Spend(
            usd=account.posted.usd.usd, gpu_hours=hours(account.posted), held_usd=account.held.usd.usd
        ),
        progress=wire.Progress(
            trials=shown,
            steps=view.steps,
            budget_used=round(view.budget_used, 6),
            running_seconds=seconds(view.running_ns),
        ),
        best=None if view.best is None else best_of(view.best),
        links=wire.Links(
            ray_dashboard=view.ray_dashboard,
            optuna_dashboard=view.optuna_dashboard,
            self=f"/v1/jobs/{row.id}",
        ),
        driver=driver_of(view.launch),
        created_at=rfc3339(row.created_at),
        started_at=_time(row.started_at),
        ended_at=_time(row.ended_at),
    )


def _waits(wait: Wait) -> str:
    if wait.quota:
        return f"waits for its project, which may have {wait.quota}"
    return "" if wait.next_opening is None else "waits for its window to open"


def spec_to_wire(spec: JobSpec, budget: Budget) -> dict[str, Any]:
    """Return the specification in the form of the request, with defaults filled in and without name and tags."""
    interval, plateau = spec.checkpoint.interval_ns, spec.plateau
    stop = (
        None
        if plateau is None
        else {"patience_usd": Money(plateau.patience_micro_usd).usd, "min_gain": plateau.min_gain}
    )
    return {
        "trainable": spec.trainable,
        "package": spec.package,
        "objective": _fields(spec.objective),
        "search_space": {name: _parameter_to_wire(p) for name, p in spec.space.parameters.items()},
        "constants": dict(spec.constants),
        "fidelity": _fields(spec.fidelity),
        "budget": {
            "usd": None if budget.usd is None else budget.usd.usd,
            "gpu_hours": None if budget.gpu_ms is None else budget.gpu_ms / MS_PER_HOUR,
            "wall_clock": None if budget.wall_clock_ns is None else seconds(budget.wall_clock_ns),
            "trials": budget.trials,
            "on_exhausted": budget.on_exhausted,
        },
        "resources": _fields(spec.resources),
        "algorithm": _fields(spec.algorithm),
        "stop": {"plateau": stop},
        "checkpoint": {
            "interval": "auto" if interval is None else seconds(interval),
            "keep": spec.checkpoint.keep,
        },
        "warm_start": {"jobs": list(spec.warm_start_jobs), "checkpoints": spec.warm_start_checkpoints},
        "window": None if spec.window is None else _fields(spec.window),
    }


def _parameter_to_wire(parameter: sp.Parameter) -> dict[str, Any]:
    when = {name: list(values) for name, values in parameter.when.items()}
    shown: dict[str, Any]
    match parameter:
        case sp.Float(low, high, log):
            shown = {"type": "float", "low": low, "high": high, "log": log}
        case sp.Int(low, high, log):
            shown = {"type": "int", "low": low, "high": high, "log": log}
        case sp.Categorical(choices):
            shown = {"type": "categorical", "choices": list(choices)}
    return {**shown, "when": when} if when else shown


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def best_of(point: Reached) -> wire.Best:
    return wire.Best(**best_fields(point))


def best_fields(point: Reached) -> dict[str, Any]:
    return {
        "trial": point.trial,
        "step": point.step,
        "metric": point.value,
        "config": dict(point.config),
        "cost_usd": point.cost.usd.usd,
        "cost_to_train_usd": point.cost.usd.usd,
        "gpu_hours": hours(point.cost),
        "duration_seconds": seconds(point.duration_ns),
        "metrics": dict(point.metrics),
        "checkpoint": point.checkpoint_uri,
    }


def trial_of(row: TrialRow) -> show.Trial:
    return show.Trial(**_trial_fields(row))


def _trial_fields(row: TrialRow) -> dict[str, Any]:
    return {
        "id": row.trial,
        "config": dict(row.config),
        "state": row.state,
        "reason": row.reason,
        "steps": row.steps,
        "metric": row.best,
        "latest_metric": row.value,
        "cost_usd": row.cost.usd.usd,
        "paid_usd": row.cost.usd.usd,
        "gpu_hours": hours(row.cost),
        "attempts": row.attempts,
        "preemptions": row.preemptions,
        "created_at": rfc3339(row.created_at),
        "updated_at": rfc3339(row.updated_at),
    }


def trial_detail_of(view: TrialView) -> show.TrialDetail:
    curve = [
        show.CurvePoint(
            step=point.step,
            metric=point.value,
            metrics=json.loads(point.metrics),
            cost_usd=point.cost.usd.usd,
            cost_to_train_usd=point.cost.usd.usd,
            gpu_hours=hours(point.cost),
            duration_seconds=seconds(point.duration_ns),
            at=rfc3339(point.at),
        )
        for point in view.curve
    ]
    attempts = [_attempt(row, used) for row, used in view.attempts]
    return show.TrialDetail(
        **_trial_fields(view.row),
        inherited=_inherited(view),
        curve=curve,
        bill=_kinds(view.bill),
        attempt_list=attempts,
        checkpoints=[
            show.StoredCheckpoint(
                step=stored.step,
                metric=stored.value,
                size_bytes=stored.size_bytes,
                uri=stored.uri,
                at=rfc3339(stored.at),
            )
            for stored in view.checkpoints
        ],
        environment=next((one.environment for one in reversed(attempts) if one.environment), None),
    )


def _inherited(view: TrialView) -> show.Inherited | None:
    found = view.inherited
    if found is None:
        return None
    cost = next(point.cost for point in view.curve if point.step == found.step)
    return show.Inherited(
        job=found.job, trial=found.trial, step=found.step, cost_usd=cost.usd.usd, gpu_hours=hours(cost)
    )


def _attempt(row: AttemptRow, used: Usage | None) -> show.Attempt:
    return show.Attempt(
        attempt=row.attempt,
        began_at=rfc3339(row.began_at),
        ended_at=_time(row.ended_at),
        end=row.end,
        reason=row.reason,
        detail=row.detail,
        node=row.node or None,
        market=row.market,
        usd_per_hour=row.price.usd_per_hour,
        machine=_machine(row.machine),
        from_step=row.from_step,
        to_step=row.to_step,
        bill=_kinds(row.costs),
        usage=None if used is None else usage_of(used),
        environment=_environment(row),
    )


def _environment(row: AttemptRow) -> show.Environment | None:
    return None if row.environment is None else show.Environment(**row.environment.message())


def _machine(found: MachineFound | None) -> show.Machine | None:
    if found is None:
        return None
    price = found.price.usd_per_hour
    return show.Machine(
        instance_type=found.instance_type, region=found.region, usd_per_hour=price, price_source=found.source
    )


def bill_of(view: BillView) -> show.Bill:
    spent = view.account.posted
    full = None if view.full_fidelity is None else view.full_fidelity.usd
    return show.Bill(
        job=view.job.id,
        total_usd=spent.usd.usd,
        gpu_hours=hours(spent),
        held_usd=view.account.held.usd.usd,
        by_kind=_kinds(view.by_kind),
        self_test_usd=total(view.by_trial.get(SELF_TEST, {})).usd.usd,
        restored_usd=total(view.by_trial.get(RESTORED, {})).usd.usd,
        trials=[_trial_bill(row, view.by_trial.get(row.trial, {})) for row in view.trials],
        savings=show.Savings(
            full_fidelity_usd=full,
            against_full_fidelity_usd=None if full is None else round(full - spent.usd.usd, 6),
            on_demand_usd=None if view.on_demand is None else view.on_demand.usd,
            against_on_demand_usd=None if view.on_demand is None else (view.on_demand - spent.usd).usd,
        ),
        completed_trials=view.completed,
        cost_per_completed_trial_usd=round(spent.usd.usd / view.completed, 6) if view.completed else None,
        preemptions=view.preemptions,
    )


def _trial_bill(row: TrialRow, kinds: Mapping[CostKind, Cost]) -> show.TrialBill:
    cost = total(kinds)
    return show.TrialBill(
        trial=row.trial,
        state=row.state,
        steps=row.steps,
        total_usd=cost.usd.usd,
        gpu_hours=hours(cost),
        by_kind=_kinds(kinds),
    )


def report_of(view: ReportView) -> show.JobReport:
    objective = view.job.spec.objective
    return show.JobReport(
        job=view.job.id,
        metric=objective.metric,
        mode=objective.mode,
        spent_usd=view.spent.usd,
        best_spent_usd=_usd(view.best_spent),
        best=None if view.best is None else best_of(view.best),
        best_curve=[
            show.SpentPoint(spent_usd=one.spent.usd, value=one.value, trial=one.trial, step=one.step)
            for one in view.curve
        ],
        trials=view.trials,
        estimates=[_peer(view, one) for one in view.estimates],
    )


def _peer(view: ReportView, one: Estimate) -> show.PeerEstimate:
    return show.PeerEstimate(
        method=one.method,
        status=one.status,
        usd=_usd(one.usd),
        low_usd=_usd(one.low),
        high_usd=_usd(one.high),
        saved_usd=_usd(view.saved(one)),
        estimate=True,
        is_biased_low=one.is_biased_low,
        note=one.note,
    )


def entry_of(row: EntryRow) -> show.LedgerEntry:
    return show.LedgerEntry(
        seq=row.seq,
        id=row.id,
        entry=row.entry,
        kind=row.kind,
        trial=row.trial,
        attempt=row.attempt,
        slice=row.slice,
        usd=row.cost.usd.usd,
        gpu_hours=hours(row.cost),
        at=rfc3339(row.at),
    )


def trainable_of(found: Described) -> show.Trainable:
    space = None if found.search_space is None else dict(found.search_space)
    objective = None if found.objective is None else dict(found.objective)
    return show.Trainable(
        trainable=found.trainable, doc=found.doc, search_space=space, objective=objective, error=found.error
    )


def _kinds(costs: Mapping[CostKind, Cost]) -> dict[str, float]:
    """Return dollars for all six kinds of cost."""
    zero: dict[str, float] = dict.fromkeys(("setup", "restore", "train", "checkpoint", "lost", "idle"), 0.0)
    return {**zero, **{kind: cost.usd.usd for kind, cost in costs.items()}}


def _usd(amount: Money | None) -> float | None:
    return None if amount is None else amount.usd


def hours(cost: Cost) -> float:
    return round(cost.gpu_hours, 9)


def seconds(ns: int) -> float:
    return round(ns / NS, 6)


def _time(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)
