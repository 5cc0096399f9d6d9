"""Convert requests for estimates to domain values. Numbers are exact; durations and deadlines are in nanoseconds."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import ceil

from tuner.api.translate import RequestReader
from tuner.domain.errors import Invalid, NotFound
from tuner.domain.job import Resources
from tuner.domain.money import Money, Price
from tuner.domain.time import HOUR_NS, NS, Instant, is_time, parse_duration_ns, parse_rfc3339
from tuner.domain.units import MIB
from tuner.schemas import estimates as wire
from tuner.service import estimates
from tuner.service.estimates import ReplicaSpeed, ServedModel, described

#: Returns the measured figures of an exported variant, and the resources of the trial that measured them.
MeasuredModel = Callable[[wire.ExportedVariant], tuple[ServedModel, Resources]]
#: Returns, for a job's id, the scaling efficiency that jobs with the same trainable measured. Raises ValueError if none did.
MeasuredByJob = Callable[[str], described.MeasuredScaling]


def questions_of(
    request: wire.EstimateRequest, now: Instant, measured: MeasuredModel, scaling: MeasuredByJob
) -> estimates.EstimateQuestions:
    """Convert a request for estimates.

    Args:
        now: The present time. A deadline in the request may be a point in time; it is converted to the nanoseconds from `now`.
        measured: Returns the measured figures of an exported variant that the request names.
        scaling: Returns the measured scaling efficiency of jobs like the one that the request names.

    Raises:
        Invalid: A value cannot be read.
    """
    read = RequestReader()
    questions = estimates.EstimateQuestions(
        run=None if request.run is None else _run(read, request.run, now, scaling),
        choices=None if request.choices is None else _choices(read, request.choices, now),
        scaling=None if request.scaling is None else _scaling(read, request.scaling, scaling),
        compute=None if request.compute_optimal is None else _compute(read, request.compute_optimal),
        recurring=None if request.recurring is None else _recurring(read, request.recurring),
        ownership=None if request.ownership is None else _ownership(read, request.ownership),
        serving=None if request.serving is None else _serving(read, request.serving, measured),
    )
    read.check()
    return questions


def exact(value: float) -> Fraction:
    """Return the fraction that equals the number's decimal text, such as 1/10 for 0.1, and not its binary value."""
    return Fraction(Decimal(str(value)))


def _some(value: float | None) -> Fraction | None:
    return None if value is None else exact(value)


def _run(read: RequestReader, given: wire.Run, now: Instant, scaling: MeasuredByJob) -> described.TrainingRun:
    model = None if given.model is None else _model(given.model)
    where = _where(given)
    work, measured = _work(given, where, model)
    return described.TrainingRun(
        work=work,
        measurements=measured,
        utilisation=_some(given.utilisation),
        model=model,
        gpus=None if given.gpus == "all" else given.gpus,
        efficiency=_some(given.scaling_efficiency),
        scaling=read.convert("/run/scaling_job", scaling, given.scaling_job),
        deadline_ns=read.convert("/run/deadline", lambda value: _until(value, now), given.deadline),
        where=where,
        spot=_spot(read, given.spot),
        limit=given.limit,
    )


def _where(given: wire.Run | wire.Serving) -> described.ListingFilter:
    return described.ListingFilter(
        clouds=tuple(given.clouds),
        regions=tuple(given.regions),
        accelerators=tuple(given.accelerators),
        instance_types=tuple(given.instance_types),
        markets=tuple(dict.fromkeys(given.markets)),
    )


#: Fields that describe the work and its speed, and therefore conflict with `hours`.
OTHERWISE = {"samples", "tokens", "epochs", "flops", "flops_per_sample", "throughput", "utilisation"}


