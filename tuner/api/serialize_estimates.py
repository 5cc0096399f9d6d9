"""Convert cost estimates to the models of `tuner.schemas`.

Most fields have the same name and unit in the estimate and the model. Money is in dollars, exact to the micro-dollar.
"""

from dataclasses import asdict
from fractions import Fraction
from typing import Any

from tuner.domain.time import HOUR_NS, NS
from tuner.domain.units import GIB
from tuner.schemas import estimate_answers as estimate_answers_models
from tuner.schemas.estimates import EstimateRequest
from tuner.service import estimates
from tuner.service.estimates import EstimateView


def estimate_of(
    request: EstimateRequest, questions: estimates.EstimateQuestions, view: EstimateView
) -> estimate_answers_models.Estimate:
    run = None if view.run is None or questions.run is None else _run(questions.run, view.run)
    serving = (
        None
        if view.serving is None or questions.serving is None
        else _serving(questions.serving, view.serving)
    )
    fields = {**vars(view), "run": run, "serving": serving, "given": request.model_dump(exclude_none=True)}
    return estimate_answers_models.Estimate.model_validate(fields)


def _run(
    run: estimates.described.TrainingRun, view: estimates.RunView
) -> estimate_answers_models.RunEstimate:
    ranked, count = view.ranked, run.work.count

    def shown(candidate: estimates.MachineEstimate | None) -> estimate_answers_models.Candidate | None:
        return None if candidate is None else _candidate(candidate, count)

    work = {
        name: round(float(value), 6) if isinstance(value, Fraction) else value
        for name, value in asdict(run.work).items()
    }
    fields = {
        "count": len(ranked.fitting),
        "candidates": [_candidate(each, count) for each in ranked.fitting[: run.limit]],
        "with_changes_count": len(ranked.changed),
        "with_changes": [_candidate(each, count) for each in ranked.changed[: run.limit]],
        "cheapest": shown(ranked.cheapest()),
        "cheapest_on_demand": shown(ranked.cheapest(market="on_demand")),
        "cheapest_in_time": shown(ranked.cheapest(in_time=True)),
        "fastest": shown(ranked.fastest()),
        "work": work,
        "memory_gib": None if run.model is None else _memory(estimates.memory_of(run.model)),
        "left_out": ranked.left_out,
        "assumptions": view.assumptions,
        "warnings": view.warnings,
    }
    return estimate_answers_models.RunEstimate.model_validate(fields)


def _candidate(
    estimate: estimates.MachineEstimate, count: Fraction | None
) -> estimate_answers_models.Candidate:
    listing, timed, speed, spot = estimate.listing, estimate.timed, estimate.timed.speed, estimate.spot
    train_ns = timed.train_ns[1]
    fields: dict[str, Any] = {
        "cloud": listing.cloud,
        "region": listing.region,
        "zones": estimate.zones,
        "instance_type": listing.instance_type,
        "market": estimate.market,
        "accelerator": listing.accelerator,
        "accelerators": listing.accelerators,
        "gpu_memory_gib": listing.gpu_memory_gib,
        "gpus": timed.gpus,
        "usd_per_hour": estimate.price,
        "price_date": listing.date(estimate.market),
        "price_source": listing.source(estimate.market),
        "flags": listing.flags,
        "basis": speed.basis,
        "measured_on": speed.measured_on,
        "relative_speed": speed.factor,
        "link": timed.link,
        "efficiency": timed.efficiency,
        "per_second": timed.per_second,
        "train_hours": _hours(train_ns),
        "hours": _hours(estimate.wall_ns),
        "hours_range": [_hours(ns) for ns in estimate.wall_ns_range],
        "gpu_hours": _hours(timed.gpus * (train_ns if spot is None else spot.interrupted.paid_ns)),
        "usd": estimate.usd,
        "usd_range": estimate.usd_range,
        "per_dollar": None if count is None else estimate.per_dollar(count),
        "fit": None,
        "spot": None,
        "meets_deadline": estimate.meets_deadline,
        "meets_deadline_on_average": estimate.meets_on_average,
    }
    if timed.fit is not None:
        fields["fit"] = {
            "changes": timed.fit.changes,
            "precision": timed.fit.precision,
            "micro_batch": timed.fit.micro_batch,
            "accumulation": timed.fit.accumulation,
            "gradient_checkpointing": timed.fit.gradient_checkpointing,
            "memory_gib": _memory(timed.fit.memory),
        }
    if spot is not None:
        fields["spot"] = {
            "interruptions": spot.interrupted.interruptions,
            "checkpoint_interval_seconds": Fraction(spot.interrupted.interval_ns, NS),
            "overhead": spot.overhead,
            "list_saving": spot.list_saving,
            "saving_usd": spot.saving_usd,
        }
    return estimate_answers_models.Candidate.model_validate(fields)


def _serving(asked: estimates.described.ServingQuestion, view: estimates.ServingView) -> dict[str, Any]:
    speed = asked.model.speed
    return {
        "latency_ms": speed.latency_s * 1000,
        "per_second": speed.per_second,
        "batch_per_second": speed.best_per_second,
        "cold_start_seconds": view.cold_start_s,
        "count": len(view.ranked),
        "candidates": view.ranked[: asked.limit],
        "cheapest_real_time": view.cheapest(lambda candidate: candidate.cost.real_time),
        "cheapest_batch": view.cheapest(lambda candidate: candidate.cost.batch),
        "cheapest_scale_to_zero": view.cheapest(lambda candidate: candidate.cost.scale_to_zero),
        "left_out": view.left_out,
        "assumptions": view.assumptions,
        "warnings": view.warnings,
    }


def _memory(memory: estimates.GpuMemory) -> dict[str, Fraction]:
    parts = {**asdict(memory), "total": memory.total}
    return {name: Fraction(size, GIB) for name, size in parts.items()}


def _hours(ns: int) -> Fraction:
    return Fraction(ns, HOUR_NS)
