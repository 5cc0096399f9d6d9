"""Convert an attempt's time by kind into costs, rounded so that the costs of its parts add up to the cost of the whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tuner.domain.money import Cost, Money, Rate

CostKind = Literal["setup", "restore", "train", "checkpoint", "lost", "idle", "export"]
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

    The kinds are charged one after the other. Each costs the difference between two cumulative costs, that of the
    attempt's time including this kind and that of its time before, both rounded up. So the parts add up exactly to the
    cost of the whole time, and none is negative.
    """
    costs: dict[CostKind, Cost] = {}
    for kind in KINDS:
        if added.get(kind):
            costs[kind] = rate.cost(elapsed_ns + added[kind]) - rate.cost(elapsed_ns)
            elapsed_ns += added[kind]
    return costs


def total(costs: Mapping[CostKind, Cost]) -> Cost:
    return Cost(
        Money(sum(cost.usd.micro_usd for cost in costs.values())), sum(cost.gpu_ms for cost in costs.values())
    )
