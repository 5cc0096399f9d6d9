"""Find the machine that a request names, its price, and the price of a trial's share of it."""

import difflib
from dataclasses import dataclass

from tuner.domain.errors import Invalid
from tuner.domain.job import Resources
from tuner.domain.listing import MARKETS, Market
from tuner.domain.money import Price, Rate
from tuner.domain.offer import Offer
from tuner.planning.catalogue import Catalogue
from tuner.service.catalogue import catalogue
from tuner.settings import Settings
from tuner.store.jobs import JobRow


@dataclass(frozen=True, slots=True)
class MachineQuery:
    """The machine on which a request wants training priced. For a field that is None, the job's own value is used."""

    market: str | None = None
    instance_type: str | None = None
    region: str | None = None

    @property
    def nothing(self) -> bool:
        return self == MachineQuery()


@dataclass(frozen=True, slots=True)
class PricedMachine:
    """A whole machine."""

    instance_type: str
    market: Market
    region: str | None
    price: Price  #: Price of the whole machine.
    cpus: float
    gpus: float
    accelerator: str  #: Empty if the machine has none, or if it is not known.
    source: str  #: The source of the price, for users.

    def is_as_offered(self, offer: Offer) -> bool:
        same = _is(self.instance_type, offer.instance_type) and self.market == offer.market
        return same and self.price == offer.price

    def rate(self, size: Resources) -> Rate:
        """Return the rate of a trial of this size on such machines: its share of price and GPUs.

        Raise Invalid if a trial does not fit on the machine.
        """
        for wanted, there, word in ((size.gpus, self.gpus, "GPUs"), (size.cpus, self.cpus, "CPUs")):
            if wanted > there:
                detail = f"has {there:g} {word}, and a trial of this job takes {wanted:g}"
                raise Invalid.at("instance_type", f"{self.instance_type} {detail}; name a larger one")
        return Offer(self.instance_type, self.price, self.cpus, self.gpus).rate(size)


def machine(settings: Settings, row: JobRow, query: MachineQuery) -> PricedMachine:
    """Return the requested machine with its price.

    If the machine is among the job's offers, the price recorded with the job is used. Otherwise the price is taken from
    TUNER_NODE_PRICES, or from the cheapest listing of this machine in the catalogue.

    Raises:
        Invalid: There is no such machine, market or region with a price; the nearest names are given.
    """
    prices = catalogue(settings)
    market = _market(row, query.market)
    kind = query.instance_type or row.offer.instance_type
    _check_region(prices, row, query.region)
    own = [o for o in row.offers if _is(o.instance_type, kind)]
    if own and query.region in (None, row.spec.resources.region):
        offered = next((offer for offer in own if offer.market == market), None)
        if offered is not None:
            return _of(prices, offered, market, offered.price, offered.source)
        usd = settings.node_price(own[0].instance_type, market)
        if usd is not None:
            return _of(prices, own[0], market, Price.from_usd_per_hour(usd), "TUNER_NODE_PRICES")
    listed = _listed(prices, row, kind, market, query)
    if listed is not None:
        return listed
    if own and query.region is None:
        # The machine is not in the catalogue. It is priced by its CPUs and GPUs, as when a job is admitted.
        usd, source = settings.local_price(cpus=own[0].cpus, gpus=own[0].gpus, market=market)
        return _of(None, own[0], market, Price.from_usd_per_hour(usd), source)
    if own:
        detail = (
            f"no price of {kind} is known by region; name an instance type that the catalogue has there, too"
        )
        raise Invalid.at("region", detail)
    raise Invalid.at("instance_type", _unknown(prices, row, kind))


def accelerator_of(prices: Catalogue, instance_type: str) -> str:
    """Return the accelerator of an instance type, empty if none is known."""
    listings = prices.find(instance_type=instance_type)
    return listings[0].accelerator if listings else ""


def _market(row: JobRow, requested: str | None) -> Market:
    if requested is None:
        return "spot" if row.offer.market == "spot" else "on_demand"
    for market in MARKETS:
        if requested == market:
            return market
    near = difflib.get_close_matches(requested, MARKETS, n=1, cutoff=0.3) or list(MARKETS)
    raise Invalid.at(
        "market", f"{requested!r} is not a market with a price; the nearest are {', '.join(near)}"
    )


def _check_region(prices: Catalogue, row: JobRow, region: str | None) -> None:
    if region is None or region == row.spec.resources.region:
        return
    if (wrong := prices.unknown("region", region)) is not None:
        raise Invalid.at("region", wrong)


def _of(prices: Catalogue | None, offer: Offer, market: Market, price: Price, source: str) -> PricedMachine:
    chip = accelerator_of(prices, offer.instance_type) if prices is not None else ""
    return PricedMachine(
        offer.instance_type, market, offer.region, price, offer.cpus, offer.gpus, chip, source
    )


def _listed(
    prices: Catalogue, row: JobRow, kind: str, market: Market, query: MachineQuery
) -> PricedMachine | None:
    """Return the cheapest listing of an instance type as a machine, or None if the catalogue does not have the type.

    Only the requested region counts, otherwise the job's region, or all regions if the job's region lists none.

    Raises:
        Invalid: The requested region lists no such machine, or no listing has a price on this market.
    """
    known = prices.find(instance_type=kind)
    if not known:
        return None
    region = query.region or row.spec.resources.region
    there = [listing for listing in known if region is None or _is(listing.region, region)]
    if not there:
        if query.region is None:
            there = known
        else:
            regions = ", ".join(sorted({listing.region for listing in known}))
            raise Invalid.at("region", f"{kind} is not listed in {query.region}; it is in {regions}")
    priced = [(price, listing) for listing in there if (price := listing.price(market)) is not None]
    if not priced:
        other = "on_demand" if market == "spot" else "spot"
        raise Invalid.at(
            "market", f"no {market} price of {kind} is known there; try {other} or another region"
        )
    price, cheapest = min(priced, key=lambda pair: (pair[0], pair[1].region, pair[1].zone))
    which = f"the cheapest of {len(priced)}: " if len(priced) > 1 else ""
    place = f"{cheapest.cloud} {cheapest.zone or cheapest.region}"
    source = f"{prices.name}: {which}{place}, {cheapest.date(market)}, {cheapest.source(market)}"
    return PricedMachine(
        cheapest.instance_type,
        market,
        cheapest.region,
        price,
        cheapest.vcpus,
        cheapest.accelerators,
        cheapest.accelerator,
        source,
    )


def _unknown(prices: Catalogue, row: JobRow, kind: str) -> str:
    """Return an error text: this instance type has no price. It names the most similar types."""
    own = sorted({offer.instance_type for offer in row.offers})
    near = [*difflib.get_close_matches(kind, own, n=1, cutoff=0.5), *prices.nearest("instance_type", kind)]
    return f"there is no price of {kind!r}; the nearest: {', '.join(near or [*own, *prices.values_of('instance_type')[:5]])}"


def _is(name: str, other: str) -> bool:
    return name.casefold() == other.casefold()
