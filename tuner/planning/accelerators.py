"""What the vendors say of accelerators, and how fast one is beside another where only one was measured.

Peaks are dense: where a data sheet gives tensor figures "with sparsity", half of them. One place for each figure:

P100, V100, T4, A10, A10G, A100, L4, L40S, RTX A6000, H100, H200, GH200, B200, B300, RTX PRO: NVIDIA's data sheet of that name
(A10G: the sheet that AWS publishes). T4g: NVIDIA publishes none; AWS names a T4 beside Arm cores. B200 and B300: an eighth of
the HGX system's. H100-MEGA: an H100 SXM on a machine of Google's with a faster network.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

Precision = Literal[
    "fp32", "half"
]  # half: fp16 or bf16 in tensor cores, as mixed-precision training uses them

# A chip is seldom used as well as its peaks allow: launch overheads, power limits and input take more from a faster one. No
# source gives the share; a quarter covers the published training benchmarks that were looked at.
CAUTION = Fraction(3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator. TFLOP/s are dense peaks, GB are 10^9 bytes, links are in both directions together, per accelerator."""

    name: str
    half_tflops: Fraction
    fp32_tflops: Fraction
    memory_gb_s: int
    memory_gib: int
    nvlink_gb_s: int  # 0: it has none, and talks over PCIe
    pcie_gb_s: int
    watts: int
    bf16: bool = True  # False: fp16 alone
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

# As Ray's node labels and some clouds write them.
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
    """The one of that name, in any case; None where there is no data sheet. Catalogues call an H100 NVL an H100 with 94 GiB."""
    found = _BY_NAME.get(name.casefold())
    if found is not None and found.name == "H100" and memory_gib is not None and memory_gib > 90:
        return ACCELERATORS["H100-NVL"]
    return found


@cache
def relative_speed(
    measured: str, other: str, precision: Precision = "half"
) -> tuple[Fraction, Fraction, Fraction] | None:
    """How many times as fast as `measured` the `other` is thought to train: at least, as counted on, at most.

    From data sheets, so a guess to be marked as *catalogued*. Counted on is the smaller of the gains in peak and in memory
    bandwidth, since a training is bound by either; at most is the larger, and at least a quarter below what is counted on,
    yet no slower than the measured where neither figure is worse. None: one of them has no data sheet here.

    >>> [round(float(speed), 2) for speed in relative_speed("A100", "H100")]
    [1.62, 2.15, 3.17]
    """
    one, two = accelerator(measured), accelerator(other)
    if one is None or two is None:
        return None
    gains = two.tflops(precision) / one.tflops(precision), Fraction(two.memory_gb_s, one.memory_gb_s)
    smaller, larger = min(gains), max(gains)
    if smaller == larger == 1:
        return smaller, smaller, larger
    least = smaller * CAUTION
    return max(Fraction(1), least) if smaller >= 1 else least, smaller, larger
