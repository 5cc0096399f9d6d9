"""Convert cost estimates to the models of `tuner.schemas`.

Money is in dollars, exact to the micro-dollar. Other figures are rounded to six decimals.
"""

from dataclasses import fields
from fractions import Fraction
from typing import Any

from tuner.domain.money import Money, Price
from tuner.domain.time import NS
from tuner.schemas import estimate_answers as estimate_answers_models
from tuner.schemas.estimates import EstimateRequest
from tuner.service import estimates
from tuner.service.estimates import EstimateView

GIB = 2**30
HOUR_NS = 3600 * NS
SCALING_ASSUMPTIONS = [
    "0.7 of a link's bandwidth is reached; a message takes 5 µs over NVLink, 10 over PCIe, 30 over Ethernet (no source)",
    "none of the communication is hidden in `efficiency`; as much as the backward pass can hide in `overlapped`",
    "one ring through all GPUs: between machines it has the whole of `ethernet_gbit_s`",
]


def estimate_of(
    request: EstimateRequest, asked: estimates.Asked, view: EstimateView
) -> estimate_answers_models.Estimate:
    return estimate_answers_models.Estimate(
        given=request.model_dump(exclude_none=True),
        catalogue=view.catalogue,
        prices=view.prices,
        run=None if view.run is None or asked.run is None else _run(asked.run, view.run),
        choices=None if view.choices is None else _choices(view.choices),
        scaling=None if view.scaling is None else _scaling(view.scaling),
        compute_optimal=None if view.compute is None else _compute(view.compute),
        recurring=None
        if view.recurring is None
        else [estimate_answers_models.Yearly(**_plain(one)) for one in view.recurring],
        ownership=None if view.ownership is None else _ownership(*view.ownership),
    )


def _run(run: estimates.Run, view: estimates.RunView) -> estimate_answers_models.RunEstimate:
    ranked, count = view.ranked, run.work.count

    def one(found: estimates.Candidate | None) -> estimate_answers_models.Candidate | None:
        return None if found is None else _candidate(found, count)

    return estimate_answers_models.RunEstimate(
        count=len(ranked.fitting),
        candidates=[_candidate(found, count) for found in ranked.fitting[: run.limit]],
        with_changes_count=len(ranked.changed),
        with_changes=[_candidate(found, count) for found in ranked.changed[: run.limit]],
        cheapest=one(ranked.cheapest()),
        cheapest_on_demand=one(ranked.cheapest(market="on_demand")),
        cheapest_in_time=one(ranked.cheapest(in_time=True)),
        fastest=one(ranked.fastest()),
        work=_plain(run.work),
        memory_gib=None if run.model is None else _memory(estimates.memory_of(run.model)),
        left_out=[estimate_answers_models.LeftOut(**_plain(left)) for left in ranked.left_out],
        assumptions=[estimate_answers_models.Assumption(**_plain(taken)) for taken in view.assumptions],
        warnings=list(view.warnings),
    )


def _candidate(found: estimates.Candidate, count: Fraction | None) -> estimate_answers_models.Candidate:
    listing, timed, speed = found.listing, found.timed, found.timed.speed
    return estimate_answers_models.Candidate(
        cloud=listing.cloud,
        region=listing.region,
        zones=list(found.zones),
        instance_type=listing.instance_type,
        market=found.market,
        accelerator=listing.accelerator,
        accelerators=listing.accelerators,
        gpu_memory_gib=listing.gpu_memory_gib,
        gpus=timed.gpus,
        usd_per_hour=found.price.usd_per_hour,
        price_date=listing.date(found.market),
        price_source=listing.source(found.market),
        flags=list(listing.flags),
        basis=speed.basis,
        measured_on=speed.measured_on,
        relative_speed=None if speed.factor is None else [_six(one) for one in speed.factor],
        link=timed.link,
        efficiency=_six(timed.efficiency),
        per_second=_six(timed.per_second),
        train_hours=_hours(timed.train_ns[1]),
        hours=_hours(found.wall_ns),
        hours_range=[_hours(ns) for ns in found.wall_ns_range],
        gpu_hours=_hours(timed.gpus * _paid_ns(found)),
        usd=found.usd.usd,
        usd_range=[usd.usd for usd in found.usd_range],
        per_dollar=_plain(None if count is None else found.per_dollar(count)),
        fit=None if timed.fit is None else _fit(timed.fit),
        spot=None if found.spot is None else _spot(found.spot),
        meets_deadline=found.meets_deadline,
        meets_deadline_on_average=found.meets_on_average,
    )


