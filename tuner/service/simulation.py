"""Simulate a job on recorded learning curves, and optionally on recorded or assumed spot machines."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.domain.cost import KINDS
from tuner.domain.errors import Invalid
from tuner.domain.job import Algorithm, MarketPolicy, SamplerName, SchedulerName
from tuner.domain.money import ZERO, Money
from tuner.domain.space import Config
from tuner.domain.time import HOUR_NS, NS
from tuner.simulator.invariants import watch
from tuner.simulator.recorded import BestCurve, RecordedTable
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import SpotConditions, money_of, price_of, table_run, trainings_of
from tuner.simulator.traces import drawn
from tuner.simulator.world import SimulatedRun

TURNS_MAX = 10**9


@dataclass(frozen=True, slots=True)
class MarketUse:
    """The machine time that was paid on one market, and its cost."""

    hours: float
    usd: float


@dataclass(frozen=True, slots=True)
class SpotResult:
    """The part of a simulation's result that concerns spot machines."""

    trace: str
    start_s: float  #: Time in the trace at which the job started.
    notice_s: float  #: Time from the preemption notice to the preemption.
    market: str
    markets: dict[str, MarketUse]  #: Machine time used on each market.
    kept_trainings: float  #: Training time that was not lost, as a multiple of a mean training.
    #: What the kept training and one start of each trial would have cost on spot without interruptions.
    uninterrupted_usd: float
    on_demand_usd: float  #: What the kept training and one start of each trial would have cost on demand.
    times_uninterrupted: float | None  #: Spend relative to `uninterrupted_usd`; None if nothing was kept.


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of a simulation.

    Amounts of money are multiples of the mean cost of a training, unless the name of the field contains `usd`.
    """

    table: str
    best: float | None  #: None if nothing was reported; then `best_config` and `best_step` are None, too.
    best_config: Config | None
    best_step: int | None
    finished: bool  #: Whether the best trial was trained to its last step.
    normalised_regret: float | None
    best_curve: list[tuple[float, float]]  #: Pairs of (spend without idle time, best value so far).
    spent: float
    budget: float
    spent_usd: float
    budget_usd: float
    overspend_usd: float
    bill_usd: dict[str, float]
    trials: int
    steps: int
    resumes: int
    preemptions: int
    stop_reason: str | None
    simulated_seconds: float
    transactions_checked: int
    seed: int
    deadline_met: bool | None  #: None if no wall clock was set.
    spot: SpotResult | None  #: None if no spot machines were simulated.


def recorded_spot(path: Path, *, seed: int, market: MarketPolicy = "spot") -> SpotConditions:
    """Draw a random trace of spot machines from a file, and a random time in it at which the job starts.

    The time from a preemption notice to the preemption is the one that the cloud of the trace promises.

    Raises:
        BadFile: The file cannot be read, or has no usable trace.
    """
    trace, start_ns = drawn(path, seed=seed)
    return SpotConditions(trace=trace, start_ns=start_ns, notice_ns=trace.notice_ns, market=market)


def simulate(
    path: Path,
    budget_trainings: float,
    *,
    workers: int = 4,
    seed: int = 0,
    scheduler: SchedulerName = "auto",
    sampler: SamplerName = "auto",
    startup_steps: float = 1,
    wall_clock_ns: int | None = None,
    training_ns: int | None = None,
    spot: SpotConditions | None = None,
) -> SimulationResult:
    """Simulate a job, and check the invariants of its ledger after each transaction.

    Args:
        path: The file with the table of recorded learning curves.
        budget_trainings: The budget as a multiple of the mean cost of a training.
        startup_steps: Time to start or resume a trial on a worker, as a multiple of the mean step time.
        wall_clock_ns: Limit on the running time of the job in simulated nanoseconds. None means no limit.
        training_ns: Mean duration of a training in simulated nanoseconds. None means the mean duration in the table.
        spot: The spot machines; None means that all machines stay up.

    Raises:
        Invalid: The budget does not pay for a second of training.
        BadFile: The table cannot be used.
        InvariantBroken: The simulated job broke an invariant.
    """
    table = load_table(path)
    if training_ns is not None:
        table = table.lasting(training_ns / NS)
    if not (budget_trainings * table.full_s >= 1 and money_of(table, budget_trainings) > ZERO):
        raise Invalid.at("budget_trainings", "pays for less than one second of training: set a larger number")
    run = table_run(
        table,
        budget_trainings=budget_trainings,
        algorithm=Algorithm(scheduler, sampler, seed),
        wall_clock_ns=wall_clock_ns,
        workers=workers,
        startup_steps=startup_steps,
        spot=spot,
    )
    invariants, curve = watch(run), BestCurve(run)
    run.run(turns_max=TURNS_MAX)
    invariants.at_end(run)

    tables, account = run.journal.tables, run.journal.tables.account
    reason = run.loop.end.reason if run.loop.end else None
    best = None if curve.best_trial is None else run.loop.state.trials[curve.best_trial]
    bill: dict[str, float] = {
        kind: Money(sum(e.cost.usd.micro_usd for e in tables.entries.values() if e.kind == kind)).usd
        for kind in KINDS
    }
    return SimulationResult(
        table=table.name,
        best=curve.best if best else None,
        best_config=table.shown(best.config) if best else None,
        best_step=curve.best_step if best else None,
        finished=best is not None and best.steps >= table.steps,
        normalised_regret=table.normalised_regret(curve.best) if math.isfinite(curve.best) else None,
        best_curve=[(trainings_of(table, spent), value) for spent, value in curve.points],
        spent=trainings_of(table, account.posted.usd),
        budget=trainings_of(table, account.limit.usd),
        spent_usd=account.posted.usd.usd,
        budget_usd=account.limit.usd.usd,
        overspend_usd=max(ZERO, account.posted.usd - account.limit.usd).usd,
        bill_usd=bill,
        trials=len({trial for trial, _ in tables.attempts}),
        steps=len(tables.reports),
        resumes=sum(attempt > 1 for _, attempt in tables.attempts),
        preemptions=run.preemptions,
        stop_reason=reason,
        simulated_seconds=run.clock.elapsed_ns() / NS,
        transactions_checked=invariants.transactions,
        seed=seed,
        deadline_met=None if wall_clock_ns is None else reason != "wall_clock",
        spot=None if spot is None else _spot_result(run, table, spot),
    )


def _spot_result(run: SimulatedRun, table: RecordedTable, spot: SpotConditions) -> SpotResult:
    markets = [offer.market for offer in spot.markets(price_of(table)).offers]
    hours, spent_on = dict.fromkeys(markets, 0.0), dict.fromkeys(markets, ZERO)
    kept_ns = started_ns = 0
    for row in run.journal.tables.attempts.values():
        # The time of each cost kind is derived from the bill. Training that had to be repeated is billed as lost, not as training.
        micro_usd = {kind: cost.usd.micro_usd for kind, cost in row.costs.items()}
        price, paid = row.price.micro_usd_per_hour, sum(micro_usd.values())
        if not paid:
            continue
        hours[row.market] += paid / price
        spent_on[row.market] += Money(paid)
        kept_ns += micro_usd.get("train", 0) * HOUR_NS // price
        if row.attempt == 1:
            started_ns += micro_usd.get("setup", 0) * HOUR_NS // price
    spent, ideal = run.journal.tables.account.posted.usd, price_of(table).of(kept_ns + started_ns)
    demand = replace(spot, market="on_demand").markets(price_of(table)).rate.price
    return SpotResult(
        trace=spot.trace.name if spot.trace else "",
        start_s=spot.start_ns / NS,
        notice_s=(spot.notice_ns or 0) / NS,
        market=spot.market,
        markets={name: MarketUse(hours[name], spent_on[name].usd) for name in hours},
        kept_trainings=round(kept_ns / NS / table.full_s, 5),
        uninterrupted_usd=ideal.usd,
        on_demand_usd=demand.of(kept_ns + started_ns).usd,
        times_uninterrupted=spent.micro_usd / ideal.micro_usd if ideal.micro_usd else None,
    )
