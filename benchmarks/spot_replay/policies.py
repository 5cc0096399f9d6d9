"""Who decides where to be and when to save: ours, and what it is compared with."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tuner.domain.job import Market
from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.time import Instant
from tuner.tuning.checkpointing import Hazard, InterruptionRisk, Notices, SaveTimes, steps_between
from tuner.tuning.placement import (
    Observation,
    PlacementChoice,
    PlacementMemory,
    PlacementRequest,
    Schedule,
    choose,
)

# One V100: AWS's list price on demand, and 66 % less, the median saving of its GPU machines in 2026.
ON_DEMAND = Offer("p3.2xlarge", Price.from_usd_per_hour("3.06"), 8, 1, "on_demand")
SPOT = Offer("p3.2xlarge", Price.from_usd_per_hour("1.04"), 8, 1, "spot")
NEVER = 10**9

Place = Callable[[PlacementRequest, PlacementMemory, Observation], tuple[PlacementMemory, PlacementChoice]]


@dataclass(frozen=True)
class Policy:
    """`every_ns` None: the interval of `auto`; 0: never. `notices`: whether it saves when told that its machine goes."""

    name: str
    place: Place
    market: Market = "spot"
    every_ns: int | None = None
    notices: bool = True


@dataclass
class Interval:
    """How many steps are between saves; learns from what happens to the machines."""

    every_ns: int | None
    step_ns: int
    saving: SaveTimes
    risk: InterruptionRisk = field(default_factory=InterruptionRisk)

    def steps(self, offer: Offer) -> int:
        if self.every_ns is not None:
            return max(1, self.every_ns // self.step_ns) if self.every_ns else NEVER
        exposure = self.risk if offer.market == "spot" else replace(self.risk, preemption=None)
        return steps_between(step_ns=self.step_ns, saving=self.saving, risk=exposure)

    def saw(self, offer: Offer, up_ns: int, *, preempted: bool, missed: bool = False) -> None:
        if offer.market == "spot":
            hazard, notices = self.risk.preemption or Hazard.of_spot(), self.risk.notices
            if preempted:
                notices = Notices(notices.preemptions + 1, notices.missed + missed)
            self.risk = replace(self.risk, preemption=hazard.after(up_ns, preempted), notices=notices)


def greedy(
    request: PlacementRequest, memory: PlacementMemory, sight: Observation
) -> tuple[PlacementMemory, PlacementChoice]:
    """Spot, or waiting for it, until only the safety net is left (section 3.4 of the paper); with our way off spot."""
    memory = memory.looked(sight.now, at=sight.at, left_ns=sight.left_ns)
    if sight.left_ns <= 0:
        return memory, PlacementChoice(None, "done")
    if sight.at is ON_DEMAND:
        return memory, PlacementChoice(ON_DEMAND, "safety net")
    slack, needed = Schedule.of(request, sight).slack_ns, sight.changeover_ns * (2 if sight.at is None else 1)
    if slack < needed:
        return memory, PlacementChoice(ON_DEMAND, "safety net")
    until = Instant(sight.now + slack - needed + 1)
    if sight.at is not None:
        return memory, PlacementChoice(SPOT, "stays", until)
    return memory, PlacementChoice(SPOT, "cheapest") if sight.there else PlacementChoice(None, "waits", until)


MINUTE_NS = 60 * 10**9
AUTO = Policy("ours: interval auto", choose)
WITHOUT_NOTICE = Policy("ours: auto, deaf to notices", choose, notices=False)
FALLBACK = Policy("ours: auto, falls back after 30 min", choose, "spot_with_fallback")
ON_DEMAND_ONLY = Policy("on demand only", choose, "on_demand")
NO_DEADLINE = (
    AUTO,
    WITHOUT_NOTICE,
    Policy("every 15 min, and on notice", choose, every_ns=15 * MINUTE_NS),
    Policy("every 15 min", choose, every_ns=15 * MINUTE_NS, notices=False),
    Policy("every 30 min, and on notice", choose, every_ns=30 * MINUTE_NS),
    Policy("every 30 min", choose, every_ns=30 * MINUTE_NS, notices=False),
    Policy("from zero each time", choose, every_ns=0, notices=False),
    FALLBACK,
    ON_DEMAND_ONLY,
)
WITH_DEADLINE = (
    Policy("ours: uniform progress, auto", choose, "spot_with_fallback"),
    Policy("greedy, auto", greedy, "spot_with_fallback"),
    AUTO,
    ON_DEMAND_ONLY,
)
