"""What the same training would cost on another machine: its time there, at that machine's price.

Dollars are of the time, not of the dollars that were paid, so that a time on several machines or markets has one price.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median, stdev
from typing import Literal

from tuner.domain.money import Cost, Rate
from tuner.planning.accelerators import relative_speed

SpeedSource = Literal["same_machine", "measured", "catalogued", "assumed_same"]

FEW = 3  # trials on either side, below which nothing is measured
Z80 = 1.2815515655446004  # of a normal distribution's middle 80 %
MEDIAN_SPREAD = 1.2533141373155003  # sqrt(pi / 2): a median spreads so much more than a mean
PARTS = 1_000_000
# How far an assumption may be off, either way: CPUs of the catalogue differ by less than twice in the speed of a core; GPUs of
# which nothing is known by far more.
CPU_UNKNOWN = Fraction(2)
GPU_UNKNOWN = Fraction(4)


@dataclass(frozen=True, slots=True)
class RelativeTime:
    """How long the same training takes there, as a multiple of its time here: at least, expected, at most."""

    low: Fraction
    expected: Fraction
    high: Fraction
    source: SpeedSource
    note: str

    def widened(self, other: "RelativeTime") -> "RelativeTime":
        """Where it is not known which of two holds."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return RelativeTime(low, self.expected, high, self.source, self.note)


SAME = RelativeTime(Fraction(1), Fraction(1), Fraction(1), "same_machine", "the same kind of machine")


@dataclass(frozen=True, slots=True)
class Repriced:
    """`low` and `high` bound the dollars by what is known of the speed."""

    cost: Cost
    duration_ns: int
    low: Cost
    high: Cost


@dataclass(frozen=True, slots=True)
class Repricing:
    """`overhead`: seconds that interruptions take for each second of training; None: not known, and not counted."""

    rate: Rate
    time: RelativeTime
    overhead: Fraction | None = None

    def of(self, duration_ns: int) -> Repriced:
        """Of a training that takes so long here. Times are rounded up, and so is money."""
        low, expected, high = (
            self._ns(duration_ns, factor) for factor in (self.time.low, self.time.expected, self.time.high)
        )
        return Repriced(self.rate.cost(expected), expected, self.rate.cost(low), self.rate.cost(high))

    def _ns(self, duration_ns: int, factor: Fraction) -> int:
        return math.ceil(duration_ns * factor * (1 + (self.overhead or 0)))


def measured(here: Sequence[float], there: Sequence[float], *, names: tuple[str, str]) -> RelativeTime | None:
    """From the seconds of a step of trials on either machine: the ratio of the medians, with the 80 % interval of both medians'
    sampling errors on a logarithmic scale. None where there are too few."""
    if min(len(here), len(there)) < FEW or min(*here, *there) <= 0:
        return None
    ratio = median(there) / median(here)
    error = math.hypot(_median_error(here), _median_error(there)) * Z80
    note = (
        f"a step took {median(here):.6g} s on {names[0]} (median of {len(here)} trials) and {median(there):.6g} s on {names[1]} "
        f"({len(there)} trials); their configurations differ"
    )
    low, high = ratio * math.exp(-error), ratio * math.exp(error)
    return RelativeTime(_parts(low), _parts(ratio), _parts(high), "measured", note)


def catalogued(here: str, there: str) -> RelativeTime | None:
    """From the data sheets of two accelerators. None where one of them has none."""
    speed = relative_speed(here, there)
    if speed is None:
        return None
    least, expected, most = speed
    note = f"{there} beside {here} by their data sheets (half precision and memory bandwidth): not measured"
    return RelativeTime(
        _parts(float(1 / most)), _parts(float(1 / expected)), _parts(float(1 / least)), "catalogued", note
    )


def assumed_same(*, on_gpus: bool) -> RelativeTime:
    """Where nothing is known of either."""
    factor = GPU_UNKNOWN if on_gpus else CPU_UNKNOWN
    kind = "GPU" if on_gpus else "CPU core"
    note = f"taken to be as fast, since nothing is known: a {kind} may be up to {factor} times as fast or as slow"
    return RelativeTime(1 / factor, Fraction(1), factor, "assumed_same", note)


def _median_error(values: Sequence[float]) -> float:
    """Standard error of the logarithm of the median."""
    return MEDIAN_SPREAD * stdev([math.log(value) for value in values]) / math.sqrt(len(values))


def _parts(factor: float) -> Fraction:
    """To six decimals, as it is shown, so that what is shown can be recomputed."""
    return Fraction(max(1, round(factor * PARTS)), PARTS)
