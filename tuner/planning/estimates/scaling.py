"""The speed of a run on one accelerator and on several.

On one accelerator, the speed is measured there, converted from a measurement on another accelerator by data sheets, or
computed from the run's FLOPs.

Several GPUs must exchange their gradients. A ring of k GPUs moves 2·(k−1)/k of the gradients over each link, which is
the minimum for any all-reduce (Patarasu & Yuan, JPDC 69(2), 2009), in 2·(k−1) messages. With gradients of S bytes,
bandwidth B and delay α, it takes t = 2·(k−1)/k·S/B + 2·(k−1)·α. If a step computes for c and then communicates for t, the
efficiency is c/(c + t). This is the cautious figure. Frameworks hide as much of t as possible behind the backward pass,
which is two thirds of c. The best possible efficiency is therefore c/(c + max(0, t − ⅔·c)).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from tuner.domain.listing import Listing
from tuner.domain.money import Money, Price
from tuner.domain.time import NS
from tuner.domain.units import GB, TERA
from tuner.planning.accelerators import Accelerator, Precision, accelerator, relative_speed
from tuner.planning.estimates.described import (
    LINK_SHARE,
    UTILISATION,
    UTILISATION_RANGE,
    Format,
    MeasuredScaling,
    Measurement,
    TrainingRun,
)

ASSUMPTIONS = (
    "0.7 of a link's bandwidth is reached; a message takes 5 µs over NVLink, 10 µs over PCIe, 30 µs over Ethernet (without a source)",
    "`efficiency`: no communication is hidden behind computation; `overlapped`: the backward pass hides as much as it can",
    "one ring connects all GPUs; between machines, it has the whole bandwidth `ethernet_gbit_s`",
)
Basis = Literal["measured", "catalogued", "flops"]
Range = tuple[Fraction, Fraction, Fraction]
"""The minimum, the expected value and the maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one GPU, or of the whole machine if it has none."""

    basis: Basis
    per_second: Range  #: Samples or tokens per second. FLOP/s if the basis is `flops`.
    measured_on: str | None = None  #: The accelerator or instance type of the measurement.
    measured_gpus: int = 1  #: The number of GPUs in the measurement.
    factor: Range | None = None  #: The factor that converts the measurement to this accelerator.


def speed(run: TrainingRun, listing: Listing, precision: Format) -> Speed | None:
    """Return the speed of a run on a machine. Return None if neither a measurement nor a data sheet determines it.

    Args:
        run: The run.
        listing: The machine.
        precision: The format in which the run is trained on this machine. It is used only if the speed is computed from FLOPs. A
            measured speed of another accelerator is converted with the FLOPs of both accelerators in the format of the measurement.
    """
    kind = accelerator(listing.accelerator, listing.gpu_memory_gib)
    there = _measured_here(run.measurements, listing, kind)
    if there is not None:
        return there
    if kind is None:
        return None
    if run.measurements:
        measured_in: Format = "bf16" if run.model is None else run.model.precision
        return _catalogued(run.measurements, kind, _peak(measured_in))
    return _by_flops(run, kind, _peak(precision))


def _peak(precision: Format) -> Precision:
    return "fp32" if precision == "fp32" else "half"


def _measured_here(given: Sequence[Measurement], listing: Listing, kind: Accelerator | None) -> Speed | None:
    for measurement in given:
        if (measurement.instance_type or "").casefold() == listing.instance_type.casefold():
            return _as_measured(measurement, listing.instance_type)
    for measurement in given:
        if kind is not None and accelerator(measurement.accelerator or "") == kind:
            return _as_measured(measurement, kind.name)
    return None


def _as_measured(measurement: Measurement, name: str) -> Speed:
    each = measurement.per_second / max(1, measurement.gpus)
    return Speed(
        basis="measured",
        per_second=(each, each, each),
        measured_on=name,
        measured_gpus=max(1, measurement.gpus),
    )


def _catalogued(given: Sequence[Measurement], kind: Accelerator, precision: Precision) -> Speed | None:
    """Convert each measurement on another accelerator to a speed on the accelerator `kind`, and return the least uncertain speed.

    This is the speed with the smallest ratio of its maximum to its minimum. Return None if no measurement can be converted.
    """
    ranges = [
        (given_measurement, factor)
        for given_measurement in given
        if given_measurement.accelerator is not None
        and (factor := relative_speed(given_measurement.accelerator, kind.name, precision)) is not None
    ]
    if not ranges:
        return None
    measurement, factor = min(ranges, key=lambda pair: pair[1][2] / pair[1][0])
    each = measurement.per_second / max(1, measurement.gpus)
    least, counted, most = factor
    return Speed(
        basis="catalogued",
        per_second=(each * least, each * counted, each * most),
        measured_on=measurement.accelerator,
        measured_gpus=max(1, measurement.gpus),
        factor=factor,
    )


def _by_flops(run: TrainingRun, kind: Accelerator, precision: Precision) -> Speed:
    peak = kind.tflops(precision) * TERA
    if run.utilisation is not None:
        return Speed(basis="flops", per_second=(peak * run.utilisation,) * 3)
    least, most = UTILISATION_RANGE
    return Speed(basis="flops", per_second=(peak * least, peak * UTILISATION, peak * most))


Link = Literal["nvlink", "pcie", "ethernet"]
LINKS: tuple[Link, ...] = ("nvlink", "pcie", "ethernet")
BACKWARD = Fraction(2, 3)
# The delay of a message by link. The values are assumptions, of the order of magnitude that NCCL's own tests show.
LATENCY_S = {"nvlink": Fraction(5, 10**6), "pcie": Fraction(10, 10**6), "ethernet": Fraction(30, 10**6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEfficiency:
    """The efficiency of `gpus` GPUs that communicate over the link `link`, relative to one GPU."""

    gpus: int
    link: Link
    bytes_per_second: Fraction
    allreduce_seconds: Fraction
    efficiency: Fraction  #: If no communication is hidden behind the computation.
    overlapped: Fraction  #: If as much communication as possible is hidden behind the backward pass.
    measured: Fraction | None = None  #: The efficiency that jobs of a trainable measured. None if none did.

    @property
    def speedup(self) -> Fraction:
        """The speed-up relative to one GPU, by the measured efficiency, or by `efficiency` if none was measured."""
        return self.gpus * (self.efficiency if self.measured is None else self.measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledMachines:
    """The cheapest machines of the catalogue for a number of GPUs, the run's time and cost there, and whether they pay off.

    They are compared with the cheapest machines with fewer GPUs.
    """

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
    #: The extra dollars for each hour saved, compared to the cheapest machines with fewer GPUs. None without extra dollars or
    #: hours saved.
    usd_per_hour_saved: Fraction | None
    pays: Literal["first", "cheaper and faster", "faster, dearer", "dearer and no faster"]


def bandwidth(kind: Accelerator, link: Link, gbit_s: Fraction) -> Fraction | None:
    """Return the bytes per second that a ring all-reduce reaches over a link in one direction.

    Return None if the accelerator has no such link. `gbit_s` is the bandwidth of Ethernet in Gbit/s. It is used only if `link` is `ethernet`.
    """
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


def point(
    *, gpus: int, link: Link, gradient_bytes: int, step_s: Fraction, bytes_s: Fraction
) -> LinkEfficiency:
    """Compute the efficiency of `gpus` GPUs that exchange `gradient_bytes` of gradients after each step.

    `step_s` is the time of a step on a single GPU. `bytes_s` is the bandwidth of the link in bytes per second.
    """
    messages = 2 * (gpus - 1)
    talk_s = Fraction(messages, gpus) * gradient_bytes / bytes_s + messages * LATENCY_S[link]
    efficiency = step_s / (step_s + talk_s)
    return LinkEfficiency(
        gpus=gpus,
        link=link,
        bytes_per_second=bytes_s,
        allreduce_seconds=talk_s,
        efficiency=efficiency,
        overlapped=step_s / (step_s + max(Fraction(0), talk_s - BACKWARD * step_s)),
    )


def table(
    kind: Accelerator,
    *,
    gpus: Sequence[int],
    gradient_bytes: int,
    step_s: Fraction,
    gbit_s: Fraction,
    measured: MeasuredScaling | None = None,
) -> list[LinkEfficiency]:
    """Return the efficiency of each number of GPUs in `gpus`, over each link that the accelerator has."""
    reached = [(link, bandwidth(kind, link, gbit_s)) for link in LINKS]
    return [
        replace(
            point(gpus=count, link=link, gradient_bytes=gradient_bytes, step_s=step_s, bytes_s=bytes_s),
            measured=None if measured is None else measured.efficiency(kind.name, link, count),
        )
        for link, bytes_s in reached
        if bytes_s is not None
        for count in gpus
    ]


def machines(
    points: Sequence[LinkEfficiency], listings: Sequence[Listing], hours_on_one: Fraction
) -> list[ScaledMachines]:
    """Return the on-demand machines on which the run is cheapest, for each number of GPUs. Whole machines are paid for.

    `hours_on_one` is the time of the run on one GPU.
    """
    by_place = {(scaling_point.gpus, scaling_point.link): scaling_point for scaling_point in points}
    cheapest_machines: list[ScaledMachines] = []
    for count in sorted({scaling_point.gpus for scaling_point in points}):
        here = [
            scaled_machines
            for listing in listings
            if (scaled_machines := _on(listing, count, by_place, hours_on_one))
        ]
        if here:
            cheapest_machines.append(
                _judged(min(here, key=lambda option: (option.usd, option.hours)), cheapest_machines)
            )
    return cheapest_machines


def _on(
    listing: Listing, gpus: int, points: dict[tuple[int, Link], LinkEfficiency], hours_on_one: Fraction
) -> ScaledMachines | None:
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
    return ScaledMachines(
        gpus=gpus,
        machines=count,
        cloud=listing.cloud,
        region=listing.region,
        instance_type=listing.instance_type,
        usd_per_hour=price,
        link=link if gpus > 1 else None,
        efficiency=there.speedup / gpus,
        hours=hours,
        usd=price.of(int(elapsed_ns)),
        usd_per_hour_saved=None,
        pays="first",
    )


def _judged(machines: ScaledMachines, fewer: Sequence[ScaledMachines]) -> ScaledMachines:
    if not fewer:
        return machines
    least = min(fewer, key=lambda other: (other.usd, other.hours))
    if machines.hours >= least.hours:
        return replace(
            machines, pays="dearer and no faster" if machines.usd >= least.usd else "cheaper and faster"
        )
    if machines.usd <= least.usd:
        return replace(machines, pays="cheaper and faster")
    dearer = Fraction((machines.usd - least.usd).micro_usd, 10**6)
    return replace(
        machines, pays="faster, dearer", usd_per_hour_saved=dearer / (least.hours - machines.hours)
    )
