"""Data sheets of accelerators, and the relative speed of two accelerators if only one was measured.

Peaks are for dense operations. If a data sheet gives tensor figures "with sparsity", the table has half of them. The sources are:

- P100, V100, T4, A10, A10G, A100, L4, L40S, RTX A6000, H100, H200, GH200, B200, B300 and RTX PRO: NVIDIA's data sheet of that name. The
  A10G's data sheet is published by AWS. The figures of the B200 and B300 are an eighth of those of the HGX system, which has eight of them.
- T4g: NVIDIA publishes no data sheet. AWS describes it as a T4 with Arm cores.
- H100-MEGA: an H100 SXM on a Google machine with a faster network.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

from tuner.domain.listing import Listing

# `half` is fp16 or bf16 in tensor cores, as mixed-precision training uses them.
Precision = Literal["fp32", "half"]

# The minimum relative speed is this share of the expected one. A faster chip seldom trains as much faster as its peaks suggest, because
# launch overheads, power limits and data input take a larger share of its time. No source gives the size of that loss. With a quarter
# taken off, the minimum was below the speed in all published training benchmarks that were examined.
CAUTION = Fraction(3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """The data sheet of one accelerator.

    TFLOP/s are peaks of dense operations. A GB is 10^9 bytes. The bandwidth of a link is the sum of both directions.
    """

    name: str
    half_tflops: Fraction
    fp32_tflops: Fraction
    memory_gb_s: int
    memory_gib: int
    nvlink_gb_s: int  #: 0 if it has no NVLink and communicates over PCIe.
    pcie_gb_s: int
    watts: int
    bf16: bool = True  #: False if its only half-precision format is fp16.
    source: str = ""

    def tflops(self, precision: Precision) -> Fraction:
        return self.fp32_tflops if precision == "fp32" else self.half_tflops


def _row(line: str) -> Accelerator:
    name, half, fp32, bandwidth, memory, nvlink, pcie, watts, bf16, source = line.split(maxsplit=9)
    return Accelerator(
        name=name,
        half_tflops=Fraction(half),
        fp32_tflops=Fraction(fp32),
        memory_gb_s=int(bandwidth),
        memory_gib=int(memory),
        nvlink_gb_s=int(nvlink),
        pcie_gb_s=int(pcie),
        watts=int(watts),
        bf16=bf16 == "bf16",
        source=source,
    )


# name, half and fp32 TFLOP/s, memory GB/s and GiB, NVLink and PCIe GB/s, watts, best half format, data sheet
_TABLE = """
P100                  18.7   9.3  732  16    0  32  250 fp16 NVIDIA Tesla P100 PCIe
V100                   125  15.7  900  16  300  32  300 fp16 NVIDIA V100 SXM2
V100-32GB              125  15.7  900  32  300  32  300 fp16 NVIDIA V100 SXM2
T4                      65   8.1  320  16    0  32   70 fp16 NVIDIA T4
T4g                     65   8.1  320  16    0  32   70 fp16 NVIDIA T4 (none is published for T4g)
A10                    125  31.2  600  24    0  64  150 bf16 NVIDIA A10
A10G                    70    35  600  24    0  64  300 bf16 NVIDIA A10G (AWS)
L4                     121  30.3  300  24    0  64   72 bf16 NVIDIA L4
L40S                   362  91.6  864  48    0  64  350 bf16 NVIDIA L40S
A6000                154.8  38.7  768  48    0  64  300 bf16 NVIDIA RTX A6000
A100                   312  19.5 1555  40  600  64  400 bf16 NVIDIA A100 40GB SXM
A100-80GB              312  19.5 2039  80  600  64  400 bf16 NVIDIA A100 80GB SXM
H100                 989.5    67 3350  80  900 128  700 bf16 NVIDIA H100 SXM
H100-MEGA            989.5    67 3350  80  900 128  700 bf16 NVIDIA H100 SXM
H100-NVL             835.5    60 3900  94  600 128  400 bf16 NVIDIA H100 NVL
H200                 989.5    67 4800 141  900 128  700 bf16 NVIDIA H200 SXM
GH200                  990    67 4000  96  900 128  900 bf16 NVIDIA GH200 96GB
B200                  2250    75 7700 180 1800 128 1000 bf16 NVIDIA HGX B200
B300                  2250    75 7700 270 1800 128 1100 bf16 NVIDIA HGX B300
RTX-PRO-4500           200    50  800  32    0 128  165 bf16 NVIDIA RTX PRO 4500 Blackwell Server Edition
RTX-PRO-6000           500   120 1597  96    0 128  600 bf16 NVIDIA RTX PRO 6000 Blackwell Server Edition
RTX-PRO-SERVER-6000    500   120 1597  96    0 128  600 bf16 NVIDIA RTX PRO 6000 Blackwell Server Edition
"""
ACCELERATORS = {row.name: row for row in map(_row, _TABLE.strip().splitlines())}

# Other names of accelerators, in lower case, from Ray's node labels and from the catalogues of some clouds.
_ALSO = {
    "a100-40g": "A100",
    "a100-40gb": "A100",
    "a100-80g": "A100-80GB",
    "h100-80gb": "H100",
    "rtx-a6000": "A6000",
}
_BY_NAME = {name.casefold(): row for name, row in ACCELERATORS.items()} | {
    also: ACCELERATORS[name] for also, name in _ALSO.items()
}


def accelerator(name: str, memory_gib: float | None = None) -> Accelerator | None:
    """Return the data sheet of the accelerator called `name`, ignoring case. Return None if the table has no such accelerator.

    Catalogues list the H100 NVL under the name H100, but with 94 GiB. Pass the listed memory as `memory_gib` to get the data sheet of the
    H100 NVL for such a listing.
    """
    named_accelerator = _BY_NAME.get(name.casefold())
    if (
        named_accelerator is not None
        and named_accelerator.name == "H100"
        and memory_gib is not None
        and memory_gib > 90
    ):
        return ACCELERATORS["H100-NVL"]
    return named_accelerator


def chip_of(listing: Listing) -> str:
    """Return the name of the data sheet of a listing's accelerator, to compare speeds. It may be more exact than the listed name.

    Return the listed name if the table has no such accelerator.
    """
    sheet = accelerator(listing.accelerator, listing.gpu_memory_gib)
    return listing.accelerator if sheet is None else sheet.name


@cache
def relative_speed(
    measured: str, other: str, precision: Precision = "half"
) -> tuple[Fraction, Fraction, Fraction] | None:
    """Return how many times as fast `other` trains as `measured`: the minimum, the expected value and the maximum.

    The figures come from data sheets, so they are guesses. Mark them as *catalogued* when you show them. Two ratios are computed: of the
    peaks, and of the memory bandwidths. The expected value is the smaller ratio, because either property can limit a training. The
    maximum is the larger ratio. The minimum is a quarter below the expected value, but at least 1 if neither ratio is below 1. If both
    ratios are 1, all three values are 1.

    Return None if one of the two accelerators has no data sheet.

    >>> [round(float(speed), 2) for speed in relative_speed("A100", "H100")]
    [1.62, 2.15, 3.17]
    """
    measured_accelerator, two = accelerator(measured), accelerator(other)
    if measured_accelerator is None or two is None:
        return None
    gains = (
        two.tflops(precision) / measured_accelerator.tflops(precision),
        Fraction(two.memory_gb_s, measured_accelerator.memory_gb_s),
    )
    smaller, larger = min(gains), max(gains)
    if smaller == larger == 1:
        return smaller, smaller, larger
    least = smaller * CAUTION
    return max(Fraction(1), least) if smaller >= 1 else least, smaller, larger
