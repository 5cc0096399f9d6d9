"""Evaluate a described run on every machine and market of the catalogue: whether it fits, how long it takes and what it costs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tuner.domain.checkpointing import daly_ns
from tuner.domain.listing import Listing, Market
from tuner.domain.money import MICRO, Money, Price
from tuner.domain.time import MAX_SECONDS, NS
from tuner.planning.accelerators import accelerator
from tuner.planning.estimates.described import EFFICIENCY, Format, SpotAssumptions, TrainingRun
from tuner.planning.estimates.memory import RECOMPUTED, Fit, fit
from tuner.planning.estimates.scaling import Link, Speed, bandwidth, link_within, point, speed

SHOWN = 10  # for each reason to leave machines out, at most this many instance types are named
UNKNOWN_SPEED = "its speed is not known from a measurement or a data sheet"
NINE_OF_TEN = 1.2816  # nine of ten values of a normal distribution are at most this many standard deviations above its mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The duration and the paid time of a run on spot machines, including interruptions."""

    interval_ns: int  #: Training time between saves.
    interruptions: float  #: The mean number of interruptions.
    paid_ns: int  #: The mean time that is paid.
    wall_ns: int  #: The mean time until the result is available.
    late_paid_ns: int  #: Nine of ten runs pay for at most this time.
    late_ns: int  #: Nine of ten runs have their result after at most this time.

    def overhead(self, train_ns: int) -> float:
        """Return the paid time beyond training as a share of the training time."""
        return self.paid_ns / train_ns - 1 if train_ns else 0.0


