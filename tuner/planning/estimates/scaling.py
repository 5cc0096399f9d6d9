"""Efficiency of several GPUs: the communication cost of data-parallel training with a ring all-reduce of the gradients.

A ring of k GPUs moves 2·(k−1)/k of the gradients over each link, which is the minimum for any all-reduce (Patarasu & Yuan, JPDC 69(2),
2009). It does so in 2·(k−1) messages. With gradients of S bytes, bandwidth B and delay α, it takes t = 2·(k−1)/k·S/B + 2·(k−1)·α. If a
step computes for c and then communicates for t, the efficiency is c/(c + t). This is the cautious figure. Frameworks hide as much of t as
possible behind the backward pass, which is two thirds of c. The best possible efficiency is therefore c/(c + max(0, t − ⅔·c)).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from tuner.domain.listing import Listing
from tuner.domain.money import Money, Price
from tuner.domain.time import NS
from tuner.planning.accelerators import Accelerator, accelerator
from tuner.planning.estimates.described import LINK_SHARE

Link = Literal["nvlink", "pcie", "ethernet"]
LINKS: tuple[Link, ...] = ("nvlink", "pcie", "ethernet")
GB = 10**9
BACKWARD = Fraction(2, 3)
# The delay of a message by link. The values are assumptions, of the order of magnitude that NCCL's own tests show.
LATENCY_S = {"nvlink": Fraction(5, 10**6), "pcie": Fraction(10, 10**6), "ethernet": Fraction(30, 10**6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The efficiency of a number of GPUs that communicate over one kind of link."""

    gpus: int
    link: Link
    bytes_per_second: Fraction
    allreduce_seconds: Fraction
    efficiency: (
        Fraction  #: If no communication is hidden behind the computation. Estimates use this efficiency.
    )
    overlapped: Fraction  #: If as much communication as possible is hidden behind the backward pass.
    speedup: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The cheapest machines of the catalogue for a number of GPUs, the run's time and cost there, and whether more GPUs pay off."""

    gpus: int
    machines: int
    cloud: str
    region: str
    instance_type: str
    usd_per_hour: Price
    link: Link | None
    efficiency: Fraction
    hours: Fraction
    usd: Money
    #: The price of each hour saved compared to the cheapest machines with fewer GPUs. None if they also save money, or save no time.
    usd_per_hour_saved: Fraction | None
    pays: Literal["first", "cheaper and faster", "faster, dearer", "dearer and no faster"]


def bandwidth(kind: Accelerator, link: Link, gbit_s: Fraction) -> Fraction | None:
    """Return the bytes per second in one direction that a ring reaches. Return None if the accelerator has no such link."""
    both_ways = kind.nvlink_gb_s if link == "nvlink" else kind.pcie_gb_s
    one_way = gbit_s * GB / 8 if link == "ethernet" else Fraction(both_ways * GB, 2)
    return one_way * LINK_SHARE if one_way else None


def link_within(listing: Listing) -> Link:
    """Return the link between the GPUs of one machine.

    Azure's NC series and RunPod's cards are connected by NVLink in pairs at most, so they count as PCIe.
    """
    kind = accelerator(listing.accelerator, listing.gpu_memory_gib)
    paired = listing.cloud == "runpod" or "_NC" in listing.instance_type
    return "nvlink" if kind is not None and kind.nvlink_gb_s and not paired else "pcie"


def point(*, gpus: int, link: Link, gradient_bytes: int, step_s: Fraction, bytes_s: Fraction) -> Point:
    """Compute the efficiency of `gpus` GPUs. `step_s` is the time of a step on a single GPU."""
    messages = 2 * (gpus - 1)
    talk_s = Fraction(messages, gpus) * gradient_bytes / bytes_s + messages * LATENCY_S[link]
    efficiency = step_s / (step_s + talk_s)
    return Point(
        gpus=gpus,
        link=link,
        bytes_per_second=bytes_s,
        allreduce_seconds=talk_s,
        efficiency=efficiency,
        overlapped=step_s / (step_s + max(Fraction(0), talk_s - BACKWARD * step_s)),
        speedup=gpus * efficiency,
    )


def table(
    kind: Accelerator, *, gpus: Sequence[int], gradient_bytes: int, step_s: Fraction, gbit_s: Fraction
) -> list[Point]:
    """Return the efficiency of each number of GPUs over each link that the accelerator has."""
    reached = [(link, bandwidth(kind, link, gbit_s)) for link in LINKS]
    return [
        point(gpus=count, link=link, gradient_bytes=gradient_bytes, step_s=step_s, bytes_s=bytes_s)
        for link, bytes_s in reached
        if bytes_s is not None
        for count in gpus
    ]


def machines(points: Sequence[Point], listings: Sequence[Listing], hours_on_one: Fraction) -> list[Machines]:
    """Return for each number of GPUs the on-demand machines on which the run is cheapest. Whole machines are paid for."""
    by_place = {(one.gpus, one.link): one for one in points}
    found: list[Machines] = []
    for count in sorted({one.gpus for one in points}):
        here = [one for listing in listings if (one := _on(listing, count, by_place, hours_on_one))]
        if here:
            found.append(_judged(min(here, key=lambda one: (one.usd, one.hours)), found))
    return found


def _on(
    listing: Listing, gpus: int, points: dict[tuple[int, Link], Point], hours_on_one: Fraction
) -> Machines | None:
    if listing.on_demand is None or listing.accelerators < 1:
        return None
    each = int(listing.accelerators)
    count = -(-gpus // each)
    link: Link = "ethernet" if count > 1 else link_within(listing)
    there = points.get((gpus, link))
    if there is None:
        return None
    hours = hours_on_one / there.speedup
    elapsed_ns = -(-hours * 3600 * NS // 1)
    price = Price(listing.on_demand.micro_usd_per_hour * count)
    return Machines(
        gpus=gpus,
        machines=count,
        cloud=listing.cloud,
        region=listing.region,
        instance_type=listing.instance_type,
        usd_per_hour=price,
        link=link if gpus > 1 else None,
        efficiency=there.efficiency,
        hours=hours,
        usd=price.of(int(elapsed_ns)),
        usd_per_hour_saved=None,
        pays="first",
    )


def _judged(one: Machines, fewer: Sequence[Machines]) -> Machines:
    if not fewer:
        return one
    least = min(fewer, key=lambda other: (other.usd, other.hours))
    if one.hours >= least.hours:
        return replace(one, pays="dearer and no faster" if one.usd >= least.usd else "cheaper and faster")
    if one.usd <= least.usd:
        return replace(one, pays="cheaper and faster")
    dearer = Fraction((one.usd - least.usd).micro_usd, 10**6)
    return replace(one, pays="faster, dearer", usd_per_hour_saved=dearer / (least.hours - one.hours))
