"""The policies that decide where to train and when to save: ours, and those that it is compared with."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tuner.domain.checkpointing import Hazard, InterruptionRisk, Notices, SaveTimes, steps_between
from tuner.domain.job import MarketPolicy
from tuner.domain.money import Price
from tuner.domain.offer import Offer
from tuner.domain.time import MINUTE_NS, Instant
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
    """How a training chooses machines and saves."""

    name: str
    place: Place
    market: MarketPolicy = "spot"
    every_ns: int | None = None  #: The time between saves. None for the interval of `auto`, 0 for no saves.
    notices: bool = True  #: Save when a notice arrives.


@dataclass
class Interval:
    """The number of steps between saves, adapted to the observed preemptions."""

    every_ns: int | None
    step_ns: int
    saving: SaveTimes
    risk: InterruptionRisk = field(default_factory=InterruptionRisk)

    def steps(self, offer: Offer) -> int:
        if self.every_ns is not None:
            return max(1, self.every_ns // self.step_ns) if self.every_ns else NEVER
        exposure = self.risk if offer.market == "spot" else replace(self.risk, preemption=None)
        return steps_between(step_ns=self.step_ns, saving=self.saving, risk=exposure)

    def observe(self, offer: Offer, up_ns: int, *, preempted: bool, missed: bool = False) -> None:
        if offer.market == "spot":
            hazard, notices = self.risk.preemption or Hazard.of_spot(), self.risk.notices
            if preempted:
                notices = Notices(notices.preemptions + 1, notices.missed + missed)
            self.risk = replace(self.risk, preemption=hazard.after(up_ns, preempted), notices=notices)


def greedy(
    request: PlacementRequest, memory: PlacementMemory, observation: Observation
) -> tuple[PlacementMemory, PlacementChoice]:
    """Use spot machines, or wait for them, until the deadline requires on-demand (section 3.4 of the paper).

    The time that leaving a spot machine takes is estimated like in our policy.
    """
    memory = memory.looked(observation.now, at=observation.at, left_ns=observation.left_ns)
    if observation.left_ns <= 0:
        return memory, PlacementChoice(None, "done")
    if observation.at is ON_DEMAND:
        return memory, PlacementChoice(ON_DEMAND, "safety net")
    slack, needed = (
        Schedule.of(request, observation).slack_ns,
        observation.changeover_ns * (2 if observation.at is None else 1),
    )
    if slack < needed:
        return memory, PlacementChoice(ON_DEMAND, "safety net")
    until = Instant(observation.now + slack - needed + 1)
    if observation.at is not None:
        return memory, PlacementChoice(SPOT, "stays", until)
    return memory, PlacementChoice(SPOT, "cheapest") if observation.there else PlacementChoice(
        None, "waits", until
    )


AUTO = Policy("ours: interval auto", choose)
WITHOUT_NOTICE = Policy("ours: auto, ignores notices", choose, notices=False)
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
