"""Find the machines that a planned job could run on.

The machines are taken from the cluster, from the description in the request, or from the price catalogue.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any

from tuner.domain.errors import Fault, Invalid
from tuner.domain.job import MAX_CONCURRENT_TRIALS, JobSpec, MarketPolicy, Resources
from tuner.domain.listing import MARKETS, Listing, Market
from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.text import nearest, suggested
from tuner.domain.time import NS
from tuner.planning.accelerators import chip_of, relative_speed
from tuner.planning.alternatives import MachineCandidate
from tuner.planning.catalogue import Catalogue
from tuner.planning.pace_evidence import PaceEvidence
from tuner.service.bootstrap import Service
from tuner.service.catalogue import catalogue
from tuner.service.node_prices import priced_kind
from tuner.service.submit import admit

FROM_CATALOGUE = 6  # maximum number of instance types that are taken from the catalogue


@dataclass(frozen=True)
class DescribedMachine:
    """A machine that the request describes.

    Fields that are None are filled in from the catalogue. A machine without any price must be in the catalogue.
    """

    instance_type: str
    price: Price | None = None
    spot_price: Price | None = None
    cpus: float | None = None
    gpus: float | None = None
    memory_gib: float | None = None
    gpu_memory_gib: float | None = None
    speed: float | None = None  #: Speed relative to the machine on which the step times were measured.
    step_ns: int | None = None  #: Time of one step of the mean configuration on this machine.
    market: MarketPolicy | None = None
    cloud: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class MachineRequirements:
    """Requirements on a machine in addition to the trial's resources. None means no requirement."""

    memory_gib: float | None = None
    gpu_memory_gib: float | None = None  #: Per GPU.
    step_ns: int | None = None  #: Longest allowed time of one step.


@dataclass(frozen=True)
class MachineFilter:
    """A filter on the machines of the catalogue. A field that is None matches any value."""

    cloud: str | None = None
    region: str | None = None
    accelerator: str | None = None
    instance_type: str | None = None


@dataclass(frozen=True)
class RequestedMachines:
    """The part of a request about the machines on which the job could run."""

    described: tuple[DescribedMachine, ...] = ()
    listed: MachineFilter | None = None
    needs: MachineRequirements = field(default_factory=MachineRequirements)
    speeds: Mapping[str, float] = field(default_factory=dict)  #: Relative speeds by instance type.
    markets: tuple[MarketPolicy, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.described) or self.listed is not None


def candidates_of(
    service: Service, spec: JobSpec, evidence: PaceEvidence, machines: RequestedMachines
) -> tuple[MachineCandidate, ...]:
    """Return the machines to plan for, at least one.

    If the request names no machines, they are taken from the cluster.

    Raises:
        Invalid: A machine, cloud or region is not known; the error names the most similar known ones.
    """
    if not machines.any:
        return _of_cluster(service, spec, evidence, machines)
    prices = catalogue(service.settings)
    described = list(machines.described)
    markets = machines.markets or (spec.resources.market,)
    if machines.listed is not None:
        described += _from_catalogue(prices, spec, machines.listed, machines.needs, markets)
    candidates = []
    for i, machine in enumerate(described):
        for market in machines.markets or (machine.market or spec.resources.market,):
            full = _completed(prices, machine, i, market)
            speed = _speed(prices, full, evidence, machines.speeds)
            candidates.append(_candidate(spec, machine, full, market, speed, evidence, machines.needs))
    return tuple(candidates)


def _of_cluster(
    service: Service, spec: JobSpec, evidence: PaceEvidence, machines: RequestedMachines
) -> tuple[MachineCandidate, ...]:
    offers, concurrency = admit(service, spec)
    kind, market = offers[0].instance_type, spec.resources.market
    machine = DescribedMachine(kind, cpus=offers[0].cpus, gpus=offers[0].gpus)
    speed = _speed(catalogue(service.settings), machine, evidence, machines.speeds)
    priced: dict[str, Offer] = {}
    for name in MARKETS:
        priced_offer = priced_kind(service.settings, offers[0], name)
        if priced_offer.price is not None:
            priced[name] = replace(
                offers[0], market=name, price=priced_offer.price, source=priced_offer.source, labels=()
            )
    priced |= {offer.market: offer for offer in reversed(offers)}
    markets = {**_by_market(priced.get("on_demand"), priced.get("spot")), market: tuple(offers)}
    return (MachineCandidate(kind, market, tuple(offers), concurrency, speed, None, markets),)


