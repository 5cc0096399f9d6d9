"""Find the price of a machine of the cluster: from its price label, the settings, the catalogue, or its size."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.cluster import nodes as its
from tuner.domain.errors import BadFile
from tuner.domain.listing import MARKET_WORDS, Listing, Market
from tuner.domain.money import Price
from tuner.domain.offer import MARKET_LABEL, Offer, WorkerMachine
from tuner.planning.catalogue import Catalogue
from tuner.service.catalogue import catalogue
from tuner.settings import Settings

if TYPE_CHECKING:  # the import of SQLAlchemy takes half a second, and `tuner cluster` does not need it
    from tuner.store.jobs import JobRow

# On-demand list prices in us-east-1, from AWS's price list of 2026-07-20: one vCPU of an m7i, and one g6.xlarge (one L4) as the
# price of a GPU.
USD_PER_CPU_HOUR = 0.0504
USD_PER_GPU_HOUR = 0.8048
ON_DEMAND_SOURCE = "AWS us-east-1 on demand, m7i a vCPU and g6.xlarge a GPU, 2026-07-20"
# Spot prices in us-east-1: m7i.large from AWS's Spot Advisor of 2025-07-28; g6.xlarge is the median of the zones in July 2026.
SPOT_USD_PER_CPU_HOUR = 0.0162
SPOT_USD_PER_GPU_HOUR = 0.3618
SPOT_SOURCE = "AWS us-east-1 spot, m7i.large a vCPU, 2025-07-28, and g6.xlarge a GPU, 2026-07"


@dataclass(frozen=True, slots=True)
class SourcedPrice:
    """A price and its source."""

    price: Price | None  #: None if it is not known.
    source: (
        str  #: The source of the price. If the price is None, the reason why it is not known, and what to do.
    )


def named_price(settings: Settings, kind: str, market: Market) -> tuple[Price, str] | None:
    """Return the price of a whole node in TUNER_NODE_PRICES and its source, or None if none is set for this type and market."""
    usd = settings.node_prices.get(kind if market == "on_demand" else f"{kind}/{market}")
    return None if usd is None else (Price.from_usd_per_hour(usd), "TUNER_NODE_PRICES")


def price_by_size(*, cpus: float, gpus: float, market: Market) -> tuple[Price, str]:
    """Return a price for a node whose instance type has no known price, and its source.

    The price is the sum of list prices for the node's CPUs and GPUs.
    """
    if market == "spot":
        usd, source = cpus * SPOT_USD_PER_CPU_HOUR + gpus * SPOT_USD_PER_GPU_HOUR, SPOT_SOURCE
    else:
        usd, source = cpus * USD_PER_CPU_HOUR + gpus * USD_PER_GPU_HOUR, ON_DEMAND_SOURCE
    return Price.from_usd_per_hour(round(usd, 6)), source


def priced(settings: Settings, labels: Mapping[str, str], *, cpus: float, gpus: float) -> SourcedPrice:
    """Return the price of a whole machine with these labels.

    The first of these sources that has a price is used: the machine's price label, TUNER_NODE_PRICES, and the catalogue. A
    machine whose type is not in the catalogue is priced by its CPUs and GPUs.

    Raises:
        BadFile: The catalogue cannot be used.
    """
    labelled, market = its.usd_per_hour(labels), its.market_of(labels)
    if labelled is not None:
        return SourcedPrice(Price.from_usd_per_hour(labelled), f"the node's label {its.PRICE}")
    kind = its.instance_type_of(labels)
    named = named_price(settings, kind, market)
    if named is not None:
        return SourcedPrice(*named)
    here = catalogue(settings)
    listings = here.find(instance_type=kind)
    if listings:
        return listed(here, listings, market, region=its.region_of(labels), zone=its.zone_of(labels))
    price, source = price_by_size(cpus=cpus, gpus=gpus, market=market)
    why = "" if kind == its.LOCAL else f"{kind} is not in the catalogue; "
    return SourcedPrice(price, f"{why}{source}")


def priced_kind(settings: Settings, offer: Offer, market: Market) -> SourcedPrice:
    """Return the price of a machine of the offer's type and size on the given market, which may differ from the offer's."""
    named = {"instance-type": offer.instance_type, MARKET_LABEL: its.RAY_MARKETS[market]}
    where = {} if offer.region is None else {"region": offer.region}
    return priced(settings, {**named, **where}, cpus=offer.cpus, gpus=offer.gpus)


def share_price(settings: Settings, row: "JobRow", kind: str | None, market: Market) -> SourcedPrice:
    """Return the price of one trial's share of a machine of the instance type `kind` on this market.

    The price is the lowest among the job's offers of this type on this market. If the job has no such offer, it is the on-demand
    price that was recorded at admission for an offer of this type, or the current price if none was recorded.

    The current spot price is used only if TUNER_NODE_PRICES or the catalogue has it. A price that is computed from the CPUs and GPUs
    does not count, because the type may not be available on spot.

    Args:
        kind: The instance type. If it is None or no offer of the job has it, all offers of the job count instead.
    """
    size = row.spec.resources
    offers = [offer for offer in row.offers if offer.instance_type == kind] or row.offers
    offered = [offer for offer in offers if offer.market == market]
    if not offered:
        first = offers[0]
        if market == "spot" and not _has_spot_price(settings, first.instance_type):
            return SourcedPrice(None, "")
        recorded = first.on_demand_price if market == "on_demand" else None
        now = (
            priced_kind(settings, first, market) if recorded is None else SourcedPrice(recorded, first.source)
        )
        if now.price is None:
            return now
        offered = [replace(first, price=now.price, source=now.source)]
    least = min(offered, key=lambda offer: offer.rate(size).price)
    return SourcedPrice(least.rate(size).price, least.source)


def _has_spot_price(settings: Settings, kind: str) -> bool:
    return named_price(settings, kind, "spot") is not None or bool(
        catalogue(settings).find(instance_type=kind)
    )


def listed(
    here: Catalogue, listings: list[Listing], market: Market, *, region: str | None, zone: str | None
) -> SourcedPrice:
    """Return the highest known price of an instance type on this market in the zone.

    If the zone is None or has no listing, the listings of the whole region count. If the region is None, those of all regions count.

    Args:
        listings: All listings of the instance type.
    """
    kind = listings[0].instance_type
    nearby = [
        listing for listing in listings if region is None or listing.region.casefold() == region.casefold()
    ]
    where = region or "any region"
    if zone is not None and any(listing.zone == zone for listing in nearby):
        nearby, where = [listing for listing in nearby if listing.zone == zone], zone
    known = [(price, listing) for listing in nearby if (price := listing.price(market)) is not None]
    if not known:
        return SourcedPrice(None, _unknown(here, kind, market, where))
    price, most_expensive = max(known, key=lambda pair: pair[0])
    of_several = "the most expensive of " if len(known) > 1 else ""
    date, source = most_expensive.date(market), most_expensive.source(market)
    return SourcedPrice(
        price,
        f"{here.name}: {of_several}{most_expensive.cloud} {where}, {MARKET_WORDS[market]}, {date}, {source}",
    )


def finder(settings: Settings, offers: Sequence[Offer]) -> Callable[[WorkerMachine], Offer | None]:
    """Return a function that takes the machine of an attempt, and returns an offer with the price of that machine.

    The function returns None if the price is not known. If the catalogue cannot be read, the function uses the price at which the
    job was admitted: that of the offer in `offers` with the same instance type and market.
    """

    def find(machine: WorkerMachine) -> Offer | None:
        try:
            node_price = priced(settings, machine.labels, cpus=machine.cpus, gpus=machine.gpus)
        except BadFile as error:
            node_price = _admitted(machine, offers, error.detail)
        return None if node_price.price is None else offer_of(machine, node_price.price, node_price.source)

    return find


def _admitted(machine: WorkerMachine, offers: Sequence[Offer], why: str) -> SourcedPrice:
    kind = its.instance_type_of(machine.labels), its.market_of(machine.labels)
    for offer in offers:
        if (offer.instance_type, offer.market) == kind:
            return SourcedPrice(offer.price, f"{offer.source}, as admitted: {why}")
    return SourcedPrice(None, why)


def offer_of(machine: WorkerMachine, price: Price, source: str) -> Offer:
    return Offer(
        its.instance_type_of(machine.labels),
        price,
        machine.cpus,
        machine.gpus,
        its.market_of(machine.labels),
        its.region_of(machine.labels),
        source,
    )


def unpriced(reasons: Iterable[str]) -> str:
    """Join the distinct reasons why machines have no price into one line."""
    return "; ".join(dict.fromkeys(reasons))


def _unknown(here: Catalogue, kind: str, market: Market, where: str) -> str:
    known = here.find(instance_type=kind, market=market)
    others = sorted({listing.region for listing in known})[:5]
    there = f"only in {', '.join(others)}" if others else "nor in any other region"
    name = kind if market == "on_demand" else f"{kind}/{market}"
    return (
        f"the catalogue {here.name} has no price of {kind} {MARKET_WORDS[market]} in {where}, {there}: "
        f"set the price with TUNER_NODE_PRICES={name}=…, or install prices with `tuner prices --update FILE`"
    )
