"""The sections of an estimate. Each can be requested alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction

from tuner.domain.errors import Invalid
from tuner.domain.listing import Listing, Market
from tuner.domain.money import NS_PER_HOUR, Money, Price
from tuner.planning.accelerators import accelerator
from tuner.planning.catalogue import Catalogue
from tuner.planning.estimates import checks, chinchilla, ownership, scaling
from tuner.planning.estimates.candidates import Ranked, rank
from tuner.planning.estimates.checks import check_accelerator, check_run, check_word
from tuner.planning.estimates.described import (
    UTILISATION,
    ComputeQuestion,
    OwnershipQuestion,
    PricedOptions,
    RecurringQuestion,
    ScalingQuestion,
    StatedAssumption,
    TrainingRun,
)

TERA = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """The cost of one of the user's options."""

    name: str
    usd_per_hour: Price
    machines: int
    hours: Fraction
    usd: Money
    meets_deadline: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicesView:
    """The user's options, cheapest first. Of two with the same cost, the faster one comes first."""

    options: tuple[OptionCost, ...]

    @property
    def cheapest(self) -> str:
        return self.options[0].name

    @property
    def cheapest_in_time(self) -> str | None:
        return next((option.name for option in self.options if option.meets_deadline is not False), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    ranked: Ranked
    assumptions: tuple[StatedAssumption, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingView:
    gradient_bytes: int
    points: tuple[scaling.LinkEfficiency, ...]
    machines: tuple[scaling.ScaledMachines, ...]
    assumptions: tuple[str, ...] = scaling.ASSUMPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class BoughtMachine:
    """The machine on which a FLOP is cheapest, and the hours on it that an amount of money buys."""

    cloud: str
    region: str
    instance_type: str
    accelerators: int
    usd_per_hour: Price
    hours: Fraction
    peak_tflops: Fraction
    utilisation: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeView:
    flops: Fraction
    bought: BoughtMachine | None
    optima: tuple[chinchilla.ComputeOptimum, ...]
    caveats: tuple[str, ...] = chinchilla.CAVEATS


def run_view(run: TrainingRun, catalogue: Catalogue, today: date) -> RunView:
    listings = check_run(run, catalogue)
    ranked = rank(run, listings)
    old = catalogue.warning(today, [each.listing for each in ranked.fitting[: run.limit]])
    return RunView(
        ranked=ranked,
        assumptions=checks.assumptions(run),
        warnings=(*([old] if old else []), *checks.warnings(run, ranked)),
    )


def choices_view(priced: PricedOptions) -> ChoicesView:
    costs = [
        OptionCost(
            name=option.name,
            usd_per_hour=option.usd_per_hour,
            machines=option.machines,
            hours=Fraction(option.duration_ns, NS_PER_HOUR),
            usd=Price(option.usd_per_hour.micro_usd_per_hour * option.machines).of(option.duration_ns),
            meets_deadline=None if priced.deadline_ns is None else option.duration_ns <= priced.deadline_ns,
        )
        for option in priced.options
    ]
    return ChoicesView(options=tuple(sorted(costs, key=lambda cost: (cost.usd, cost.hours))))


def scaling_view(question: ScalingQuestion, catalogue: Catalogue) -> ScalingView:
    faults = list(check_accelerator("/scaling/accelerator", question.accelerator))
    kind = accelerator(question.accelerator)
    if faults or kind is None:
        raise Invalid(*faults)
    gradient_bytes = question.parameters * (4 if question.precision == "fp32" else 2)
    points = scaling.table(
        kind,
        gpus=question.gpus,
        gradient_bytes=gradient_bytes,
        step_s=question.step_s,
        gbit_s=question.ethernet_gbit_s,
    )
    listings = [
        listing
        for listing in catalogue.listings
        if accelerator(listing.accelerator, listing.gpu_memory_gib) is kind
    ]
    scaled_machines = (
        scaling.machines(points, listings, question.hours_on_one) if question.hours_on_one else []
    )
    return ScalingView(gradient_bytes=gradient_bytes, points=tuple(points), machines=tuple(scaled_machines))


def compute_view(question: ComputeQuestion, catalogue: Catalogue) -> ComputeView:
    flops, bought = question.flops, None
    if flops is None:
        bought = _bought(question, catalogue)
        flops = bought.hours * 3600 * bought.accelerators * bought.peak_tflops * TERA * bought.utilisation
    return ComputeView(flops=flops, bought=bought, optima=tuple(chinchilla.optima(float(flops))))


def recurring_view(question: RecurringQuestion, run: RunView | None) -> tuple[ownership.YearlyCost, ...]:
    """Return the yearly costs of each way to run.

    The savings are relative to the first one. For a described run, that is normally the cheapest on-demand machine.

    Raises:
        Invalid: No cost is known.
    """
    costs = question.costs or _costs(run)
    if not costs:
        raise Invalid.at(
            "/recurring", "what does a run cost? give costs, or describe a run that fits somewhere"
        )
    yearly_costs = [
        ownership.yearly(
            name, usd, runs_per_month=question.runs_per_month, failed_share=question.failed_share
        )
        for name, usd in costs
    ]
    first = yearly_costs[0].usd_per_year
    others = [replace(cost, saving_usd_per_year=first - cost.usd_per_year) for cost in yearly_costs[1:]]
    return yearly_costs[0], *others


def ownership_view(question: OwnershipQuestion, catalogue: Catalogue) -> ownership.OwnershipComparison:
    """Compare owning a machine with renting one, at the given price or at the cheapest of the catalogue.

    Raises:
        Invalid: The request is not valid, or no machine of the catalogue has these accelerators.
    """
    if question.owned.resale > question.owned.purchase:
        raise Invalid.at("/ownership/resale_usd", "is more than purchase_usd")
    if question.cloud is not None:
        return ownership.compare(question.owned, question.cloud)
    if question.accelerator is None:
        raise Invalid.at("/ownership/cloud_usd_per_hour", "give the price in the cloud, or an accelerator")
    pointer = "/ownership/accelerator"
    enough = [
        listing
        for listing in _listed(pointer, question.accelerator, question.market, catalogue)
        if listing.accelerators >= question.gpus
    ]
    if not enough:
        raise Invalid.at("/ownership/gpus", f"no machine has {question.gpus} of {question.accelerator}")
    cheapest = min(enough, key=lambda listing: _micro(listing, question.market))
    comparison = ownership.compare(question.owned, Price(_micro(cheapest, question.market)))
    return replace(comparison, cloud_instance_type=cheapest.instance_type, cloud_region=cheapest.region)


def _bought(question: ComputeQuestion, catalogue: Catalogue) -> BoughtMachine:
    if question.usd is None or question.accelerator is None:
        raise Invalid.at("/compute_optimal", "give flops, or usd and an accelerator to spend it on")
    listings = _listed("/compute_optimal/accelerator", question.accelerator, question.market, catalogue)
    whole = [listing for listing in listings if listing.accelerators >= 1]
    if not whole:
        raise Invalid.at("/compute_optimal/accelerator", f"no machine has a whole {question.accelerator}")
    best = min(
        whole, key=lambda listing: Fraction(_micro(listing, question.market), int(listing.accelerators))
    )
    kind = accelerator(best.accelerator, best.gpu_memory_gib)
    if kind is None:
        raise Invalid(*check_accelerator("/compute_optimal/accelerator", question.accelerator))
    price = Price(_micro(best, question.market))
    return BoughtMachine(
        cloud=best.cloud,
        region=best.region,
        instance_type=best.instance_type,
        accelerators=int(best.accelerators),
        usd_per_hour=price,
        hours=Fraction(question.usd.micro_usd, price.micro_usd_per_hour),
        peak_tflops=kind.half_tflops,
        utilisation=UTILISATION if question.utilisation is None else question.utilisation,
    )


def _listed(pointer: str, name: str, market: Market, catalogue: Catalogue) -> Sequence[Listing]:
    faults = list(check_word(pointer, "accelerator", name, catalogue))
    if faults:
        raise Invalid(*faults)
    kind = accelerator(name)
    listings = catalogue.find(accelerator=name if kind is None else kind.name, market=market)
    if not listings:
        raise Invalid.at(pointer, f"the catalogue has no price of {name} on the market {market}")
    return listings


def _micro(listing: Listing, market: Market) -> int:
    price = listing.price(market)
    # callers get listings from a search by this market, which omits those without a price
    assert price is not None
    return price.micro_usd_per_hour


def _costs(run: RunView | None) -> tuple[tuple[str, Money], ...]:
    if run is None:
        return ()
    ranked = run.ranked
    named = (
        ("cheapest_on_demand", ranked.cheapest(market="on_demand")),
        ("cheapest", ranked.cheapest()),
        ("cheapest_in_time", ranked.cheapest(in_time=True)),
        ("fastest", ranked.fastest()),
    )
    return tuple((name, candidate.usd) for name, candidate in named if candidate is not None)