def _by_market(on_demand: Offer | None, spot: Offer | None) -> dict[MarketPolicy, tuple[Offer, ...]]:
    """Return the offers of a machine by market, the most expensive first. Markets on which its price is not known are left out.

    `spot_with_fallback` is included, with both offers, if both prices are known.
    """
    markets: dict[MarketPolicy, tuple[Offer, ...]] = {}
    if on_demand is not None:
        markets["on_demand"] = (on_demand,)
    if spot is not None:
        markets["spot"] = (spot,)
    if on_demand is not None and spot is not None:
        both = sorted((on_demand, spot), key=lambda offer: offer.price, reverse=True)
        markets["spot_with_fallback"] = tuple(both)
    return markets


def _candidate(
    spec: JobSpec,
    given: DescribedMachine,
    machine: DescribedMachine,
    market: MarketPolicy,
    speed: float | None,
    evidence: PaceEvidence,
    needs: MachineRequirements,
) -> MachineCandidate:
    wanted = spec.resources
    cpus, gpus = machine.cpus or wanted.cpus, machine.gpus if machine.gpus is not None else wanted.gpus
    listed = f"the price catalogue, {machine.cloud} {machine.region}"
    on_demand, spot = (
        None
        if price is None
        else Offer(
            machine.instance_type,
            price,
            cpus,
            gpus,
            name,
            machine.region,
            "as given" if price == price_given else listed,
        )
        for name, price, price_given in (
            ("on_demand", machine.price, given.price),
            ("spot", machine.spot_price, given.spot_price),
        )
    )
    markets = _by_market(on_demand, spot)
    why_not = _why_not(wanted, machine, market, markets, needs)
    if why_not is None and needs.step_ns is not None and speed and evidence.step_ns / speed > needs.step_ns:
        step_s, longest_s = evidence.step_ns / speed / NS, needs.step_ns / NS
        why_not = f"a step takes {step_s:g} s on this machine, longer than the limit of {longest_s:g} s"
    fit = min(
        int(cpus / wanted.cpus + 1e-9),
        int(gpus / wanted.gpus + 1e-9) if wanted.gpus else MAX_CONCURRENT_TRIALS,
    )
    concurrency = wanted.max_concurrent_trials or min(max(1, fit) * wanted.pack, MAX_CONCURRENT_TRIALS)
    return MachineCandidate(
        machine.instance_type, market, markets.get(market, ()), concurrency, speed, why_not, markets
    )


def _why_not(
    wanted: Resources,
    machine: DescribedMachine,
    market: MarketPolicy,
    markets: Mapping[MarketPolicy, tuple[Offer, ...]],
    needs: MachineRequirements,
) -> str | None:
    if market not in markets:
        return f"its price on {market} is not known"
    bounds = (
        ("CPUs", machine.cpus, wanted.cpus),
        ("GPUs", machine.gpus, wanted.gpus),
        ("GiB of memory", machine.memory_gib, needs.memory_gib),
        ("GiB of memory a GPU", machine.gpu_memory_gib, needs.gpu_memory_gib),
    )
    for what, has, needed in bounds:
        if has is None and needed and what.startswith("GiB"):
            return f"it is not known how many {what} it has"
        if has is not None and needed is not None and has < needed:
            return f"has {has:g} {what if has != 1 or what.startswith('GiB') else what[:-1]}, but a trial needs {needed:g}"
    return None


