"""Create a simulated job over a recorded table: its spec, price, leases and heartbeats.

The price is chosen so that one mean training costs about a dollar. The intervals of heartbeats and the lengths of
leases grow with the table's step time, so that a day of simulated training does not need a message per second.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from tuner.domain.budget import Budget
from tuner.domain.job import Algorithm, JobSpec, MarketPolicy, Resources, markets_of
from tuner.domain.money import Money, Price, Rate
from tuner.domain.objective import Fidelity, Objective
from tuner.domain.offer import Offer, market_selector
from tuner.domain.time import NS
from tuner.driver.placement import OFFER_WAIT_NS
from tuner.driver.ports import LoopConfig
from tuner.simulator.fleet import Markets
from tuner.simulator.recorded import RecordedTable, RowsSampler
from tuner.simulator.traces import Trace
from tuner.simulator.worker import Overheads
from tuner.simulator.world import NONE, Faults, SimulatedRun, SpotMachines, pace_of
from tuner.tuning.samplers import sampler_for

METRIC = "metric"
# A real worker sends one heartbeat per second. A longer interval makes the simulation faster. A trial's placement is checked at each
# heartbeat, and a check every minute is still often enough for moves between markets.
HEARTBEAT_MAX_NS = 60 * NS
HEARTBEAT_IN_TIME_NS = 10 * NS
SAVE_EVERY_NS = 30 * NS
SPOT_SAVES = 0.66  # the median discount of spot prices for AWS's GPU machines in 2026
SAVE_NS = NS  # about the time to upload 100 MB to object storage
STALL_PART = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotConditions:
    """The spot machines that a simulated job may use, and the cost of its checkpoints."""

    trace: Trace | None = None  #: When machines are available. None means that they are never taken away.
    start_ns: int = 0  #: The time in the trace at which the job starts.
    notice_ns: int | None = None  #: How long before a preemption the notice comes. None means no notice.
    market: MarketPolicy = "spot"
    saving: float = SPOT_SAVES  #: Discount of the spot price, as a fraction of the on-demand price.
    spot_wait_ns: int = OFFER_WAIT_NS  #: Fall back to on-demand after this time without a spot machine.
    save_ns: int = SAVE_NS  #: Time until a checkpoint is durable. Training is stalled for a tenth of it.
    #: Time between saves. "auto" means the rule of real workers. None means no saves in the background.
    every_ns: int | Literal["auto"] | None = "auto"

    def markets(self, spot: Price) -> Markets:
        """Return the markets that the job may use. `spot` is the spot price. On-demand machines are always available."""
        on_demand = Price(math.ceil(spot.micro_usd_per_hour / (1 - self.saving)))
        offers = (
            Offer("spot", spot, 1, 0, "spot", labels=(market_selector("spot"),)),
            Offer("on-demand", on_demand, 1, 0, "on_demand", labels=(market_selector("on_demand"),)),
        )
        may_use = tuple(o for o in offers if o.market in markets_of(self.market))
        return Markets(may_use, self.spot_wait_ns)

    def overheads(self, plain: Overheads) -> Overheads:
        stall_ns = self.save_ns // STALL_PART
        return replace(plain, save_ns=self.save_ns, stall_ns=stall_ns, save_every_ns=self.every_ns)


def price_of(table: RecordedTable) -> Price:
    return Price(max(1, round(3600 * 1_000_000 / table.full_s)))


def trainings_of(table: RecordedTable, spent: Money) -> float:
    """Return how many trainings of mean cost this money pays for. The result has 5 decimals, because money is in whole micro-dollars."""
    return round(spent.micro_usd / (table.full_s / 3600 * price_of(table).micro_usd_per_hour), 5)


def money_of(table: RecordedTable, trainings: float) -> Money:
    return Money(round(trainings * table.full_s / 3600 * price_of(table).micro_usd_per_hour))


def table_run(
    table: RecordedTable,
    *,
    budget_trainings: float,
    algorithm: Algorithm,
    trials: int | None = None,
    wall_clock_ns: int | None = None,
    workers: int = 4,
    startup_steps: float = 1,
    faults: Faults = NONE,
    spot: SpotConditions | None = None,
) -> SimulatedRun:
    """Create the simulated run of a job over a table. All random numbers come from `algorithm.seed`.

    The budget pays for `budget_trainings` trainings of mean cost. An attempt begins with a setup as long as `startup_steps` steps of mean
    length, or with a restore of the same length if it resumes a trial. An attempt that continues past a rung needs neither.

    If `spot` is given, saves take time, and a training of mean cost costs about a dollar on a spot machine. Otherwise saves take no time,
    and a training of mean cost costs about a dollar on demand.
    """
    step_ns = table.mean_step_s * NS
    spec = JobSpec(
        "simulation",
        "recorded:table",
        Objective(METRIC),
        table.space,
        Budget(usd=money_of(table, budget_trainings), trials=trials, wall_clock_ns=wall_clock_ns),
        fidelity=Fidelity("step", 1, table.steps),
        algorithm=algorithm,
        resources=Resources(market=spot.market if spot else "on_demand"),
    )
    startup_ns = round(startup_steps * step_ns)
    overheads = Overheads(
        setup_ns=startup_ns, resumed_setup_ns=0, restore_ns=startup_ns, save_ns=0, save_every_ns=SAVE_EVERY_NS
    )
    pace = pace_of(step_ns)
    heartbeat_ns = pace.heartbeat_ns
    if spot is not None:
        in_time = wall_clock_ns is not None and spot.market == "spot_with_fallback"
        heartbeat_ns = min(heartbeat_ns, HEARTBEAT_IN_TIME_NS if in_time else HEARTBEAT_MAX_NS)
    markets = spot.markets(price_of(table)) if spot else None
    rate = markets.rate if markets else Rate(price_of(table))
    seen = spot.trace if spot and spot.market != "on_demand" else None
    return SimulatedRun(
        spec,
        LoopConfig("job_simulated", rate, workers, max(NS, pace.slice_ns)),
        table,
        overheads=spot.overheads(overheads) if spot else overheads,
        faults=faults,
        seed=algorithm.seed,
        sampler=lambda: RowsSampler(table, sampler_for(spec)),
        heartbeat_ns=heartbeat_ns,
        machines=SpotMachines(
            markets=markets,
            up_times=seen.up_times(workers, start_ns=spot.start_ns) if spot and seen else None,
            notice_ns=spot.notice_ns if spot else None,
        ),
    )
