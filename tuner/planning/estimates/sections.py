"""The sections of an estimate. Each can be requested alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction

from tuner.domain.errors import Invalid
from tuner.domain.listing import Listing, Market
from tuner.domain.money import Money, Price
from tuner.planning.accelerators import accelerator
from tuner.planning.catalogue import Catalogue
from tuner.planning.estimates import checks, chinchilla, ownership, scaling
from tuner.planning.estimates.candidates import Ranked, rank
from tuner.planning.estimates.checks import check_accelerator, check_run, check_word
from tuner.planning.estimates.described import UTILISATION, Assumption, Format, Run

TERA = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An option of the user: a machine with a known price and a known time for the run."""

    name: str
    usd_per_hour: Price
    duration_ns: int
    machines: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    options: tuple[Choice, ...]
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A request for the efficiency of data-parallel training on several GPUs."""

    accelerator: str
    parameters: int
    precision: Format
    step_s: Fraction  #: The time of a step on one GPU.
    gpus: tuple[int, ...]
    ethernet_gbit_s: Fraction
    hours_on_one: Fraction | None = (
        None  #: The time of the whole run on one GPU. If None, no machines are compared.
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptimal:
    """A request for the best model size for a number of FLOPs, or for the FLOPs that `usd` buys on machines with `accelerator`."""

    flops: Fraction | None = None
    usd: Money | None = None
    accelerator: str | None = None
    market: Market = "on_demand"
    utilisation: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurring:
    """A request for the yearly cost of a run that is repeated."""

    runs_per_month: Fraction
    failed_share: Fraction
    costs: tuple[
        tuple[str, Money], ...
    ] = ()  #: Ways to run, as names and costs of one run. If empty, those of the run section of the same request are used.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A request to compare owned hardware with the cloud.

    Without the price `cloud`, the cheapest machine of the catalogue with `gpus` of `accelerator` is used.
    """

    owned: ownership.Owned
    cloud: Price | None = None
    accelerator: str | None = None
    gpus: int = 1
    market: Market = "on_demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    option: Choice
    usd: Money
    meets_deadline: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicesView:
    """The user's options, cheapest first. Of two with the same cost, the faster one comes first."""

    options: tuple[Chosen, ...]

    @property
    def cheapest(self) -> Chosen:
        return self.options[0]

    @property
    def cheapest_in_time(self) -> Chosen | None:
        return next((one for one in self.options if one.meets_deadline is not False), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    ranked: Ranked
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingView:
    gradient_bytes: int
    points: tuple[scaling.Point, ...]
    machines: tuple[scaling.Machines, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
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
    bought: Bought | None
    optima: tuple[chinchilla.Optimum, ...]


def run_view(run: Run, catalogue: Catalogue, today: date) -> RunView:
    listings = check_run(run, catalogue)
    ranked = rank(run, listings)
    old = catalogue.warning(today, [one.listing for one in ranked.fitting[: run.limit]])
    return RunView(
        ranked=ranked,
        assumptions=checks.of_run(run),
        warnings=(*([old] if old else []), *checks.warnings(run, ranked)),
    )


def choices_view(asked: Choices) -> ChoicesView:
    chosen = [
        Chosen(
            option=one,
            usd=Price(one.usd_per_hour.micro_usd_per_hour * one.machines).of(one.duration_ns),
            meets_deadline=None if asked.deadline_ns is None else one.duration_ns <= asked.deadline_ns,
        )
        for one in asked.options
    ]
    return ChoicesView(options=tuple(sorted(chosen, key=lambda one: (one.usd, one.option.duration_ns))))


def scaling_view(asked: Scaling, catalogue: Catalogue) -> ScalingView:
    faults = list(check_accelerator("/scaling/accelerator", asked.accelerator))
    kind = accelerator(asked.accelerator)
    if faults or kind is None:
        raise Invalid(*faults)
    gradient_bytes = asked.parameters * (4 if asked.precision == "fp32" else 2)
    points = scaling.table(
        kind,
        gpus=asked.gpus,
        gradient_bytes=gradient_bytes,
        step_s=asked.step_s,
        gbit_s=asked.ethernet_gbit_s,
    )
    listings = [one for one in catalogue.listings if accelerator(one.accelerator, one.gpu_memory_gib) is kind]
    found = scaling.machines(points, listings, asked.hours_on_one) if asked.hours_on_one else []
    return ScalingView(gradient_bytes=gradient_bytes, points=tuple(points), machines=tuple(found))


def compute_view(asked: ComputeOptimal, catalogue: Catalogue) -> ComputeView:
    flops, bought = asked.flops, None
    if flops is None:
        bought = _bought(asked, catalogue)
        flops = bought.hours * 3600 * bought.accelerators * bought.peak_tflops * TERA * bought.utilisation
    return ComputeView(flops=flops, bought=bought, optima=tuple(chinchilla.optima(float(flops))))


def recurring_view(asked: Recurring, run: RunView | None) -> tuple[ownership.Yearly, ...]:
    """Return the yearly costs of each way to run.

    The savings are relative to the first one. For a described run, that is normally the cheapest on-demand machine.

    Raises:
        Invalid: No cost is known.
    """
    costs = asked.costs or _costs(run)
    if not costs:
        raise Invalid.at(
            "/recurring", "what does a run cost? give costs, or describe a run that fits somewhere"
        )
    found = [
        ownership.yearly(name, usd, runs_per_month=asked.runs_per_month, failed_share=asked.failed_share)
        for name, usd in costs
    ]
    first = found[0].usd_per_year
    others = [replace(one, saving_usd_per_year=first - one.usd_per_year) for one in found[1:]]
    return found[0], *others


def ownership_view(asked: Ownership, catalogue: Catalogue) -> tuple[ownership.Comparison, Listing | None]:
    """Return the comparison, and the listing whose price was used. The listing is None if the user gave the price.

    Raises:
        Invalid: The request is not valid, or no machine of the catalogue has these accelerators.
    """
    if asked.owned.resale > asked.owned.purchase:
        raise Invalid.at("/ownership/resale_usd", "is more than purchase_usd")
    if asked.cloud is not None:
        return ownership.compare(asked.owned, asked.cloud), None
    if asked.accelerator is None:
        raise Invalid.at("/ownership/cloud_usd_per_hour", "give the price in the cloud, or an accelerator")
    pointer = "/ownership/accelerator"
    enough = [
        one
        for one in _listed(pointer, asked.accelerator, asked.market, catalogue)
        if one.accelerators >= asked.gpus
    ]
    if not enough:
        raise Invalid.at("/ownership/gpus", f"no machine has {asked.gpus} of {asked.accelerator}")
    cheapest = min(enough, key=lambda one: _micro(one, asked.market))
    return ownership.compare(asked.owned, Price(_micro(cheapest, asked.market))), cheapest


def _bought(asked: ComputeOptimal, catalogue: Catalogue) -> Bought:
    if asked.usd is None or asked.accelerator is None:
        raise Invalid.at("/compute_optimal", "give flops, or usd and an accelerator to spend it on")
    found = _listed("/compute_optimal/accelerator", asked.accelerator, asked.market, catalogue)
    whole = [one for one in found if one.accelerators >= 1]
    if not whole:
        raise Invalid.at("/compute_optimal/accelerator", f"no machine has a whole {asked.accelerator}")
    best = min(whole, key=lambda one: Fraction(_micro(one, asked.market), int(one.accelerators)))
    kind = accelerator(best.accelerator, best.gpu_memory_gib)
    if kind is None:
        raise Invalid(*check_accelerator("/compute_optimal/accelerator", asked.accelerator))
    price = Price(_micro(best, asked.market))
    return Bought(
        cloud=best.cloud,
        region=best.region,
        instance_type=best.instance_type,
        accelerators=int(best.accelerators),
        usd_per_hour=price,
        hours=Fraction(asked.usd.micro_usd, price.micro_usd_per_hour),
        peak_tflops=kind.half_tflops,
        utilisation=UTILISATION if asked.utilisation is None else asked.utilisation,
    )


def _listed(pointer: str, name: str, market: Market, catalogue: Catalogue) -> Sequence[Listing]:
    faults = list(check_word(pointer, "accelerator", name, catalogue))
    if faults:
        raise Invalid(*faults)
    kind = accelerator(name)
    found = catalogue.find(accelerator=name if kind is None else kind.name, market=market)
    if not found:
        raise Invalid.at(pointer, f"the catalogue has no price of {name} on the market {market}")
    return found


def _micro(listing: Listing, market: Market) -> int:
    price = listing.price(market)
    assert (
        price is not None
    )  # callers get listings from a search by this market, which omits those without a price
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
    return tuple((name, one.usd) for name, one in named if one is not None)