def _from_catalogue(
    prices: Catalogue,
    spec: JobSpec,
    listed: MachineFilter,
    needs: MachineRequirements,
    markets: Sequence[MarketPolicy],
) -> list[DescribedMachine]:
    """Return at most `FROM_CATALOGUE` instance types of the catalogue on which a trial costs least per hour, the cheapest first.

    If the plan compares several markets, the cheapest types of each are taken in turn. With fallback, the spot price counts.

    Raises:
        Invalid: The catalogue does not know a value of the filter, or no machine that matches is large enough and has a price.
    """
    words = {name: word for name, word in asdict(listed).items() if word is not None}
    details = {name: prices.unknown(name, word) for name, word in words.items()}
    faults = [Fault(f"/planning/catalogue/{name}", detail) for name, detail in details.items() if detail]
    if faults:
        raise Invalid(*faults)
    fitting = [row for row in prices.find(**words) if _fits(row, spec.resources, needs)]
    kinds = dict.fromkeys(_listed_market(market) for market in markets)
    chosen: dict[str, Listing] = {}
    for in_turn in zip_longest(*(_cheapest(fitting, spec.resources, kind) for kind in kinds)):
        for row in in_turn:
            if row is not None:
                chosen.setdefault(row.instance_type, row)
    if not chosen:
        raise Invalid.at(
            "/planning/catalogue",
            "no matching machine of the catalogue is large enough and has a price; require less, or match more machines",
        )
    return [
        DescribedMachine(kind, cloud=row.cloud, region=listed.region)
        for kind, row in list(chosen.items())[:FROM_CATALOGUE]
    ]


def _cheapest(rows: Iterable[Listing], wanted: Resources, market: Market) -> list[Listing]:
    """Return the cheapest listing of each instance type that has a price on this market, the cheapest first."""
    cheapest: dict[str, tuple[Price, Listing]] = {}
    for row in rows:
        if (machine_price := row.price(market)) is None:
            continue
        price = Offer(row.instance_type, machine_price, row.vcpus, row.accelerators).rate(wanted).price
        if row.instance_type not in cheapest or price < cheapest[row.instance_type][0]:
            cheapest[row.instance_type] = price, row
    pairs = sorted(cheapest.values(), key=lambda pair: (pair[0], pair[1].instance_type))
    return [row for _, row in pairs]


def _listed_market(market: MarketPolicy) -> Market:
    """Return the market whose prices decide between machines. With fallback, it is the spot market."""
    return "on_demand" if market == "on_demand" else "spot"


def _fits(row: Listing, wanted: Resources, needs: MachineRequirements) -> bool:
    large = row.vcpus >= wanted.cpus and row.accelerators >= wanted.gpus
    has = ((row.memory_gib, needs.memory_gib), (row.gpu_memory_gib, needs.gpu_memory_gib))
    return large and all(needed is None or (there is not None and there >= needed) for there, needed in has)


def _completed(
    prices: Catalogue, machine: DescribedMachine, number: int, market: MarketPolicy
) -> DescribedMachine:
    """Return the machine with its unset fields filled in from the catalogue.

    If the request names no region, it is the region in which the machine is cheapest on the market; with fallback, this is the spot market.
    All prices are those of one region. A machine with a price in the request need not be in the catalogue. `number` is its index in the
    request, for the error.

    Raises:
        Invalid: The machine is not in the catalogue and has no price.
    """
    rows = prices.find(cloud=machine.cloud, region=machine.region, instance_type=machine.instance_type)
    if not rows:
        if machine.price is not None or machine.spot_price is not None:
            return machine
        raise Invalid(_unknown(prices, machine, number))
    wanted = _listed_market(market)
    row = min(
        (row for row in rows if row.price(wanted) is not None),
        key=lambda row: row.price(wanted) or Price(0),
        default=rows[0],
    )
    rows = [other for other in rows if (other.cloud, other.region) == (row.cloud, row.region)]
    listed: dict[str, Any] = {
        "spot_price": _least(rows, "spot") if machine.price is None else None,
        "price": _least(rows, "on_demand"),
        "cpus": row.vcpus,
        "gpus": row.accelerators,
        "memory_gib": row.memory_gib,
        "gpu_memory_gib": row.gpu_memory_gib,
        "region": row.region,
    }
    missing = {name: value for name, value in listed.items() if getattr(machine, name) is None}
    return replace(machine, cloud=row.cloud, **missing)


def _least(rows: Iterable[Listing], market: Market) -> Price | None:
    return min((price for row in rows if (price := row.price(market)) is not None), default=None)


