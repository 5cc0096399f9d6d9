"""Answers about the best configurations under a budget."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tuner.api.serialize_jobs import best_fields, hours, seconds
from tuner.schemas import best as show
from tuner.service.best import BestView, Forecast, Priced, Pricing
from tuner.service.next_dollar import Continuation


def best_answer_of(view: BestView) -> show.BestAnswer:
    return show.BestAnswer(
        **_fields(view.best),
        next_better=None if view.next_better is None else _point(view.next_better),
        pricing=_pricing(view.pricing),
        next_dollar=show.NextDollar(next_point=_next_point(view), forecast=_forecast(view.forecast)),
    )


def pareto_of(points: Iterable[Priced], pricing: Pricing | None) -> show.Pareto:
    return show.Pareto(items=[_point(point) for point in points], pricing=_pricing(pricing))


def best_of_all_of(view: BestView) -> show.BestOfAll:
    return show.BestOfAll(**_fields(view.best), job=view.job.id, pricing=_pricing(view.pricing))


def _point(priced: Priced) -> show.PricedBest:
    return show.PricedBest(**_fields(priced))


def _fields(priced: Priced) -> dict[str, Any]:
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


def _pricing(found: Pricing | None) -> show.Pricing | None:
    if found is None:
        return None
    machine, repricing = found.machine, found.repricing
    return show.Pricing(
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


def _next_point(view: BestView) -> show.NextPoint | None:
    better = view.next_better
    if better is None:
        return None
    extra, gain = better.cost.usd - view.best.cost.usd, view.gain(better.point)
    return show.NextPoint(
        trial=better.point.trial,
        step=better.point.step,
        metric=better.point.value,
        cost_usd=better.cost.usd.usd,
        extra_usd=extra.usd,
        gain=gain,
        gain_per_usd=gain / extra.usd if extra.micro_usd > 0 else None,
    )


def _forecast(found: Forecast | None) -> show.Forecast | None:
    if found is None:
        return None
    return show.Forecast(
        items=[_continuation(one) for one in found.trials],
        reason=found.reason or None,
        interval=0.8,
        as_of_event=found.as_of,
    )


def _continuation(one: Continuation) -> show.Continuation:
    return show.Continuation(
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