def interrupted(train_ns: int, terms: SpotAssumptions) -> Interrupted | None:
    """Compute the time of a run on spot machines that takes `train_ns` without interruptions.

    Return None if interruptions are so frequent that the run may not end within 30 years.

    Interruptions happen at random, with a mean time M between them. Each one costs the unsaved work and a restart of length R. With a save
    of length δ after every τ of training, a run of length T takes M·e^(R/M)·(e^((τ+δ)/M) − 1)·T/τ (Daly, FGCS 22(3), 2006, eq. 20). Here,
    τ is Daly's optimum. Preemption notices are not taken into account, so a run that saves after a notice loses less than estimated. The
    wait for a new machine is not paid, but it delays the result.

    The number of interruptions has a Poisson distribution with mean n. In nine of ten runs it is at most n + 1.2816·√n. Each interruption
    beyond n costs a restart, a wait and half an interval.
    """
    mean = terms.mean_ns
    interval = max(NS, min(train_ns, daly_ns(terms.checkpoint_ns, mean)))
    try:
        stretch = mean / interval * math.exp(terms.restore_ns / mean)
        paid = train_ns * stretch * math.expm1((interval + terms.checkpoint_ns) / mean)
    except OverflowError:
        return None
    interruptions = paid / mean
    wall = paid + interruptions * terms.wait_ns
    more = NINE_OF_TEN * math.sqrt(interruptions)
    lost = more * (terms.restore_ns + (interval + terms.checkpoint_ns) / 2)
    late = wall + lost + more * terms.wait_ns
    if late > MAX_SECONDS * NS:
        return None
    return Interrupted(
        interval_ns=interval,
        interruptions=interruptions,
        paid_ns=math.ceil(paid),
        wall_ns=math.ceil(wall),
        late_paid_ns=math.ceil(paid + lost),
        late_ns=math.ceil(late),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """How the run fits on one instance type, and how long it takes there."""

    gpus: int
    fit: Fit | None
    link: Link | None
    speed: Speed
    efficiency: Fraction
    per_second: Fraction  #: The speed of all GPUs together, in work per second.
    train_ns: tuple[int, int, int]  #: The shortest, expected and longest time, without interruptions.
    #: The shortest, expected and longest run on spot machines. None if spot is not requested, or if a run might take more than 30 years.
    met: tuple[Interrupted, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotEffect:
    """The effect of the spot market on the expected run: interruptions, and the savings compared to the same machine on demand."""

    interrupted: Interrupted
    train_ns: int
    price: Price
    demand: Price | None  #: The on-demand price. If it is None, the savings are not known.

    @property
    def overhead(self) -> float:
        return self.interrupted.overhead(self.train_ns)

    @property
    def list_saving(self) -> Fraction | None:
        if self.demand is None:
            return None
        return 1 - Fraction(self.price.micro_usd_per_hour, self.demand.micro_usd_per_hour)

    @property
    def saving_usd(self) -> Money | None:
        if self.demand is None:
            return None
        return self.demand.of(self.train_ns) - self.price.of(self.interrupted.paid_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEstimate:
    """The run's expected time and cost on one machine, in one region and on one market, with their ranges."""

    listing: Listing
    zones: tuple[str, ...]
    market: Market
    price: Price
    timed: RunTime
    wall_ns: int  #: The expected time until the result is available.
    wall_ns_range: tuple[int, int]
    usd: Money  #: The expected cost.
    usd_range: tuple[Money, Money]
    spot: SpotEffect | None
    meets_deadline: bool | None  #: Whether the longest time is within the deadline. None without a deadline.
    #: Whether the expected time is within the deadline. None without a deadline.
    meets_on_average: bool | None

    def per_dollar(self, count: Fraction) -> Fraction | None:
        """Return how many samples or tokens a dollar pays for, if the whole run processes `count`. Return None if the run costs nothing."""
        return count * MICRO / self.usd.micro_usd if self.usd.micro_usd else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedMachines:
    """A reason why the run cannot use some machines, and the instance types of these machines."""

    reason: str
    count: int  #: The number of offers on both markets.
    instance_types: tuple[str, ...]  #: The first ten instance types, in alphabetical order.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The machines that the run can use, the cheapest first, and the machines that it cannot use."""

    fitting: tuple[MachineEstimate, ...]  #: Machines on which the run fits as described.
    changed: tuple[MachineEstimate, ...]  #: Machines on which the run fits only with changes.
    left_out: tuple[ExcludedMachines, ...]

    def cheapest(self, *, market: Market | None = None, in_time: bool = False) -> MachineEstimate | None:
        """Return the cheapest machine on which the run fits without changes. Return None if it fits on none.

        If `market` is given, only that market is searched. If `in_time`, only machines that meet the deadline are considered.
        """
        market_candidates = (each for each in self.fitting if market in (None, each.market))
        return next((each for each in market_candidates if each.meets_deadline or not in_time), None)

    def fastest(self) -> MachineEstimate | None:
        return min(self.fitting, key=lambda each: (each.wall_ns, each.usd), default=None)


def rank(run: TrainingRun, listings: Sequence[Listing]) -> Ranked:
    """Evaluate the run on all listings, and sort the results by cost. A whole machine is paid for, even if the run uses only part of it."""
    left: dict[str, list[str]] = {}
    kinds: dict[tuple[object, ...], RunTime | str] = {}
    candidates: list[MachineEstimate] = []
    for listing, zones, market in offers(run.where.markets, listings):
        kind = (listing.cloud, listing.instance_type, listing.accelerators, listing.gpu_memory_gib)
        if kind not in kinds:
            kinds[kind] = timed(run, listing)
        time = kinds[kind]
        candidate = time if isinstance(time, str) else _candidate(run, time, listing, zones, market)
        if isinstance(candidate, str):
            left.setdefault(candidate, []).append(listing.instance_type)
        else:
            candidates.append(candidate)
    candidates.sort(key=lambda each: (each.usd, each.wall_ns, each.listing.cloud, each.listing.region))
    return Ranked(
        fitting=tuple(each for each in candidates if each.timed.fit is None or not each.timed.fit.changes),
        changed=tuple(each for each in candidates if each.timed.fit is not None and each.timed.fit.changes),
        left_out=excluded(left),
    )


def excluded(types_by_reason: Mapping[str, Sequence[str]]) -> tuple[ExcludedMachines, ...]:
    """Summarize the machines that a run cannot use.

    Args:
        types_by_reason: For each reason, the instance type of each excluded offer. A type with several offers appears several times.
    """
    return tuple(
        ExcludedMachines(reason=reason, count=len(types), instance_types=tuple(sorted(set(types))[:SHOWN]))
        for reason, types in types_by_reason.items()
    )


def timed(run: TrainingRun, listing: Listing) -> RunTime | str:
    """Return how long the run takes on a machine, or the reason why it cannot run there."""
    gpus = _gpus(run, listing)
    if isinstance(gpus, str):
        return gpus
    fitted = _fitted(run, listing) if gpus else None
    if isinstance(fitted, str):
        return fitted
    precision: Format = "bf16" if run.model is None else run.model.precision
    machine_speed = speed(run, listing, precision if fitted is None else fitted.precision)
    if machine_speed is None:
        return UNKNOWN_SPEED
    link = link_within(listing) if gpus > 1 else None
    efficiency = _efficiency(run, listing, gpus, machine_speed, link)
    slower = RECOMPUTED if _recomputes(run, fitted, machine_speed) else Fraction(1)
    least, counted, most = (each * max(1, gpus) * efficiency / slower for each in machine_speed.per_second)
    work = run.work.flops if machine_speed.basis == "flops" else run.work.count
    assert work is not None  # the validation of the run guarantees this
    train_ns = _ns(work / most), _ns(work / counted), _ns(work / least)
    if train_ns[2] > MAX_SECONDS * NS:
        return "the run may take longer than 30 years"
    met = [interrupted(ns, run.spot) for ns in train_ns] if "spot" in run.where.markets else [None]
    return RunTime(
        gpus=gpus,
        fit=fitted,
        link=link,
        speed=machine_speed,
        efficiency=efficiency,
        per_second=counted,
        train_ns=train_ns,
        met=None if None in met else tuple(time for time in met if time is not None),
    )


def offers(
    markets: Sequence[Market], listings: Sequence[Listing]
) -> Iterator[tuple[Listing, tuple[str, ...], Market]]:
    """Yield each offer as a listing, its zones and its market. Zones of a region with the same price are combined into one offer."""
    for market in markets:
        same: dict[tuple[object, ...], list[Listing]] = {}
        for listing in listings:
            if listing.price(market) is not None:
                key = (
                    listing.cloud,
                    listing.region,
                    listing.instance_type,
                    listing.gpu_memory_gib,
                    listing.price(market),
                )
                same.setdefault(key, []).append(listing)
        for group in same.values():
            yield group[0], tuple(sorted(listing.zone for listing in group if listing.zone)), market


def _gpus(run: TrainingRun, listing: Listing) -> int | str:
    """Return how many GPUs the run uses on a machine, or the reason why it cannot run there."""
    has = listing.accelerators
    if run.gpus == 0:
        return "it has GPUs, but the run uses none" if has else 0
    wanted = max(1, int(has)) if run.gpus is None else run.gpus
    if not has:
        return "it has no GPU"
    if has < wanted:
        return f"it has only {has:g} of the {wanted} GPU{'s' * (wanted > 1)} that the run needs"
    return wanted


def _fitted(run: TrainingRun, listing: Listing) -> Fit | str | None:
    if run.model is None:
        return None
    if listing.gpu_memory_gib is None:
        return "the memory of its GPUs is not known"
    kind = accelerator(listing.accelerator, listing.gpu_memory_gib)
    gib = Fraction(str(listing.gpu_memory_gib))
    fitted = fit(run.model, gib, bf16=kind is not None and kind.bf16)
    return (
        fitted
        or f"the run does not fit into {listing.gpu_memory_gib:g} GiB of GPU memory, even with every change that saves memory"
    )


def _recomputes(run: TrainingRun, fitted: Fit | None, known: Speed) -> bool:
    """Return whether the run uses gradient checkpointing, but the known speed does not include the extra time for it.

    A measured speed includes this time if the run was described with gradient checkpointing.
    """
    if fitted is None or not fitted.gradient_checkpointing:
        return False
    return known.basis == "flops" or "gradient_checkpointing" in fitted.changes


def _efficiency(run: TrainingRun, listing: Listing, gpus: int, known: Speed, link: Link | None) -> Fraction:
    """Return the run's speed per GPU on `gpus` GPUs, divided by the speed per GPU in the measurement.

    It is 1 if the run uses at most as many GPUs as the measurement, because the measured speed already includes communication.
    """
    if link is None or gpus <= known.measured_gpus:
        return Fraction(1)
    if run.efficiency is not None:
        return run.efficiency
    kind = accelerator(listing.accelerator, listing.gpu_memory_gib)
    if run.scaling is not None and kind is not None:
        many, few = (run.scaling.efficiency(kind.name, link, count) for count in (gpus, known.measured_gpus))
        if many is not None and few is not None:
            return min(Fraction(1), many / few)
    a_step = _per_step(run, known)
    if run.model is None or kind is None or a_step is None:
        return EFFICIENCY
    bytes_s = bandwidth(kind, link, Fraction(0))
    gradients = run.model.parameters * (4 if run.model.precision == "fp32" else 2)
    step_s = a_step / known.per_second[1]
    if bytes_s is None:
        return EFFICIENCY
    return point(gpus=gpus, link=link, gradient_bytes=gradients, step_s=step_s, bytes_s=bytes_s).efficiency


def _per_step(run: TrainingRun, known: Speed) -> Fraction | None:
    """Return the samples, tokens or FLOPs of one step on one GPU, in the unit of `known.per_second`. Return None if they are not known."""
    model = run.model
    if model is None:
        return None
    each = model.sequence if run.work.unit == "tokens" else 1
    if each is None:
        return None
    count = Fraction(model.batch * each)
    if known.basis != "flops":
        return count
    if run.work.flops is None or not run.work.count:
        return None
    return count * run.work.flops / run.work.count


def _candidate(
    run: TrainingRun, time: RunTime, listing: Listing, zones: tuple[str, ...], market: Market
) -> MachineEstimate | str:
    price = listing.price(market)
    assert price is not None
    paid, walls = list(time.train_ns), list(time.train_ns)
    spot = None
    if market == "spot":
        if time.met is None:
            return "spot machines are interrupted so often that the run may not end within 30 years"
        fast, counted, slow = time.met
        paid = [fast.paid_ns, counted.paid_ns, slow.late_paid_ns]
        walls = [fast.wall_ns, counted.wall_ns, slow.late_ns]
        spot = SpotEffect(
            interrupted=counted, train_ns=time.train_ns[1], price=price, demand=listing.on_demand
        )
    dollars = [price.of(ns) for ns in paid]
    return MachineEstimate(
        listing=listing,
        zones=zones,
        market=market,
        price=price,
        timed=time,
        wall_ns=walls[1],
        wall_ns_range=(walls[0], walls[2]),
        usd=dollars[1],
        usd_range=(dollars[0], dollars[2]),
        spot=spot,
        meets_deadline=None if run.deadline_ns is None else walls[2] <= run.deadline_ns,
        meets_on_average=None if run.deadline_ns is None else walls[1] <= run.deadline_ns,
    )


def _ns(seconds: Fraction) -> int:
    return int(-(-seconds * NS // 1))