def _paid_ns(found: estimates.Candidate) -> int:
    return found.timed.train_ns[1] if found.spot is None else found.spot.interrupted.paid_ns


def _fit(fit: estimates.Fit) -> estimate_answers_models.Changes:
    return estimate_answers_models.Changes(
        changes=list(fit.changes),
        precision=fit.precision,
        micro_batch=fit.micro_batch,
        accumulation=fit.accumulation,
        gradient_checkpointing=fit.gradient_checkpointing,
        memory_gib=_memory(fit.memory),
    )


def _memory(found: estimates.Memory) -> estimate_answers_models.Memory:
    parts = {part.name: _six(Fraction(getattr(found, part.name), GIB)) for part in fields(found)}
    return estimate_answers_models.Memory(**parts, total=_six(Fraction(found.total, GIB)))


def _spot(found: estimates.Spot) -> estimate_answers_models.SpotFigures:
    met = found.interrupted
    return estimate_answers_models.SpotFigures(
        interruptions=round(met.interruptions, 6),
        checkpoint_interval_seconds=_six(Fraction(met.interval_ns, NS)),
        overhead=_six(found.overhead),
        list_saving=_plain(found.list_saving),
        saving_usd=_plain(found.saving_usd),
    )


def _choices(view: estimates.ChoicesView) -> estimate_answers_models.ChoicesEstimate:
    in_time = view.cheapest_in_time
    return estimate_answers_models.ChoicesEstimate(
        options=[
            estimate_answers_models.Chosen(
                name=one.option.name,
                usd_per_hour=one.option.usd_per_hour.usd_per_hour,
                machines=one.option.machines,
                hours=_hours(one.option.duration_ns),
                usd=one.usd.usd,
                meets_deadline=one.meets_deadline,
            )
            for one in view.options
        ],
        cheapest=view.cheapest.option.name,
        cheapest_in_time=None if in_time is None else in_time.option.name,
    )


def _scaling(view: estimates.ScalingView) -> estimate_answers_models.ScalingEstimate:
    return estimate_answers_models.ScalingEstimate(
        gradient_bytes=view.gradient_bytes,
        points=[estimate_answers_models.ScalingPoint(**_plain(one)) for one in view.points],
        machines=[estimate_answers_models.Machines(**_plain(one)) for one in view.machines],
        assumptions=SCALING_ASSUMPTIONS,
    )


def _compute(view: estimates.ComputeView) -> estimate_answers_models.ComputeEstimate:
    return estimate_answers_models.ComputeEstimate(
        flops=float(view.flops),
        bought=None if view.bought is None else estimate_answers_models.Bought(**_plain(view.bought)),
        optima=[estimate_answers_models.Optimum(**_plain(one)) for one in view.optima],
        caveats=list(estimates.CAVEATS),
    )


def _ownership(
    found: estimates.Comparison, listing: estimates.Listing | None
) -> estimate_answers_models.OwnershipEstimate:
    return estimate_answers_models.OwnershipEstimate(
        **_plain(found),
        cloud_instance_type=None if listing is None else listing.instance_type,
        cloud_region=None if listing is None else listing.region,
    )


def _plain(value: Any) -> Any:
    """Convert a value for JSON: dataclasses to mappings, money and prices to dollars, and other numbers to six decimals."""
    match value:
        case Money():
            return value.usd
        case Price():
            return value.usd_per_hour
        case Fraction() | float():
            return _six(value)
        case tuple():
            return [_plain(one) for one in value]
        case _ if hasattr(value, "__dataclass_fields__"):
            return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    return value


def _six(value: Fraction | float) -> float:
    return round(float(value), 6)


def _hours(ns: int) -> float:
    return _six(Fraction(ns, HOUR_NS))