def _unknown(prices: Catalogue, machine: DescribedMachine, number: int) -> Fault:
    """Return a fault for the first field of this machine whose value the catalogue does not know.

    `number` is the index of the machine in the request.
    """
    for name in ("instance_type", "cloud", "region"):
        word = getattr(machine, name)
        detail = None if word is None else prices.unknown(name, word)
        if detail is not None:
            return Fault(f"/planning/candidates/{number}/{name}", f"{detail}; or give usd_per_hour")
    detail = f"the catalogue has no {machine.instance_type} in this cloud and region; give usd_per_hour, or another region"
    return Fault(f"/planning/candidates/{number}", detail)


def _speed(
    prices: Catalogue, machine: DescribedMachine, evidence: PaceEvidence, speeds: Mapping[str, float]
) -> float | None:
    """Return the speed of a machine relative to the machine of the step times in `evidence`, or None if it is not known.

    A step time or speed from the request has precedence. Otherwise the data sheets of the accelerators are compared. If the
    evidence names no machine and the request contains no speeds, all machines are assumed to be equally fast.

    Args:
        speeds: The relative speeds in the request, by instance type.
    """
    if machine.step_ns is not None:
        return evidence.step_ns / machine.step_ns
    if machine.speed is not None:
        return machine.speed
    if machine.instance_type in speeds:
        return speeds[machine.instance_type] / speeds.get(evidence.machine, 1.0)
    if evidence.machine == machine.instance_type:
        return 1.0
    if evidence.machine:
        return _by_data_sheets(prices, evidence.machine, machine.instance_type)
    known = ((speeds[name], _by_data_sheets(prices, name, machine.instance_type)) for name in speeds)
    return next((speed * factor for speed, factor in known if factor is not None), None) if speeds else 1.0


def _by_data_sheets(prices: Catalogue, here: str, there: str) -> float | None:
    """Return the speed of the instance type `there` relative to `here`, according to the data sheets of their accelerators.

    Return None if the accelerators or their data sheets are not known.
    """
    rows = [*prices.find(instance_type=here)[:1], *prices.find(instance_type=there)[:1]]
    if len(rows) < 2 or not all(row.accelerator for row in rows):
        return None
    speed = relative_speed(*map(chip_of, rows))
    return None if speed is None else float(speed[1])


def as_fast_by_assumption(
    candidates: Sequence[MachineCandidate], evidence: PaceEvidence, machines: RequestedMachines
) -> tuple[str, ...]:
    """Return the instance types that are assumed to be equally fast, because no speed or step time was given for them."""
    if evidence.machine or machines.speeds:
        return ()
    known = {
        machine.instance_type
        for machine in machines.described
        if machine.step_ns is not None or machine.speed is not None
    }
    alike = sorted({candidate.instance_type for candidate in candidates} - known)
    return tuple(alike) if len(alike) > 1 else ()


def suitable_types(service: Service, spec: JobSpec, machines: RequestedMachines) -> list[str]:
    """Return up to three other instance types of the catalogue that are large enough for a trial of the job.

    Types with the same accelerator as a machine in the request come before all others. Within both groups, types in the cloud of a machine
    in the request come first. Types that are equal in both respects are sorted by price.
    """
    prices, market = catalogue(service.settings), (machines.markets or (spec.resources.market,))[0]
    listed = _listed_market(market)
    named = [
        row for machine in machines.described for row in prices.find(instance_type=machine.instance_type)
    ]
    gpus, clouds = {row.accelerator for row in named}, {row.cloud for row in named}
    fit = [row for row in prices.find(market=listed) if _fits(row, spec.resources, machines.needs)]
    fit.sort(key=lambda row: (row.accelerator not in gpus, row.cloud not in clouds))
    asked = {machine.instance_type for machine in machines.described}
    return [kind for kind in dict.fromkeys(row.instance_type for row in fit) if kind not in asked][:3]


def check_speeds(speeds: Mapping[str, float], known: Sequence[str]) -> list[Fault]:
    """Return a fault for each speed whose machine is not among `known`, because the name is probably misspelled."""
    faults = []
    for name in speeds:
        if name not in known:
            detail = f"is not one of the machines of this plan; {suggested(nearest(name, known), known[:3])}"
            faults.append(Fault(f"/planning/speeds/{name}", detail))
    return faults
