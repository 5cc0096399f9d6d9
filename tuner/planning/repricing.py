"""The cost of the same training on another machine: the training's time on that machine, at that machine's price.

The cost is computed from the training's time, and not from the dollars that were paid. These dollars may come from several machines and
markets with different prices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median, stdev
from typing import Literal

from tuner.domain.money import Cost, Rate
from tuner.planning.accelerators import relative_speed
from tuner.planning.ranks import Z80

SpeedSource = Literal["same_machine", "measured", "catalogued", "assumed_same"]

FEW = 3  # a measurement needs at least this many trials on each machine
MEDIAN_SPREAD = 1.2533141373155003  # sqrt(pi / 2), the standard error of a median relative to that of a mean
PARTS = 1_000_000
# If two machines are assumed to be equally fast, one may in fact be faster by up to this factor. The cores of the catalogue's CPUs differ
# in speed by less than a factor of 2. Unknown GPUs differ by far more.
CPU_UNKNOWN = Fraction(2)
GPU_UNKNOWN = Fraction(4)


@dataclass(frozen=True, slots=True)
class RelativeTime:
    """The time of the same training on another machine, as a multiple of its time on this one. `low` and `high` bound the time."""

    low: Fraction
    expected: Fraction
    high: Fraction
    source: SpeedSource
    note: str

    def widened(self, other: "RelativeTime") -> "RelativeTime":
        """Return this relative time with a range that also covers the range of `other`.

        Use it if the training may have run on either of two machines.
        """
        low, high = min(self.low, other.low), max(self.high, other.high)
        return RelativeTime(low, self.expected, high, self.source, self.note)


SAME = RelativeTime(Fraction(1), Fraction(1), Fraction(1), "same_machine", "the same machine type")


@dataclass(frozen=True, slots=True)
class Repriced:
    """The cost and time of a training on another machine."""

    cost: Cost
    duration_ns: int
    low: Cost  #: The cost if the relative time is at the low end of its range.
    high: Cost  #: The cost if the relative time is at the high end of its range.


@dataclass(frozen=True, slots=True)
class Repricing:
    """How to compute the cost of a training on another machine: the machine's price and the relative time there."""

    rate: Rate
    time: RelativeTime
    #: The expected seconds lost to interruptions per second of training. None means that they are not known and not counted.
    overhead: Fraction | None = None

    def of(self, duration_ns: int) -> Repriced:
        """Return the cost and time, on the other machine, of a training that takes `duration_ns` on this one. Both are rounded up."""
        low, expected, high = (
            self._ns(duration_ns, factor) for factor in (self.time.low, self.time.expected, self.time.high)
        )
        return Repriced(self.rate.cost(expected), expected, self.rate.cost(low), self.rate.cost(high))

    def _ns(self, duration_ns: int, factor: Fraction) -> int:
        return math.ceil(duration_ns * factor * (1 + (self.overhead or 0)))


def measured(here: Sequence[float], there: Sequence[float], *, names: tuple[str, str]) -> RelativeTime | None:
    """Compute the relative time from measured step times on both machines.

    It is the ratio of the two medians. Its 80 % interval comes from the sampling errors of both medians on a logarithmic scale. Return
    None if a machine has fewer than FEW trials, or if a step time is not positive.

    Args:
        here: Seconds per step of each trial on this machine.
        there: Seconds per step of each trial on the other machine.
        names: The names of this machine and of the other, for the text `note` of the result.
    """
    if min(len(here), len(there)) < FEW or min(*here, *there) <= 0:
        return None
    ratio = median(there) / median(here)
    error = math.hypot(_median_error(here), _median_error(there)) * Z80
    note = (
        f"a step took {median(here):.6g} s on {names[0]} (median of {len(here)} trials) and {median(there):.6g} s on {names[1]} "
        f"({len(there)} trials); the trials have different configurations"
    )
    low, high = ratio * math.exp(-error), ratio * math.exp(error)
    return RelativeTime(_parts(low), _parts(ratio), _parts(high), "measured", note)


def catalogued(here: str, there: str) -> RelativeTime | None:
    """Compute the relative time from the data sheets of two accelerators. Return None if one of them has no data sheet."""
    speed = relative_speed(here, there)
    if speed is None:
        return None
    least, expected, most = speed
    note = f"{there} compared with {here} according to their data sheets (half precision and memory bandwidth), not measured"
    return RelativeTime(
        _parts(float(1 / most)), _parts(float(1 / expected)), _parts(float(1 / least)), "catalogued", note
    )


def assumed_same(*, on_gpus: bool) -> RelativeTime:
    """Return a relative time of 1 with a wide range, for two machines whose speeds are not known."""
    factor = GPU_UNKNOWN if on_gpus else CPU_UNKNOWN
    kind = "GPU" if on_gpus else "CPU core"
    note = f"assumed to be as fast, because the speed is not known: a {kind} may be up to {factor} times as fast or as slow"
    return RelativeTime(1 / factor, Fraction(1), factor, "assumed_same", note)


def _median_error(values: Sequence[float]) -> float:
    """Return the standard error of the logarithm of the values' median."""
    return MEDIAN_SPREAD * stdev([math.log(value) for value in values]) / math.sqrt(len(values))


def _parts(factor: float) -> Fraction:
    """Round a factor to the six decimals that are shown, so that users can recompute the result."""
    return Fraction(max(1, round(factor * PARTS)), PARTS)
