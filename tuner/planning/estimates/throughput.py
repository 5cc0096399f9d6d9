"""How fast a run goes on an accelerator: as measured there, as a data sheet tells from where it was measured, or from its FLOPs."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tuner.domain.listing import Listing
from tuner.planning.accelerators import Accelerator, Precision, accelerator, relative_speed
from tuner.planning.estimates.described import UTILISATION, UTILISATION_RANGE, Format, Measurement, Run

Basis = Literal["measured", "catalogued", "flops"]
Range = tuple[Fraction, Fraction, Fraction]
"""At least, counted on, at most."""
TERA = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of one GPU (of the whole machine where it has none): samples or tokens a second, FLOP/s where the basis is FLOPs.

    `measured_on` is what the figure was taken from, with so many `measured_gpus`; `factor` what it was multiplied with."""

    basis: Basis
    per_second: Range
    measured_on: str | None = None
    measured_gpus: int = 1
    factor: Range | None = None


def speed(run: Run, listing: Listing, precision: Format) -> Speed | None:
    """In this format; ratios of what was measured are those of the format that it was measured in. None: nothing that is known says
    how fast it goes there."""
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
    """From the measurement that leaves the least doubt."""
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
