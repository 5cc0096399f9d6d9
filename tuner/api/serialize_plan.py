"""Convert plans to the models of `tuner.schemas`."""

from typing import Any

from tuner.api.serialize_jobs import spec_to_wire
from tuner.domain.job import JobSpec
from tuner.domain.money import MS_PER_HOUR, Money, Price
from tuner.domain.time import NS
from tuner.schemas import plan as plan_models
from tuner.service.plans import Alternative, Chance, Comparison, Evidence, Inputs, Plan, PlannedRung, Spread


def plan_of(plan: Plan, spec: JobSpec) -> plan_models.Plan:
    return plan_models.Plan(
        name=spec.name,
        usd=_range(plan.cost, 1_000_000),
        gpu_hours=_range(plan.gpu_ms, MS_PER_HOUR),
        finish_seconds=_range(plan.finish_ns, NS),
        trials=_range(plan.trials, 1),
        rungs=[_rung(rung) for rung in plan.rungs],
        ends={str(reason): count for reason, count in sorted(plan.ends.items())},
        deadline_seconds=_seconds(plan.deadline_ns),
        in_time=_chance(plan.in_time),
        target=_chance(plan.target),
        best=None
        if plan.best is None
        else plan_models.Range(
            expected=round(plan.best.expected, 6),
            low=round(plan.best.low, 6),
            high=round(plan.best.high, 6),
        ),
        checkpoints=plan_models.PlanCheckpoints(
            every_steps=plan.checkpointing.every_steps,
            every_seconds=plan.checkpointing.every_ns / NS,
            why=plan.checkpointing.why,
        ),
        choices=[
            plan_models.PlanChoice(what=one.what, asked=one.asked, chosen=one.chosen, why=one.why)
            for one in plan.choices
        ],
        alternatives=[_alternative(one) for one in plan.alternatives],
        comparisons=[_comparison(one) for one in plan.comparisons],
        warnings=list(plan.warnings),
        inputs=_inputs(plan.inputs, spec),
        job=_job(spec),
    )


def _job(spec: JobSpec) -> dict[str, Any]:
    """Return the planned job in the form of the request, with defaults filled in."""
    return {"name": spec.name, **spec_to_wire(spec, spec.budget), "tags": dict(spec.tags)}


def _rung(rung: PlannedRung) -> plan_models.PlanRung:
    return plan_models.PlanRung(
        step=rung.step,
        trials=rung.milli_trials / 1000,
        steps=rung.milli_steps / 1000,
        step_seconds=rung.step_ns / NS,
        usd_per_hour=rung.price.usd_per_hour,
        train_usd=rung.train.usd,
        overhead_usd=rung.overhead.usd,
        usd=rung.usd.usd,
        gpu_hours=_hours(rung.gpu_ms),
    )


def _alternative(one: Alternative) -> plan_models.PlanAlternative:
    return plan_models.PlanAlternative(
        instance_type=one.instance_type,
        market=one.market,
        usd_per_hour=_price(one.price),
        concurrency=one.concurrency,
        source=one.source,
        speed=None if one.speed is None else round(one.speed, 6),
        chosen=one.chosen,
        why_not=one.why_not,
        usd=_usd(one.usd),
        finish_seconds=_seconds(one.finish_ns),
        trials=one.trials,
        usd_per_1000_steps=_usd(one.usd_per_1000_steps),
        in_time=_chance(one.in_time),
    )


def _comparison(one: Comparison) -> plan_models.PlanComparison:
    return plan_models.PlanComparison(
        name=one.name,
        usd=one.usd.usd,
        usd_low=one.low.usd,
        usd_high=one.high.usd,
        gpu_hours=_hours(one.gpu_ms),
        finish_seconds=round(one.finish_ns / NS, 6),
        trials=one.trials,
        steps=one.steps,
        note=one.note,
    )


def _inputs(inputs: Inputs, spec: JobSpec) -> plan_models.PlanInputs:
    wanted = spec.resources
    return plan_models.PlanInputs(
        evidence=_evidence(inputs.evidence),
        prices=[
            plan_models.PlanPrice(
                instance_type=offer.instance_type,
                market=offer.market,
                usd_per_hour=offer.price.usd_per_hour,
                cpus=offer.cpus,
                gpus=offer.gpus,
                trial_usd_per_hour=offer.rate(cpus=wanted.cpus, gpus=wanted.gpus).price.usd_per_hour,
                source=offer.source,
            )
            for offer in inputs.offers
        ],
        concurrency=inputs.concurrency,
        speed=inputs.speed,
        seed=inputs.seed,
        runs=inputs.runs,
        factors=[round(factor, 6) for factor in inputs.factors],
        scheduler=inputs.scheduler,
        sampler=inputs.sampler,
    )


def _evidence(evidence: Evidence) -> plan_models.PlanEvidence:
    return plan_models.PlanEvidence(
        source=evidence.source,
        jobs=list(evidence.jobs),
        trials=len(evidence.trials),
        step_seconds=evidence.step_ns / NS,
        doubt=round(evidence.doubt, 6),
        step_spread=round(evidence.spread, 6),
        setup_seconds=evidence.delays.setup_ns / NS,
        warming_seconds=evidence.delays.warming_ns / NS,
        restore_seconds=evidence.delays.restore_ns / NS,
        checkpoint_seconds=evidence.delays.save_ns / NS,
        instance_type=evidence.machine or None,
        knows_curves=evidence.knows_curves,
        digest=evidence.digest,
    )


def _range(spread: Spread, unit: int) -> plan_models.Range:
    expected, low, high = (round(value / unit, 6) for value in (spread.expected, spread.low, spread.high))
    return plan_models.Range(expected=expected, low=low, high=high)


def _chance(chance: Chance | None) -> plan_models.PlanChance | None:
    if chance is None:
        return None
    return plan_models.PlanChance(chance=round(chance.share, 6), met=chance.met, runs=chance.runs)


def _usd(money: Money | None) -> float | None:
    return None if money is None else money.usd


def _price(price: Price | None) -> float | None:
    return None if price is None else price.usd_per_hour


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / NS, 6)


def _hours(gpu_ms: int) -> float:
    return round(gpu_ms / MS_PER_HOUR, 6)
