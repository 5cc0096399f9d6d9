"""The sections of an estimate. Each can be requested alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction

from tuner.domain.errors import Invalid
from tuner.domain.listing import Listing, Market
from tuner.domain.money import Money, Price
from tuner.domain.time import HOUR_NS
from tuner.domain.units import TERA
from tuner.planning.accelerators import accelerator
from tuner.planning.catalogue import Catalogue
from tuner.planning.estimates import checks, scaling
from tuner.planning.estimates.candidates import Ranked, rank
from tuner.planning.estimates.checks import check_accelerator, check_run, check_word
from tuner.planning.estimates.described import (
    UTILISATION,
    ComputeQuestion,
    Owned,
    OwnershipQuestion,
    PricedOptions,
    RecurringQuestion,
    ScalingQuestion,
    StatedAssumption,
    TrainingRun,
)


@dataclass(frozen=True, slots=True)
class Law:
    """The loss of a model with N parameters that is trained on D tokens: L(N, D) = E + A/N^α + B/D^β.

    The training takes C = 6·N·D FLOPs. For a given C, the loss is smallest at N = G·(C/6)^a and D = (C/6)^b/G, with
    G = (αA/βB)^(1/(α+β)), a = β/(α+β) and b = α/(α+β) (Hoffmann et al. 2022, approach 3, eq. 4). The published coefficients could not be
    reproduced. A refit of the same data (Besiroglu et al. 2024) agrees with the paper's approaches 1 and 2, which give about twenty tokens
    per parameter. The refit is the recommended law.
    """

    name: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float


HOFFMANN = Law("Hoffmann et al. 2022, approach 3", 1.69, 406.4, 410.7, 0.34, 0.28)
BESIROGLU = Law("Besiroglu et al. 2024, refit", 1.8172, 482.01, 2085.43, 0.3478, 0.3658)
TOKENS_PER_PARAMETER = 20
CAVEATS = (
    "Hoffmann's published coefficients cannot be reproduced (Besiroglu et al. 2024): use the refit",
    "fitted to dense transformers of 70 million to 16 billion parameters on English text: the loss applies to that text, not to your data",
    "if the model will answer many requests, a smaller model that is trained for longer is cheaper in total (Sardana et al. 2024)",
    "all tokens are assumed to be new: after about four passes over the same tokens, a model learns less (Muennighoff et al. 2023)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptimum:
    """The model size and the number of tokens with the smallest loss for a number of FLOPs, by one scaling law."""

    law: str
    parameters: int
    tokens: int
    tokens_per_parameter: float
    loss: float | None  #: In nats per token. None if the law does not predict it.


def optimum(law: Law, flops: float) -> ComputeOptimum:
    both = law.alpha + law.beta
    g = (law.alpha * law.a / (law.beta * law.b)) ** (1 / both)
    parameters = g * (flops / 6) ** (law.beta / both)
    tokens = flops / 6 / parameters
    loss = law.e + law.a / parameters**law.alpha + law.b / tokens**law.beta
    return _optimum(law.name, parameters, tokens, loss)


def optima(flops: float) -> list[ComputeOptimum]:
    """Return the best model size and number of tokens for a number of FLOPs, by each scaling law. The recommended law comes first."""
    parameters = (flops / (6 * TOKENS_PER_PARAMETER)) ** 0.5
    name = "twenty tokens per parameter (approaches 1 and 2)"
    by_rule = _optimum(name, parameters, TOKENS_PER_PARAMETER * parameters, None)
    return [optimum(BESIROGLU, flops), by_rule, optimum(HOFFMANN, flops)]


def _optimum(law: str, parameters: float, tokens: float, loss: float | None) -> ComputeOptimum:
    return ComputeOptimum(
        law=law,
        parameters=round(parameters),
        tokens=round(tokens),
        tokens_per_parameter=tokens / parameters,
        loss=loss,
    )


MONTHS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class YearlyCost:
    """The yearly cost of a training run that is repeated, with one choice of machine and market."""

    name: str
    usd_per_run: Money
    runs_per_year: Fraction  #: Including the runs that repeat failed ones.
    usd_per_month: Money
    usd_per_year: Money
    #: Compared to the first way to run in the list. None for the first way itself.
    saving_usd_per_year: Money | None = None


def yearly(name: str, per_run: Money, *, runs_per_month: Fraction, failed_share: Fraction) -> YearlyCost:
    """Compute the yearly cost of a repeated run.

    A failed run is paid in full and repeated until it succeeds, so each success takes 1/(1 − `failed_share`) runs on average.
    """
    a_month = runs_per_month / (1 - failed_share)
    return YearlyCost(
        name=name,
        usd_per_run=per_run,
        runs_per_year=a_month * MONTHS,
        usd_per_month=_rounded_up(per_run.micro_usd * a_month),
        usd_per_year=_rounded_up(per_run.micro_usd * a_month * MONTHS),
    )


def _rounded_up(micro_usd: Fraction | int) -> Money:
    return Money(int(-(-micro_usd // 1)))


HOURS_A_YEAR = 8760


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipComparison:
    """The costs of an owned machine over its lifetime, compared with renting a similar machine in the cloud.

    The break-even figures are None if an hour in the cloud costs no more than the power, because owning never pays off then. If
    `break_even_utilisation` is above 1, owning does not pay off within this lifetime.
    """

    hours_used: Fraction
    fixed_usd: Money
    power_usd_per_hour: Price
    owned_usd: Money
    owned_usd_per_hour: Price
    cloud_usd_per_hour: Price
    cloud_usd: Money
    cheaper: str
    saving_usd: Money
    break_even_hours: Fraction | None
    break_even_utilisation: Fraction | None
    cloud_instance_type: str | None = (
        None  #: The machine of the catalogue. None if the request gave the price in the cloud.
    )
    cloud_region: str | None = None


def compare(owned: Owned, cloud: Price) -> OwnershipComparison:
    """Compare the costs of an owned machine with those of renting a similar machine at the price `cloud` for the same hours of use.

    The purchase price minus the resale value, and the upkeep, are paid whether the machine is used or not. Power is paid only for the
    hours of use. It includes the power of the building, by its power usage effectiveness (PUE; 1.56 on average in the Uptime Institute's
    survey of 2024). In the cloud, only the hours of use are paid. Costs of capital, taxes and staff are not included unless the upkeep
    contains them.
    """
    life_hours = owned.lifetime_years * HOURS_A_YEAR
    used = life_hours * owned.utilisation
    fixed = (owned.purchase - owned.resale).micro_usd + owned.upkeep_per_year.micro_usd * owned.lifetime_years
    power = owned.watts * owned.pue / 1000 * owned.usd_per_kwh * 10**6
    rent = cloud.micro_usd_per_hour
    own_total, rent_total = _rounded_up(fixed + power * used), _rounded_up(rent * used)
    gain = rent - power
    even = fixed / gain if gain > 0 else None
    return OwnershipComparison(
        hours_used=used,
        fixed_usd=_rounded_up(fixed),
        power_usd_per_hour=Price(_rounded_up(power).micro_usd),
        owned_usd=own_total,
        owned_usd_per_hour=Price(_rounded_up((fixed + power * used) / used).micro_usd),
        cloud_usd_per_hour=cloud,
        cloud_usd=rent_total,
        cheaper="owned" if own_total < rent_total else "cloud",
        saving_usd=Money(abs((own_total - rent_total).micro_usd)),
        break_even_hours=even,
        break_even_utilisation=None if even is None else even / life_hours,
    )


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
    optima: tuple[ComputeOptimum, ...]
    caveats: tuple[str, ...] = CAVEATS


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
            hours=Fraction(option.duration_ns, HOUR_NS),
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
        measured=question.measured,
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
    return ComputeView(flops=flops, bought=bought, optima=tuple(optima(float(flops))))


def recurring_view(question: RecurringQuestion, run: RunView | None) -> tuple[YearlyCost, ...]:
    """Return the yearly cost of each way to run, with the savings relative to the first way.

    If the request names no costs, the ways are the recommended machines of the described run. The first is then normally the cheapest
    on-demand machine.

    Raises:
        Invalid: No cost is known.
    """
    costs = question.costs or _costs(run)
    if not costs:
        raise Invalid.at(
            "/recurring", "the cost of a run is missing; give costs, or describe a run that fits on a machine"
        )
    yearly_costs = [
        yearly(name, usd, runs_per_month=question.runs_per_month, failed_share=question.failed_share)
        for name, usd in costs
    ]
    first = yearly_costs[0].usd_per_year
    others = [replace(cost, saving_usd_per_year=first - cost.usd_per_year) for cost in yearly_costs[1:]]
    return yearly_costs[0], *others


def ownership_view(question: OwnershipQuestion, catalogue: Catalogue) -> OwnershipComparison:
    """Compare owning a machine with renting one. The rent is the requested price, or that of the cheapest suitable machine in the catalogue.

    Raises:
        Invalid: The request is not valid, or no machine of the catalogue has these accelerators.
    """
    if question.owned.resale > question.owned.purchase:
        raise Invalid.at("/ownership/resale_usd", "must be at most purchase_usd")
    if question.cloud is not None:
        return compare(question.owned, question.cloud)
    if question.accelerator is None:
        raise Invalid.at(
            "/ownership/cloud_usd_per_hour",
            "the price of a similar machine in the cloud is missing; give it, or give an accelerator",
        )
    pointer = "/ownership/accelerator"
    enough = [
        listing
        for listing in _listed(pointer, question.accelerator, question.market, catalogue)
        if listing.accelerators >= question.gpus
    ]
    if not enough:
        raise Invalid.at(
            "/ownership/gpus",
            f"no machine of the catalogue has {question.gpus} accelerators of the type {question.accelerator}",
        )
    cheapest = min(enough, key=lambda listing: _micro(listing, question.market))
    comparison = compare(question.owned, Price(_micro(cheapest, question.market)))
    return replace(comparison, cloud_instance_type=cheapest.instance_type, cloud_region=cheapest.region)


def _bought(question: ComputeQuestion, catalogue: Catalogue) -> BoughtMachine:
    if question.usd is None or question.accelerator is None:
        raise Invalid.at("/compute_optimal", "give flops, or usd and an accelerator to spend it on")
    listings = _listed("/compute_optimal/accelerator", question.accelerator, question.market, catalogue)
    whole = [listing for listing in listings if listing.accelerators >= 1]
    if not whole:
        raise Invalid.at(
            "/compute_optimal/accelerator",
            f"no machine of the catalogue has at least one whole {question.accelerator}",
        )
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
    # Callers get their listings from a search of this market, which omits listings without a price.
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
