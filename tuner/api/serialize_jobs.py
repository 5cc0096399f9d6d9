"""Convert answers about jobs, trials, bills and best configurations to the models of `tuner.schemas`."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from tuner.api.serialize import driver_of, usage_of
from tuner.domain import space as sp
from tuner.domain.budget import Budget
from tuner.domain.cost import CostKind, total
from tuner.domain.ids import RESTORED, SELF_TEST
from tuner.domain.job import Algorithm, JobSpec
from tuner.domain.money import MS_PER_HOUR, Cost, Money
from tuner.domain.records import AttemptRow, MachineFound
from tuner.domain.time import NS, rfc3339
from tuner.domain.usage import Usage
from tuner.schemas import answers as answers_models
from tuner.schemas import best as best_models
from tuner.schemas import job as job_models
from tuner.service.answers import BillView, EntryRow, TrialRow, TrialView
from tuner.service.best import BestView, Forecast, Priced, Pricing, StepReport
from tuner.service.next_dollar import Continuation
from tuner.service.queue import Wait
from tuner.service.replay import Decision, Difference, ReplayView
from tuner.service.spend import Estimate, ReportView
from tuner.service.trainables import Described
from tuner.service.views import JobView, revision_of


def best_answer_of(view: BestView) -> best_models.BestAnswer:
    return best_models.BestAnswer(
        **_priced_fields(view.best),
        next_better=None if view.next_better is None else _point(view.next_better),
        pricing=_pricing(view.pricing),
        next_dollar=best_models.NextDollar(next_point=_next_point(view), forecast=_forecast(view.forecast)),
    )


def pareto_of(points: Iterable[Priced], pricing: Pricing | None) -> best_models.Pareto:
    return best_models.Pareto(items=[_point(point) for point in points], pricing=_pricing(pricing))


def best_of_all_of(view: BestView) -> best_models.BestOfAll:
    return best_models.BestOfAll(**_priced_fields(view.best), job=view.job.id, pricing=_pricing(view.pricing))


def _point(priced: Priced) -> best_models.PricedBest:
    return best_models.PricedBest(**_priced_fields(priced))


def _priced_fields(priced: Priced) -> dict[str, Any]:
    point, there = priced.point, priced.elsewhere
    low, high = (priced.cost, priced.cost) if there is None else (there.low, there.high)
    return {
        **best_fields(point),
        "cost_usd": priced.cost.usd.usd,
        "cost_to_train_usd": priced.cost.usd.usd,
        "gpu_hours": hours(priced.cost),
        "duration_seconds": seconds(priced.duration_ns),
        "cost_low_usd": low.usd.usd,
        "cost_high_usd": high.usd.usd,
        "as_run_usd": point.cost.usd.usd,
        "as_run_seconds": seconds(point.duration_ns),
    }


def _pricing(found: Pricing | None) -> best_models.Pricing | None:
    if found is None:
        return None
    machine, repricing = found.machine, found.repricing
    return best_models.Pricing(
        instance_type=machine.instance_type,
        market=machine.market,
        region=machine.region,
        usd_per_hour=machine.price.usd_per_hour,
        trial_usd_per_hour=repricing.rate.price.usd_per_hour,
        price_source=machine.source,
        relative_time=_six(repricing.time.expected),
        relative_time_low=_six(repricing.time.low),
        relative_time_high=_six(repricing.time.high),
        speed_source=repricing.time.source,
        interruption_overhead=None if repricing.overhead is None else _six(repricing.overhead),
        notes=list(found.notes),
    )


def _next_point(view: BestView) -> best_models.NextPoint | None:
    better = view.next_better
    if better is None:
        return None
    extra, gain = better.cost.usd - view.best.cost.usd, view.gain(better.point)
    return best_models.NextPoint(
        trial=better.point.trial,
        step=better.point.step,
        metric=better.point.value,
        cost_usd=better.cost.usd.usd,
        extra_usd=extra.usd,
        gain=gain,
        gain_per_usd=gain / extra.usd if extra.micro_usd > 0 else None,
    )


def _forecast(found: Forecast | None) -> best_models.Forecast | None:
    if found is None:
        return None
    return best_models.Forecast(
        items=[_continuation(one) for one in found.trials],
        reason=found.reason or None,
        interval=0.8,
        as_of_event=found.as_of,
    )


def _continuation(one: Continuation) -> best_models.Continuation:
    return best_models.Continuation(
        trial=one.trial,
        from_step=one.from_step,
        to_step=one.to_step,
        extra_usd=one.extra.usd,
        expected_metric=one.metric,
        low_metric=one.low_metric,
        high_metric=one.high_metric,
        expected_gain=one.gain,
        low_gain=one.low_gain,
        high_gain=one.high_gain,
        expected_gain_per_usd=one.gain_per_usd,
    )


def _six(number: Fraction) -> float:
    return round(float(number), 6)


def job_of(view: JobView) -> job_models.Job:
    row, account = view.row, view.account
    spec, rate = row.spec, row.offer.rate(cpus=row.spec.resources.cpus, gpus=row.spec.resources.gpus)
    shown: dict[str, int] = dict.fromkeys(
        ("pending", "running", "paused", "completed", "stopped", "failed"), 0
    )
    shown.update({str(state): count for state, count in view.states.items()})
    return job_models.Job(
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
        links=job_models.Links(
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


def best_of(point: StepReport) -> job_models.Best:
    return job_models.Best(**best_fields(point))


def best_fields(point: StepReport) -> dict[str, Any]:
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


def trial_of(row: TrialRow) -> answers_models.Trial:
    return answers_models.Trial(**_trial_fields(row))


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


def trial_detail_of(view: TrialView) -> answers_models.TrialDetail:
    curve = [
        answers_models.CurvePoint(
            step=point.step,
            metric=point.value,
            metrics=dict(point.metrics),
            cost_usd=point.cost.usd.usd,
            cost_to_train_usd=point.cost.usd.usd,
            gpu_hours=hours(point.cost),
            duration_seconds=seconds(point.duration_ns),
            at=rfc3339(point.at),
        )
        for point in view.curve
    ]
    attempts = [_attempt(row, used) for row, used in view.attempts]
    return answers_models.TrialDetail(
        **_trial_fields(view.row),
        inherited=_inherited(view),
        curve=curve,
        bill=_kinds(view.bill),
        attempt_list=attempts,
        checkpoints=[
            answers_models.StoredCheckpoint(
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


def _inherited(view: TrialView) -> answers_models.Inherited | None:
    found = view.inherited
    if found is None:
        return None
    cost = next(point.cost for point in view.curve if point.step == found.step)
    return answers_models.Inherited(
        job=found.job, trial=found.trial, step=found.step, cost_usd=cost.usd.usd, gpu_hours=hours(cost)
    )


def _attempt(row: AttemptRow, used: Usage | None) -> answers_models.Attempt:
    return answers_models.Attempt(
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


def _environment(row: AttemptRow) -> answers_models.Environment | None:
    return None if row.environment is None else answers_models.Environment(**row.environment.message())


def _machine(found: MachineFound | None) -> answers_models.Machine | None:
    if found is None:
        return None
    price = found.price.usd_per_hour
    return answers_models.Machine(
        instance_type=found.instance_type, region=found.region, usd_per_hour=price, price_source=found.source
    )


def bill_of(view: BillView) -> answers_models.Bill:
    spent = view.account.posted
    full = None if view.full_fidelity is None else view.full_fidelity.usd
    return answers_models.Bill(
        job=view.job.id,
        total_usd=spent.usd.usd,
        gpu_hours=hours(spent),
        held_usd=view.account.held.usd.usd,
        by_kind=_kinds(view.by_kind),
        self_test_usd=total(view.by_trial.get(SELF_TEST, {})).usd.usd,
        restored_usd=total(view.by_trial.get(RESTORED, {})).usd.usd,
        trials=[_trial_bill(row, view.by_trial.get(row.trial, {})) for row in view.trials],
        savings=answers_models.Savings(
            full_fidelity_usd=full,
            against_full_fidelity_usd=None if full is None else round(full - spent.usd.usd, 6),
            on_demand_usd=None if view.on_demand is None else view.on_demand.usd,
            against_on_demand_usd=None if view.on_demand is None else (view.on_demand - spent.usd).usd,
        ),
        completed_trials=view.completed,
        cost_per_completed_trial_usd=round(spent.usd.usd / view.completed, 6) if view.completed else None,
        preemptions=view.preemptions,
    )


def _trial_bill(row: TrialRow, kinds: Mapping[CostKind, Cost]) -> answers_models.TrialBill:
    cost = total(kinds)
    return answers_models.TrialBill(
        trial=row.trial,
        state=row.state,
        steps=row.steps,
        total_usd=cost.usd.usd,
        gpu_hours=hours(cost),
        by_kind=_kinds(kinds),
    )


def report_of(view: ReportView) -> answers_models.JobReport:
    objective = view.job.spec.objective
    return answers_models.JobReport(
        job=view.job.id,
        metric=objective.metric,
        mode=objective.mode,
        spent_usd=view.spent.usd,
        best_spent_usd=_usd(view.best_spent),
        best=None if view.best is None else best_of(view.best),
        best_curve=[
            answers_models.SpentPoint(
                spent_usd=one.spent.usd, value=one.value, trial=one.trial, step=one.step
            )
            for one in view.curve
        ],
        trials=view.trials,
        estimates=[_peer(view, one) for one in view.estimates],
    )


def _peer(view: ReportView, one: Estimate) -> answers_models.PeerEstimate:
    return answers_models.PeerEstimate(
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


def entry_of(row: EntryRow) -> answers_models.LedgerEntry:
    return answers_models.LedgerEntry(
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


def replay_of(view: ReplayView) -> answers_models.Replay:
    found = view.replayed
    return answers_models.Replay(
        job=view.job.id,
        state=view.job.state,
        events=found.events,
        decisions=found.decisions,
        answers=found.answers,
        concurrent_trials=found.concurrency,
        policy=_policy(view.job.spec.algorithm),
        instead=None if view.instead is None else _policy(view.instead),
        difference=None
        if found.difference is None
        else _difference(found.difference, policies=view.instead is not None),
        not_checked=[answers_models.NotChecked(what=one.what, why=one.why) for one in found.unchecked],
    )


def _policy(algorithm: Algorithm) -> answers_models.ReplayPolicy:
    return answers_models.ReplayPolicy(scheduler=algorithm.scheduler, sampler=algorithm.sampler)


def _difference(found: Difference, *, policies: bool) -> answers_models.ReplayDifference:
    other = _decision(found.other)
    return answers_models.ReplayDifference(
        code=found.code,
        event=found.number,
        at=rfc3339(found.at),
        trial=found.trial,
        decided=_decision(found.decided),
        recorded=None if policies else other,
        instead=other if policies else None,
    )


def _decision(one: Decision) -> answers_models.ReplayDecision:
    return answers_models.ReplayDecision(summary=one.summary, fields=dict(one.fields))


def trainable_of(found: Described) -> answers_models.Trainable:
    space = None if found.search_space is None else dict(found.search_space)
    objective = None if found.objective is None else dict(found.objective)
    return answers_models.Trainable(
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