def _work(
    given: wire.Run, where: described.ListingFilter, model: described.ModelShape | None
) -> tuple[described.RunWork, tuple[described.Measurement, ...]]:
    """Return the work of the run and the measurements of its speed. Raise Invalid if the description is incomplete or contradictory."""
    if given.hours is not None:
        gpus = None if given.gpus == "all" else given.gpus
        others = given.model_fields_set & OTHERWISE
        timed, speed = estimates.timed_run(exact(given.hours), where=where, gpus=gpus, others=others)
        return timed, (speed,)
    work = estimates.work_of(
        samples=_some(given.samples),
        epochs=exact(given.epochs),
        tokens=_some(given.tokens),
        flops=_some(given.flops),
        flops_per_sample=_some(given.flops_per_sample),
        parameters=None if model is None else model.parameters,
    )
    measured = tuple(
        described.Measurement(
            per_second=exact(measurement.per_second),
            accelerator=measurement.accelerator,
            instance_type=measurement.instance_type,
            gpus=measurement.gpus,
        )
        for measurement in given.throughput
    )
    return work, measured


def _model(given: wire.Model) -> described.ModelShape:
    fields = given.model_dump(exclude={"parameters", "activation_mib_per_sample"})
    mib = given.activation_mib_per_sample
    return described.ModelShape(
        **fields,
        parameters=ceil(exact(given.parameters)),
        activation_bytes=None if mib is None else ceil(exact(mib) * MIB),
    )


def _spot(read: RequestReader, given: wire.SpotTerms) -> described.SpotAssumptions:
    return described.SpotAssumptions(
        mean_ns=ceil(HOUR_NS / exact(given.interruptions_per_hour)),
        checkpoint_ns=read.convert("/run/spot/checkpoint", parse_duration_ns, given.checkpoint) or 0,
        restore_ns=read.convert("/run/spot/restore", parse_duration_ns, given.restore) or 0,
        wait_ns=read.convert("/run/spot/wait", parse_duration_ns, given.wait) or 0,
    )


def _until(value: int | float | str, now: Instant) -> int:
    """Return the nanoseconds from `now` to a deadline. `value` is a duration or a time. Raise ValueError if the deadline is not in the future."""
    left = parse_rfc3339(str(value)) - now if is_time(value) else _duration(value)
    if left <= 0:
        fix = "has passed" if is_time(value) else "must be longer than 0"
        raise ValueError(f"{fix}: give a future time, or a duration such as 12h")
    return left


def _duration(value: int | float | str) -> int:
    if not isinstance(value, str) and value < 0:
        raise ValueError("has passed: give a future time, or a duration such as 12h")
    try:
        return parse_duration_ns(value)
    except ValueError as error:
        raise ValueError(f"{error}, or a time such as 2027-01-31T12:00:00Z") from error


def _choices(read: RequestReader, given: wire.Choices, now: Instant) -> described.PricedOptions:
    options = []
    for index, given_option in enumerate(given.options):
        pointer = f"/choices/options/{index}"
        duration = read.convert(f"{pointer}/duration", _positive, given_option.duration)
        price = read.convert(f"{pointer}/usd_per_hour", Price.from_usd_per_hour, given_option.usd_per_hour)
        if duration is not None and price is not None:
            option = described.PricedOption(
                name=given_option.name,
                usd_per_hour=price,
                duration_ns=duration,
                machines=given_option.machines,
            )
            options.append(option)
    deadline = read.convert("/choices/deadline", lambda value: _until(value, now), given.deadline)
    return described.PricedOptions(options=tuple(options), deadline_ns=deadline)


def _positive(value: int | float | str) -> int:
    duration_ns = parse_duration_ns(value)
    if duration_ns <= 0:
        raise ValueError("must be longer than 0")
    return duration_ns


def _scaling(read: RequestReader, given: wire.Scaling, scaling: MeasuredByJob) -> described.ScalingQuestion:
    return described.ScalingQuestion(
        accelerator=given.accelerator,
        parameters=ceil(exact(given.parameters)),
        precision=given.precision,
        step_s=exact(given.step_seconds),
        gpus=tuple(sorted(set(given.gpus))),
        ethernet_gbit_s=exact(given.ethernet_gbit_s),
        hours_on_one=_some(given.hours_on_one),
        measured=read.convert("/scaling/job", scaling, given.job),
    )


