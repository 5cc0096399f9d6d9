"""Convert an attempt's time by kind into costs, rounded so that the costs of its parts add up to the cost of the whole."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.money import Cost, Money, Rate

CostKind = Literal["setup", "restore", "train", "checkpoint", "lost", "idle", "export"]
# Multiplied with a length and divided by another, it leaves remainders that look random (Knuth, The Art of Computer Programming 6.4).
SCATTERS = 2_654_435_761
KINDS: tuple[CostKind, ...] = ("setup", "restore", "train", "checkpoint", "lost", "idle", "export")


@dataclass(frozen=True, slots=True)
class Meter:
    """Nanoseconds of an attempt by kind, counted from its start."""

    ns: Mapping[CostKind, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ns: Mapping[str, int]) -> "Meter":
        """Return the meter from a worker's figures.

        Raises:
            ValueError: A kind with time is unknown, or a time is negative.
        """
        known: dict[CostKind, int] = {kind: int(ns[kind]) for kind in KINDS if ns.get(kind)}
        if len(known) != sum(1 for v in ns.values() if v) or any(v < 0 for v in known.values()):
            raise ValueError(f"not a valid meter reading: {dict(ns)!r}")
        return cls(known)

    @property
    def total_ns(self) -> int:
        return sum(self.ns.values())

    @property
    def busy_ns(self) -> int:
        return self.total_ns - self.ns.get("idle", 0)

    def minus(self, earlier: "Meter") -> dict[CostKind, int]:
        """Return the nanoseconds by kind since an earlier reading. Raise ValueError if a kind decreased."""
        added = {kind: self.ns.get(kind, 0) - earlier.ns.get(kind, 0) for kind in KINDS}
        if any(ns < 0 for ns in added.values()):
            raise ValueError(f"the meter went back from {dict(earlier.ns)} to {dict(self.ns)}")
        return {kind: ns for kind, ns in added.items() if ns}


def slice_costs(rate: Rate, elapsed_ns: int, added: Mapping[CostKind, int]) -> dict[CostKind, Cost]:
    """Return the cost of the `added` nanoseconds, by kind. `elapsed_ns` is the attempt's time that was already paid for.

    The whole costs the difference between the cumulative costs of the attempt's time with and without it, both rounded up. The parts
    add up exactly to the whole, and none is negative. Each costs its share of the whole, rounded up or down. Over many attempts the
    rounding cancels out. If it was always up, a setup of some milliseconds would cost a micro-dollar in each attempt.
    """
    whole = rate.cost(elapsed_ns + sum(added.values())) - rate.cost(elapsed_ns)
    kinds = [kind for kind in KINDS if added.get(kind)]
    lengths = [added[kind] for kind in kinds]
    usd, gpu_ms = _shares(whole.usd.micro_usd, lengths), _shares(whole.gpu_ms, lengths)
    return {kind: Cost(Money(usd[n]), gpu_ms[n]) for n, kind in enumerate(kinds)}


def _shares(whole: int, lengths: Sequence[int]) -> list[int]:
    """Divide `whole` units by the lengths of its parts.

    This is systematic sampling (Madow, Annals of Mathematical Statistics 20, 1949): the units are points at equal distances on a line
    of all lengths, and each part gets the points on its length. Where the first point is depends on the digits of the first length,
    which are random for times in nanoseconds.
    """
    line = sum(lengths)
    first = lengths[0] * SCATTERS % line if lengths else 0
    ends = itertools.accumulate(lengths)
    before = [0, *(max(0, -(-(end * whole - first) // line)) for end in ends)]
    return [after - earlier for earlier, after in itertools.pairwise(before)]


def total(costs: Mapping[CostKind, Cost]) -> Cost:
    return Cost(
        Money(sum(cost.usd.micro_usd for cost in costs.values())), sum(cost.gpu_ms for cost in costs.values())
    )
