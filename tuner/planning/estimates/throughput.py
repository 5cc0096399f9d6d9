"""The speed of a run on an accelerator.

The speed is measured on the same accelerator, converted from a measurement on another one by data sheets, or computed from the run's FLOPs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tuner.domain.listing import Listing
from tuner.planning.accelerators import Accelerator, Precision, accelerator, relative_speed
from tuner.planning.estimates.described import UTILISATION, UTILISATION_RANGE, Format, Measurement, Run

Basis = Literal["measured", "catalogued", "flops"]
Range = tuple[Fraction, Fraction, Fraction]
"""The minimum, the expected value and the maximum."""
TERA = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one GPU, or of the whole machine if it has none."""

    basis: Basis
    per_second: Range  #: Samples or tokens per second. FLOP/s if the basis is `flops`.
    measured_on: str | None = None  #: The accelerator or instance type of the measurement.
    measured_gpus: int = 1  #: The number of GPUs in the measurement.
    factor: Range | None = None  #: The factor that converts the measurement to this accelerator.


def speed(run: Run, listing: Listing, precision: Format) -> Speed | None:
    """Return the speed of a run on a machine. Return None if neither a measurement nor a data sheet gives it.

    Args:
        run: The run.
        listing: The machine.
        precision: The format in which the run is trained there. A measurement on another accelerator is converted
        by the ratio of the data sheets for the format in which the measurement was made.
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
    by_type = [one for one in given if one.instance_type is not None]
    for one in by_type:
        if one.instance_type is not None and one.instance_type.casefold() == listing.instance_type.casefold():
            return _as_measured(one, listing.instance_type)
    for one in given:
        if kind is not None and one.accelerator is not None and accelerator(one.accelerator) == kind:
            return _as_measured(one, kind.name)
    return None


def _as_measured(one: Measurement, name: str) -> Speed:
    each = one.per_second / max(1, one.gpus)
    return Speed(
        basis="measured", per_second=(each, each, each), measured_on=name, measured_gpus=max(1, one.gpus)
    )


def _catalogued(given: Sequence[Measurement], kind: Accelerator, precision: Precision) -> Speed | None:
    """Convert measurements on other accelerators to this one, and return the result with the narrowest range, or None if there is none."""
    ranges = [
        (one, factor)
        for one in given
        if one.accelerator is not None
        and (factor := relative_speed(one.accelerator, kind.name, precision)) is not None
    ]
    if not ranges:
        return None
    one, factor = min(ranges, key=lambda pair: pair[1][2] / pair[1][0])
    each = one.per_second / max(1, one.gpus)
    least, counted, most = factor
    return Speed(
        basis="catalogued",
        per_second=(each * least, each * counted, each * most),
        measured_on=one.accelerator,
        measured_gpus=max(1, one.gpus),
        factor=factor,
    )


def _by_flops(run: Run, kind: Accelerator, precision: Precision) -> Speed:
    peak = kind.tflops(precision) * TERA
    if run.utilisation is not None:
        return Speed(basis="flops", per_second=(peak * run.utilisation,) * 3)
    least, most = UTILISATION_RANGE
    return Speed(basis="flops", per_second=(peak * least, peak * UTILISATION, peak * most))
