"""Find out what the trials of a job would cost on the machine that a request names.

This needs the machine's price, and its time for a step as a multiple of the time that the job's machine needs. For a spot machine, it also
needs the cost of interruptions.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice

from tuner.database.database import Connection
from tuner.domain.errors import Invalid
from tuner.domain.job import JobSpec, Resources
from tuner.domain.listing import MARKETS, Market
from tuner.domain.money import Price, Rate
from tuner.domain.offer import Offer
from tuner.domain.text import nearest, suggested
from tuner.planning.accelerators import chip_of
from tuner.planning.catalogue import Catalogue
from tuner.planning.repricing import SAME, RelativeTime, Repricing, assumed_same, catalogued, measured
from tuner.service import packages
from tuner.service.bootstrap import Service
from tuner.service.catalogue import catalogue
from tuner.service.comparable_jobs import differences
from tuner.service.node_prices import named_price, price_by_size
from tuner.settings import Settings
from tuner.store import evidence, jobs
from tuner.store.evidence import SpotSpend
from tuner.store.jobs import JobRow


@dataclass(frozen=True, slots=True)
class MachineQuery:
    """The machine for which a request asks what training would cost. For a field that is None, the job's own value is used."""

    market: str | None = None
    instance_type: str | None = None
    region: str | None = None

    @property
    def nothing(self) -> bool:
        return self == MachineQuery()


@dataclass(frozen=True, slots=True)
class PricedMachine:
    """A whole machine with its price."""

    instance_type: str
    market: Market
    region: str | None
    price: Price  #: Price of the whole machine.
    cpus: float
    gpus: float
    accelerator: str  #: Name of the GPU model. Empty if the machine has no GPU, or if the model is not known.
    source: str  #: The source of the price, as a text for users.

    def is_as_offered(self, offer: Offer) -> bool:
        same = _is(self.instance_type, offer.instance_type) and self.market == offer.market
        return same and self.price == offer.price

    def rate(self, size: Resources) -> Rate:
        """Return the rate of a trial of this size: its share of the machine's price, and its GPUs.

        Raise Invalid if such a trial does not fit on the machine.
        """
        for wanted, there, word in ((size.gpus, self.gpus, "GPUs"), (size.cpus, self.cpus, "CPUs")):
            if wanted > there:
                detail = f"has {there:g} {word}, but a trial of this job needs {wanted:g}"
                raise Invalid.at("instance_type", f"{self.instance_type} {detail}; name a larger machine")
        return Offer(self.instance_type, self.price, self.cpus, self.gpus).rate(size)


def machine(settings: Settings, row: JobRow, query: MachineQuery) -> PricedMachine:
    """Return the requested machine with its price.

    The price comes from the first of these sources that has one:

    - The job's offer of this instance type on the requested market.
    - TUNER_NODE_PRICES.
    - The cheapest listing in the catalogue.
    - The CPUs and GPUs of the machine, from which a price is computed. This requires that the catalogue lacks the instance type, that the job
      has an offer of it, and that the request names no region.

    The first two sources are used only if the job has an offer of this instance type, and the request names either no region or the region
    of the job.

    Raises:
        Invalid: The machine, the market or the region is not known or has no price. The error gives the nearest names.
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
        named = named_price(settings, own[0].instance_type, market)
        if named is not None:
            return _of(prices, own[0], market, *named)
    listed = _listed(prices, row, kind, market, query)
    if listed is not None:
        return listed
    if own and query.region is None:
        # The machine is not in the catalogue. It is priced by its CPUs and GPUs, as when a job is admitted.
        return _of(None, own[0], market, *price_by_size(cpus=own[0].cpus, gpus=own[0].gpus, market=market))
    if own:
        detail = f"the catalogue has no price of {kind} in this region; leave out the region, or name an instance_type of the catalogue"
        raise Invalid.at("region", detail)
    raise Invalid.at("instance_type", _unknown(prices, row, kind))


def accelerator_of(prices: Catalogue, instance_type: str) -> str:
    """Return the name of an instance type's accelerator, as in the data sheets. Return an empty text if the catalogue has none."""
    listings = prices.find(instance_type=instance_type)
    return chip_of(listings[0]) if listings else ""