def _compute(read: RequestReader, given: wire.ComputeOptimal) -> described.ComputeQuestion:
    return described.ComputeQuestion(
        flops=_some(given.flops),
        usd=read.convert("/compute_optimal/usd", Money.from_usd, given.usd),
        accelerator=given.accelerator,
        market=given.market,
        utilisation=_some(given.utilisation),
    )


def _recurring(read: RequestReader, given: wire.Recurring) -> described.RecurringQuestion:
    costs = [
        (cost.name, read.convert(f"/recurring/costs/{index}/usd_per_run", Money.from_usd, cost.usd_per_run))
        for index, cost in enumerate(given.costs)
    ]
    return described.RecurringQuestion(
        runs_per_month=exact(given.runs_per_month),
        failed_share=exact(given.failed_share),
        costs=tuple((name, usd) for name, usd in costs if usd is not None),
    )


def _ownership(read: RequestReader, given: wire.Ownership) -> described.OwnershipQuestion:
    def usd(name: str, value: float | None) -> Money | None:
        return read.convert(f"/ownership/{name}", Money.from_usd, value)

    cloud = usd("cloud_usd_per_hour", given.cloud_usd_per_hour)
    owned = described.Owned(
        purchase=usd("purchase_usd", given.purchase_usd) or Money(0),
        resale=usd("resale_usd", given.resale_usd) or Money(0),
        upkeep_per_year=usd("upkeep_usd_per_year", given.upkeep_usd_per_year) or Money(0),
        lifetime_years=exact(given.lifetime_years),
        watts=exact(given.watts),
        pue=exact(given.pue),
        usd_per_kwh=exact(given.usd_per_kwh),
        utilisation=exact(given.utilisation),
    )
    return described.OwnershipQuestion(
        owned=owned,
        cloud=None if cloud is None else Price(cloud.micro_usd),
        accelerator=given.accelerator,
        gpus=given.gpus,
        market=given.market,
    )


#: Fields that describe the model, and therefore conflict with `measured`.
DESCRIBED = {"latency_ms", "per_second", "batch_per_second", "bytes", "load_ms"}


def _serving(read: RequestReader, given: wire.Serving, measured: MeasuredModel) -> described.ServingQuestion:
    start_ns = read.convert("/serving/start", parse_duration_ns, given.start) or 0
    if given.measured is None:
        model, size = _served(given), Resources()
    else:
        model, size = _measured(given, given.measured, measured)
    return described.ServingQuestion(
        model=model,
        per_second=given.requests_per_second,
        start_s=start_ns / NS,
        download_bytes_s=given.download_mbit_s * 1e6 / 8,
        cpus=size.cpus if given.cpus is None else given.cpus,
        gpus=size.gpus if given.gpus is None else given.gpus,
        where=_where(given),
        limit=given.limit,
    )


def _measured(
    given: wire.Serving, variant: wire.ExportedVariant, measured: MeasuredModel
) -> tuple[ServedModel, Resources]:
    if others := given.model_fields_set & DESCRIBED:
        raise Invalid.at("/serving/measured", f"give measured, or {', '.join(sorted(others))}, not both")
    try:
        return measured(variant)
    except NotFound as error:
        raise Invalid.at("/serving/measured", str(error)) from error


def _served(given: wire.Serving) -> ServedModel:
    if given.latency_ms is not None:
        latency_s = given.latency_ms / 1000
        per_second = given.per_second or 1 / latency_s
    elif given.per_second is not None:
        per_second = given.per_second
        latency_s = 1 / per_second
    else:
        raise Invalid.at(
            "/serving", "the speed is missing: give latency_ms, per_second or a measured variant"
        )
    speed = ReplicaSpeed(latency_s, per_second, given.batch_per_second or per_second)
    return ServedModel(speed=speed, size_bytes=given.bytes, load_s=given.load_ms / 1000)
