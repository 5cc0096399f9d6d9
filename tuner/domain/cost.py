"""Convert the time of an attempt, by cost kind, into costs. The costs of the kinds are rounded so that they add up to the total cost."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from tuner.domain.money import Cost, Money, Rate

CostKind = Literal["setup", "restore", "train", "checkpoint", "lost", "idle", "export"]
# The multiplier of Fibonacci hashing: multiples of it, modulo a length, look random (Knuth, The Art of Computer Programming 6.4).
SCATTERS = 2_654_435_761
KINDS: tuple[CostKind, ...] = get_args(CostKind)


@dataclass(frozen=True, slots=True)
class Meter:
    """The nanoseconds that an attempt has spent since its start, by cost kind."""

    ns: Mapping[CostKind, int] = field(default_factory=dict)

    @classmethod
    def of(cls, ns: Mapping[str, int]) -> "Meter":
        """Build a meter from the nanoseconds by cost kind that a worker sent. Kinds with 0 ns are left out.

        Raises:
            ValueError: A time is negative, or a time other than 0 has an unknown cost kind.
        """
        known: dict[CostKind, int] = {kind: int(ns[kind]) for kind in KINDS if ns.get(kind)}
        if len(known) != sum(1 for v in ns.values() if v) or any(v < 0 for v in known.values()):
            raise ValueError(f"a worker sent a negative time or an unknown cost kind: {dict(ns)!r} ns")
        return cls(known)

    @property
    def total_ns(self) -> int:
        return sum(self.ns.values())

    @property
    def busy_ns(self) -> int:
        return self.total_ns - self.ns.get("idle", 0)

    def minus(self, earlier: "Meter") -> dict[CostKind, int]:
        """Return the nanoseconds by cost kind since an earlier reading. Raise ValueError if the time of a kind decreased."""
        added = {kind: self.ns.get(kind, 0) - earlier.ns.get(kind, 0) for kind in KINDS}
        if any(ns < 0 for ns in added.values()):
            raise ValueError(
                f"the time of a cost kind decreased from {dict(earlier.ns)} to {dict(self.ns)} ns"
            )
        return {kind: ns for kind, ns in added.items() if ns}


def slice_costs(rate: Rate, elapsed_ns: int, added: Mapping[CostKind, int]) -> dict[CostKind, Cost]:
    """Return the cost of the `added` nanoseconds, by cost kind. `elapsed_ns` is the attempt's earlier time, which was already paid for.

    The total cost is the cost of all time of the attempt, minus the cost of `elapsed_ns`, both rounded up. The costs of the kinds add up
    exactly to this total, and none is negative. The cost of a kind is its share of the total, rounded up or down at random, so that the
    rounding cancels out over many attempts. If it were always rounded up, every setup of a few milliseconds would cost a micro-dollar.
    """
    whole = rate.cost(elapsed_ns + sum(added.values())) - rate.cost(elapsed_ns)
    kinds = [kind for kind in KINDS if added.get(kind)]
    lengths = [added[kind] for kind in kinds]
    usd, gpu_ms = _shares(whole.usd.micro_usd, lengths), _shares(whole.gpu_ms, lengths)
    return {kind: Cost(Money(usd[n]), gpu_ms[n]) for n, kind in enumerate(kinds)}


def _shares(whole: int, lengths: Sequence[int]) -> list[int]:
    """Divide `whole` units among parts in proportion to their lengths, in whole units that add up to `whole`.

    This is systematic sampling (Madow, Annals of Mathematical Statistics 20, 1949). The parts are laid end to end on a line. The units
    are points at equal distances on it, and each part gets the points that lie on it. The position of the first point depends on the
    digits of the first length, which are random for times in nanoseconds.
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