def _market(row: JobRow, requested: str | None) -> Market:
    if requested is None:
        return "spot" if row.offer.market == "spot" else "on_demand"
    for market in MARKETS:
        if requested == market:
            return market
    raise Invalid.at(
        "market", f"{requested!r} is not a market with a price; the markets are {' and '.join(MARKETS)}"
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

    If a region is requested, only its listings count. Otherwise, only the listings in the job's region count, or all listings if the job's
    region has none.

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
            raise Invalid.at("region", f"{kind} is not listed in {query.region}, only in {regions}")
    priced = [(price, listing) for listing in there if (price := listing.price(market)) is not None]
    if not priced:
        other = "on_demand" if market == "spot" else "spot"
        raise Invalid.at(
            "market",
            f"no {market} price of {kind} is known in the requested region; try {other} or another region",
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
        chip_of(cheapest),
        source,
    )


def _unknown(prices: Catalogue, row: JobRow, kind: str) -> str:
    """Return the text of the error that an instance type has no price. The text names the most similar types, or examples."""
    own = sorted({offer.instance_type for offer in row.offers})
    near = [*nearest(kind, own, 1), *prices.nearest("instance_type", kind)]
    return f"no price of {kind!r} is known; {suggested(near, [*own, *prices.values_of('instance_type')[:2]])}"


def _is(name: str, other: str) -> bool:
    return name.casefold() == other.casefold()


JOBS = 3  # number of newest jobs per instance type from which speeds are measured
SPOT_JOBS = 20  # number of newest jobs from which the cost of interruptions is measured
PARTS = 1_000_000


@dataclass(frozen=True, slots=True)
class MachinePricing:
    """How to compute what the trials of a job would cost on another machine."""

    machine: PricedMachine
    repricing: Repricing
    notes: tuple[str, ...]  #: The assumptions that were made, as texts for users.


class MachineEvidence:
    """What the jobs of one trainable have measured about machines. Each figure is read once, when it is needed first.

    Args:
        wanted: The jobs that are to be priced.
        tuned: All jobs of the trainable, newest first.
    """

    def __init__(
        self, db: Connection, project: str, wanted: Sequence[JobRow], tuned: Sequence[JobRow]
    ) -> None:
        self._db, self._project, self._wanted, self._tuned = db, project, wanted, tuned
        # Groups of comparable jobs: the specification of one of them, and the step times of the group by instance type.
        self._groups: list[tuple[JobSpec, dict[str, list[float]]]] = []
        self._by_versions: dict[frozenset[str | None], SpotSpend] = {}

    def seconds(self, row: JobRow, kind: str) -> list[float]:
        """Return the step times, in seconds, of the jobs on this instance type that are comparable with the job."""
        versions = self._versions_of(row)
        seconds = next(
            (seconds for spec, seconds in self._groups if not differences(row.spec, spec, versions)), None
        )
        if seconds is None:
            seconds = {}
            self._groups.append((row.spec, seconds))
        if kind not in seconds:
            seconds[kind] = _seconds(self._db, row, self._tuned, versions, kind)
        return seconds[kind]

    def spot_spend(self, row: JobRow) -> SpotSpend:
        """Return the spend of the job on spot machines."""
        return self._spot_spends.get(row.id, SpotSpend())

    @cached_property
    def _spot_spends(self) -> dict[str, SpotSpend]:
        return evidence.on_spot(self._db, [row.id for row in self._wanted])

    def spot_spend_of_others(self, row: JobRow) -> SpotSpend:
        """Return the spend on spot machines of the newest `SPOT_JOBS` jobs with a version of the job's package."""
        versions = self._versions_of(row)
        if versions not in self._by_versions:
            newest = [other.id for other in self._tuned if other.spec.package in versions][:SPOT_JOBS]
            self._by_versions[versions] = sum(evidence.on_spot(self._db, newest).values(), SpotSpend())
        return self._by_versions[versions]

    def _versions_of(self, row: JobRow) -> frozenset[str | None]:
        """Return the ids of the packages with the code of the job, as `packages.versions_of` does."""
        package = row.spec.package
        return frozenset([package]) if package is None else self._versions.get(package, frozenset([package]))

    @cached_property
    def _versions(self) -> dict[str, frozenset[str | None]]:
        return packages.all_versions(self._db, self._project)


def pricing(
    db: Connection,
    service: Service,
    row: JobRow,
    query: MachineQuery,
    known: MachineEvidence | None = None,
) -> MachinePricing | None:
    """Return how to compute what the job's trials would cost on the requested machine.

    Return None if the recorded costs apply. This is the case if no machine was requested, or if the job's only offer is the requested
    machine at the same price.

    Args:
        known: The evidence of the jobs of the same trainable. None if only this job is priced.

    Raises:
        Invalid: The requested machine is not known, or a trial does not fit on it.
    """
    if query.nothing:
        return None
    there = machine(service.settings, row, query)
    rate = there.rate(row.spec.resources)
    if len(row.offers) == 1 and there.is_as_offered(row.offer):
        return None
    if known is None:
        known = MachineEvidence(
            db, service.project, [row], jobs.of_trainable(db, service.project, row.spec.trainable)
        )
    time = _relative_time(service.settings, row, there, known)
    overhead, notes = _interruptions(row, there, known)
    kinds = sorted({offer.instance_type for offer in row.offers})
    if len(kinds) > 1:
        notes = (
            *notes,
            f"trials of this job ran on {', '.join(kinds)}: their times are used as measured, without converting between the types",
        )
    return MachinePricing(there, Repricing(rate, time, overhead), (time.note, *notes))


def _relative_time(
    settings: Settings, row: JobRow, there: PricedMachine, known: MachineEvidence
) -> RelativeTime:
    """Return the time of a step on the requested machine relative to the job's machine.

    If the job's offers have several instance types, the bounds of the result cover all of them.
    """
    kinds = list(dict.fromkeys(offer.instance_type for offer in row.offers))
    first, *others = [_from(settings, row, kind, there, known) for kind in kinds]
    for other in others:
        first = first.widened(other)
    return first


def _from(
    settings: Settings, row: JobRow, kind: str, there: PricedMachine, known: MachineEvidence
) -> RelativeTime:
    """Return the time of a step on the machine `there`, relative to a machine of the instance type `kind`.

    The time is measured if comparable jobs ran on both. Otherwise it is taken from the data sheets of the accelerators. If
    those are not known, the time is assumed to be the same.
    """
    if kind.casefold() == there.instance_type.casefold():
        return SAME
    here_s, there_s = (known.seconds(row, instance_type) for instance_type in (kind, there.instance_type))
    time = measured(here_s, there_s, names=(kind, there.instance_type))
    if time is not None:
        return time
    on_gpus = row.spec.resources.gpus > 0
    if on_gpus:
        here = accelerator_of(catalogue(settings), kind)
        time = catalogued(here, there.accelerator)
    return time or assumed_same(on_gpus=on_gpus)


def _seconds(
    db: Connection, row: JobRow, tuned: Sequence[JobRow], versions: Collection[str | None], kind: str
) -> list[float]:
    """Return the step times, in seconds, of the newest `JOBS` jobs that are comparable with `row` and whose offers all have this type."""
    comparable = (
        other.id
        for other in tuned
        if all(_is(offer.instance_type, kind) for offer in other.offers)
        and not differences(row.spec, other.spec, versions)
    )
    return [seconds for job in islice(comparable, JOBS) for seconds in evidence.step_seconds(db, job)]


def _interruptions(
    row: JobRow, there: PricedMachine, known: MachineEvidence
) -> tuple[Fraction | None, tuple[str, ...]]:
    """Return the cost of interruptions on spot as a fraction of the cost of setup and training, with notes for users on its source.

    The fraction is measured in this job if its trials ran on spot, otherwise in other jobs with the same trainable and package. It is None
    if the requested machine is not spot, or if no trial of these jobs ran on spot.
    """
    if there.market != "spot":
        return None, ()
    for words, spend_of in (
        ("this job", known.spot_spend),
        ("jobs of this trainable", known.spot_spend_of_others),
    ):
        spend = spend_of(row)
        if spend.trained.micro_usd > 0:
            share = Fraction(
                round(Fraction(spend.interrupted.micro_usd, spend.trained.micro_usd) * PARTS), PARTS
            )
            return share, (
                f"interruptions cost {float(share):.2%} of setup and training on spot machines in {words}",
            )
    return None, (
        "the cost of interruptions on spot is not known and not counted: no trial of this trainable ran on spot",
    )
