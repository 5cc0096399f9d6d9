"""What predictions of a described model cost on each machine and market of the catalogue."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from tuner.domain.listing import Listing, Market
from tuner.domain.money import trial_rate
from tuner.domain.units import GIB
from tuner.planning.catalogue import Catalogue
from tuner.planning.estimates.candidates import ExcludedMachines, excluded, offers
from tuner.planning.estimates.checks import check_serving
from tuner.planning.estimates.described import ServingQuestion, StatedAssumption
from tuner.planning.serving import BUSY, MILLION, PricedServing, serving_cost

MONTH_S = 730 * 3600
Way = Literal["real_time", "scale_to_zero"]


@dataclass(frozen=True, kw_only=True)
class ServingCandidate(PricedServing):
    """The cost of predictions on one machine, in one region and on one market."""

    listing: Listing
    zones: tuple[str, ...]
    date: str  #: The date of the price.
    cheaper: Way  #: The cheaper of the ways `real_time` and `scale_to_zero` of `ServingCost`.
    usd_per_million: float  #: The cost of a million predictions in the way `cheaper`.
    usd_per_month: float  #: The cost of the requests of a month of 730 hours in the way `cheaper`.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingView:
    """The machines that can serve the model (`ranked`), and the machines that cannot (`left_out`).

    `ranked` is ordered by cost at the requested rate of predictions, the cheapest machine first.
    """

    ranked: Sequence[ServingCandidate]
    left_out: tuple[ExcludedMachines, ...]
    cold_start_s: float
    assumptions: tuple[StatedAssumption, ...]
    warnings: tuple[str, ...]

    def cheapest(self, key: Callable[[ServingCandidate], float | None]) -> ServingCandidate | None:
        """Return the candidate for which `key` returns the smallest value. Candidates for which it returns None are ignored.

        Return None if no candidate has a value.
        """
        known = [(value, candidate) for candidate in self.ranked if (value := key(candidate)) is not None]
        return min(known, key=lambda each: each[0])[1] if known else None


def serving_view(asked: ServingQuestion, catalogue: Catalogue, today: date) -> ServingView:
    """Compute what predictions of the model cost on each machine of the catalogue that matches the request.

    `today` determines which prices are old enough for a warning.

    Raises:
        Invalid: The request is not valid, or no machine has the requested properties.
    """
    left: dict[str, list[str]] = {}
    ranked: list[ServingCandidate] = []
    for listing, zones, market in offers(asked.where.markets, check_serving(asked, catalogue)):
        reason = _unfit(asked, listing)
        if reason is None:
            ranked.append(_candidate(asked, listing, zones, market))
        else:
            left.setdefault(reason, []).append(listing.instance_type)
    ranked.sort(
        key=lambda candidate: (
            candidate.usd_per_million,
            candidate.cost.batch,
            candidate.listing.cloud,
            candidate.listing.region,
        )
    )
    old = catalogue.warning(today, [candidate.listing for candidate in ranked[: asked.limit]])
    none = "no machine can serve the model; see the reasons why machines were left out"
    return ServingView(
        ranked=ranked,
        left_out=excluded(left),
        cold_start_s=asked.cold_start_s,
        assumptions=tuple(_assumptions(asked)),
        warnings=(*([old] if old else []), *([] if ranked else [none])),
    )


def _unfit(asked: ServingQuestion, listing: Listing) -> str | None:
    """Return the reason why a replica cannot run on a machine. Return None if it can."""
    if not asked.gpus and listing.accelerators:
        return "it has GPUs, but a replica uses none"
    if listing.accelerators < asked.gpus:
        return f"it has only {listing.accelerators:g} of the {asked.gpus:g} GPUs that a replica needs"
    if listing.vcpus < asked.cpus:
        return f"it has fewer than the {asked.cpus:g} CPUs that a replica needs, or their number is not known"
    memory = listing.gpu_memory_gib if asked.gpus else listing.memory_gib
    if memory is not None and asked.model.size_bytes > memory * max(1, asked.gpus) * GIB:
        return "the model's file is larger than the memory of the machine"
    return None


def _candidate(
    asked: ServingQuestion, listing: Listing, zones: tuple[str, ...], market: Market
) -> ServingCandidate:
    whole = listing.price(market)
    assert whole is not None  # `offers` omits the listings without a price
    price = trial_rate(
        node_price=whole,
        node_cpus=listing.vcpus,
        node_gpus=listing.accelerators,
        cpus=asked.cpus,
        gpus=asked.gpus,
    ).price
    cost = serving_cost(
        asked.model.speed, price, per_second=asked.per_second, cold_start_s=asked.cold_start_s
    )
    ways: dict[Way, float] = {"real_time": cost.real_time}
    if cost.scale_to_zero is not None:
        ways["scale_to_zero"] = cost.scale_to_zero
    cheaper = min(ways, key=lambda way: ways[way])
    return ServingCandidate(
        instance_type=listing.instance_type,
        market=market,
        region=listing.region,
        price=price,
        source=listing.source(market),
        cost=cost,
        listing=listing,
        zones=zones,
        date=listing.date(market),
        cheaper=cheaper,
        usd_per_million=ways[cheaper],
        usd_per_month=ways[cheaper] / MILLION * asked.per_second * MONTH_S,
    )


def _assumptions(asked: ServingQuestion) -> Iterator[StatedAssumption]:
    kind = "these machines" if asked.gpus else "every machine without GPUs"
    yield StatedAssumption(
        "speed on other machines", f"{kind} as fast as the measured one", "without a source: measure it"
    )
    size = f"{asked.cpus:g} CPUs" + (f" and {asked.gpus:g} GPUs" if asked.gpus else "")
    yield StatedAssumption(
        "share", f"a replica pays for {size} of a machine", "other work uses the rest of the machine"
    )
    yield StatedAssumption(
        "load", f"real-time replicas are at most {BUSY:.0%} busy", "requests queue at a higher load"
    )
    if asked.model.size_bytes:
        mbit_s = asked.download_bytes_s * 8 / MILLION
        yield StatedAssumption(
            "download", f"{mbit_s:g} Mbit/s", "a new machine must download the model's file"
        )
    if "spot" in asked.where.markets:
        yield StatedAssumption("interruptions", "none", "a preempted replica is replaced at the same price")
