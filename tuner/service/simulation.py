"""Simulate a job on recorded learning curves, on recorded or assumed spot machines."""

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TextIO, TypeVar, get_args

from tuner.domain.cost import KINDS, CostKind
from tuner.domain.errors import BadFile, Fault, Invalid
from tuner.domain.job import Algorithm, Market, SamplerName, SchedulerName
from tuner.domain.money import NS_PER_HOUR, ZERO, Money, Price
from tuner.domain.records import AttemptRow
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.driver.placement import PATIENCE_NS
from tuner.simulator import traces
from tuner.simulator.invariants import Invariants
from tuner.simulator.recorded import BestCurve, RecordedTable, TraceWriter
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import SAVE_NS, SPOT_SAVES, Spot, money_of, price_of, table_run, trainings_of
from tuner.simulator.world import Faults, SimulatedRun

MAX_TRAININGS = 1_000_000
MAX_WORKERS = 10_000
HOUR_NS = 3600 * NS
SCHEDULERS: tuple[SchedulerName, ...] = get_args(SchedulerName)
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
MARKETS: tuple[Market, ...] = get_args(Market)
RATES = ("crash_rate", "loss_rate", "repeat_rate", "restart_rate", "clock_jump_rate")
# Fields that are only valid with spot machines, with the names that users see.
OF_SPOT = {
    "trace_id": "trace_id",
    "market": "market",
    "notice_ns": "notice",
    "spot_saving": "spot_saving",
    "spot_wait_ns": "spot_wait",
    "save_ns": "save_time",
    "every_ns": "checkpoint_interval",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to simulate a job over recorded learning curves.

    The `*_rate` fields are probabilities per message of a worker, which sends about one per step. Fields about spot
    machines are valid only with `preemptions`, and None means their default.
    """

    table: Path
    budget_trainings: float  #: The budget in mean trainings.
    workers: int = 4
    seed: int = 0
    scheduler: str = "auto"
    sampler: str = "auto"
    startup_steps: float = 1
    preemptions: Path | None = None  #: A CSV of spot availability, or the name of a shipped one.
    trace_id: str | None = None
    noticeless: bool = False  #: Whether machines are preempted without notice.
    crash_rate: float = 0
    loss_rate: float = 0
    repeat_rate: float = 0
    restart_rate: float = 0
    clock_jump_rate: float = 0
    trace: Path | None = None  #: File to which every event and ledger entry is written.
    trials: int | None = None  #: Limit on the number of trials, as in a job's budget.
    wall_clock_ns: int | None = None  #: Limit on the running time, as in a job's budget.
    training_ns: int | None = None  #: Time of a mean training; None means the time in the table.
    market: str | None = None
    notice_ns: int | None = None  #: Time from the notice to the preemption.
    spot_saving: float | None = None  #: Fraction of the on-demand price by which spot is cheaper.
    spot_wait_ns: int | None = None
    save_ns: int | None = None
    every_ns: int | Literal["auto"] | None = None
    beside: bool = False  #: Whether the same job is also simulated under other conditions.

    def faults(self) -> list[Fault]:
        """Return what is wrong with the values of the request, without reading its table or trace."""
        bounds = {**self._bounds(), **self._spot_bounds()}
        for name in RATES:
            bounds[f"/{name}"] = (0 <= getattr(self, name) <= 0.5, "must be between 0 and 0.5")
        found = [Fault(pointer, fix) for pointer, (holds, fix) in bounds.items() if not holds]
        if self.preemptions is None:
            given = [word for name, word in OF_SPOT.items() if getattr(self, name) is not None]
            given += [word for word in ("noticeless", "beside") if getattr(self, word)]
            found += [Fault(f"/{word}", "is of spot machines: give preemptions, too") for word in given]
        return found

    def _bounds(self) -> dict[str, tuple[bool, str]]:
        return {
            "/workers": (1 <= self.workers <= MAX_WORKERS, f"must be between 1 and {MAX_WORKERS}"),
            "/seed": (-(2**63) <= self.seed < 2**63, "must fit into 64 bits"),
            "/startup_steps": (0 <= self.startup_steps <= 1000, "must be between 0 and 1000"),
            "/budget_trainings": (
                0 < self.budget_trainings <= MAX_TRAININGS,
                f"must be more than 0, and at most {MAX_TRAININGS}",
            ),
            "/scheduler": (self.scheduler in SCHEDULERS, f"must be one of {', '.join(SCHEDULERS)}"),
            "/sampler": (self.sampler in SAMPLERS, f"must be one of {', '.join(SAMPLERS)}"),
            "/trials": (_within(self.trials, 1, 1_000_000), "must be between 1 and 1000000"),
            "/wall_clock": (_within(self.wall_clock_ns, 1), "must be more than 0 seconds"),
            "/training_time": (
                _within(self.training_ns, NS, 10_000 * HOUR_NS),
                "must be between 1 second and 10000 hours",
            ),
        }

    def _spot_bounds(self) -> dict[str, tuple[bool, str]]:
        every_ns = None if self.every_ns == "auto" else self.every_ns
        return {
            "/market": (self.market in (None, *MARKETS), f"must be one of {', '.join(MARKETS)}"),
            "/notice": (
                not (self.noticeless and self.notice_ns) and _within(self.notice_ns, 0, HOUR_NS),
                "must be at most an hour, and is left out with noticeless",
            ),
            "/spot_saving": (_within(self.spot_saving, 0, 0.99), "must be between 0 and 0.99"),
            "/spot_wait": (_within(self.spot_wait_ns, NS, HOUR_NS), "must be between 1 second and an hour"),
            "/save_time": (_within(self.save_ns, 0, HOUR_NS), "must be at most an hour"),
            "/checkpoint_interval": (_within(every_ns, 1), "must be more than 0 seconds, or auto"),
        }


def _within(value: float | None, least: float, most: float = float("inf")) -> bool:
    return value is None or least <= value <= most


MINUTE_NS = 60 * NS
T = TypeVar("T")
Name = Literal["this_job", "uninterrupted", "on_demand", "every_15m", "every_30m", "from_zero"]


@dataclass(frozen=True, slots=True)
class Use:
    """Paid machine time on one market."""

    hours: float
    usd: float


@dataclass(frozen=True, slots=True)
class SpotFigures:
    """MetricsSnapshot of a simulated job on spot machines."""

    trace: str
    start_s: float
    notice_s: float  #: Time from the preemption notice to the preemption; 0 if there is no notice.
    market: str
    markets: dict[str, Use]  #: Machine time used on each market.
    kept_trainings: float  #: Training that was not lost, in mean trainings.
    #: Cost of the kept training and one start of each trial on spot without interruptions.
    uninterrupted_usd: float
    on_demand_usd: float  #: The same cost on demand.
    times_uninterrupted: float | None  #: Spend relative to `uninterrupted_usd`; None if nothing was kept.


@dataclass(frozen=True, slots=True)
class Beside:
    """MetricsSnapshot of the same job simulated under one set of conditions."""

    name: Name
    spent_usd: float
    kept_trainings: float
    usd_per_training: float | None  #: Spend per mean training that was kept; None if none was.
    times_uninterrupted: float | None  #: `usd_per_training` relative to that of the uninterrupted run.
    lost_usd: float
    preemptions: int
    simulated_seconds: float
    stop_reason: str | None


def spot_of(request: Request) -> Spot | None:
    """Return the spot conditions of the request, with defaults for what it leaves out, or None if it has no spot machines.

    Raises:
        TraceError: The trace cannot be used.
    """
    if request.preemptions is None:
        return None
    notice_ns = 0 if request.noticeless else request.notice_ns
    trace, start_ns = traces.drawn(
        request.preemptions, seed=request.seed, notice_ns=notice_ns, trace_id=request.trace_id
    )
    given_ns = trace.notice_ns if notice_ns is None else notice_ns
    return Spot(
        trace=trace,
        start_ns=start_ns,
        notice_ns=given_ns or None,
        market=next((market for market in MARKETS if market == request.market), "spot"),
        saving=_or(request.spot_saving, SPOT_SAVES),
        patience_ns=_or(request.spot_wait_ns, PATIENCE_NS),
        save_ns=_or(request.save_ns, SAVE_NS),
        every_ns=request.every_ns or "auto",
    )


def _or(given: T | None, usual: T) -> T:
    return usual if given is None else given


def conditions(spot: Spot) -> dict[Name, Spot]:
    """Return the conditions under which a job is simulated for comparison.

    The last three imitate programs that ignore preemption notices and save only at intervals, or never. They lose the
    training since the last checkpoint.
    """
    deaf = replace(spot, notice_ns=None)
    return {
        "uninterrupted": replace(spot, trace=None, market="spot"),
        "on_demand": replace(spot, market="on_demand"),
        "every_15m": replace(deaf, every_ns=15 * MINUTE_NS),
        "every_30m": replace(deaf, every_ns=30 * MINUTE_NS),
        "from_zero": replace(deaf, every_ns=None),
    }


def beside(
    run: SimulatedRun, spot: Spot, table: RecordedTable, simulated: Callable[[Spot], SimulatedRun]
) -> list[Beside]:
    """Return the figures of `run`, and those of the same job simulated under other conditions."""
    others = {name: simulated(other) for name, other in conditions(spot).items()}
    ideal = _price(others["uninterrupted"], table)
    runs: dict[Name, SimulatedRun] = {"this_job": run, **others}
    return [_row(name, one, table, ideal) for name, one in runs.items()]


def _row(name: Name, run: SimulatedRun, table: RecordedTable, ideal: float | None) -> Beside:
    price = _price(run, table)
    return Beside(
        name,
        run.journal.tables.account.posted.usd.usd,
        kept_trainings(run, table),
        price,
        price / ideal if price and ideal else None,
        _usd(_paid(run, "lost")),
        run.preemptions,
        run.clock.elapsed_ns() / NS,
        run.loop.end.reason if run.loop.end else None,
    )


def _price(run: SimulatedRun, table: RecordedTable) -> float | None:
    kept = kept_trainings(run, table)
    return run.journal.tables.account.posted.usd.usd / kept if kept else None


def figures_of(run: SimulatedRun, table: RecordedTable, spot: Spot) -> SpotFigures:
    markets = spot.markets(price_of(table))
    once_ns = kept_ns(run) + sum(_ns(row, "setup") for row in _rows(run) if row.attempt == 1)
    demand = replace(spot, market="on_demand").markets(price_of(table)).rate.price
    ideal, spent = price_of(table).of(once_ns), run.journal.tables.account.posted.usd
    assert spot.trace is not None
    return SpotFigures(
        trace=spot.trace.name,
        start_s=spot.start_ns / NS,
        notice_s=(spot.notice_ns or 0) / NS,
        market=spot.market,
        markets={offer.market: _use(run, offer.market) for offer in markets.offers},
        kept_trainings=kept_trainings(run, table),
        uninterrupted_usd=ideal.usd,
        on_demand_usd=demand.of(once_ns).usd,
        times_uninterrupted=spent.micro_usd / ideal.micro_usd if ideal.micro_usd else None,
    )


def kept_trainings(run: SimulatedRun, table: RecordedTable) -> float:
    return round(kept_ns(run) / NS / table.full_s, 5)


def kept_ns(run: SimulatedRun) -> int:
    """Return the training time that was not lost.

    It is derived from the bill. Training that had to be repeated is billed as lost, not as training.
    """
    return sum(_ns(row, "train") for row in _rows(run))


def _rows(run: SimulatedRun) -> Iterable[AttemptRow]:
    return run.journal.tables.attempts.values()


def _ns(row: AttemptRow, *kinds: CostKind) -> int:
    micro = sum(cost.usd.micro_usd for kind, cost in row.costs.items() if kind in kinds)
    return micro * NS_PER_HOUR // row.price.micro_usd_per_hour if row.price != Price(0) else 0


def _use(run: SimulatedRun, market: str) -> Use:
    rows = [row for row in _rows(run) if row.market == market]
    ns = sum(_ns(row, *row.costs) for row in rows)
    micro = sum(cost.usd.micro_usd for row in rows for cost in row.costs.values())
    return Use(ns / NS_PER_HOUR, _usd(micro))


def _paid(run: SimulatedRun, kind: CostKind) -> int:
    return sum(
        entry.cost.usd.micro_usd for entry in run.journal.tables.entries.values() if entry.kind == kind
    )


def _usd(micro: int) -> float:
    return Money(micro).usd


TURNS_MAX = 10**9


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a simulation. Money is counted in mean trainings unless the name says `usd`."""

    table: str
    best: float | None  #: None if nothing was reported; then `best_config` and `best_step` are None, too.
    best_config: Config | None
    best_step: int | None
    finished: bool
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
    crashes: int
    restarts: int
    stop_reason: str | None
    simulated_seconds: float
    transactions_checked: int
    seed: int
    deadline_met: bool | None = None  #: None if no wall clock was set.
    spot: SpotFigures | None = None  #: None if no spot machines were simulated.
    beside: list[Beside] = field(default_factory=list)  #: The same job simulated under other conditions.


def simulate(request: Request) -> Result:
    """Simulate a job.

    Raises:
        Invalid: The request cannot be simulated.
        BadFile: A table or trace cannot be used.
        InvariantBroken: The simulated job broke an invariant.
    """
    _refuse(request.faults())
    table = load_table(request.table)
    if request.training_ns is not None:
        table = table.lasting(request.training_ns / NS)
    if money_of(table, request.budget_trainings) <= ZERO or request.budget_trainings * table.full_s < 1:
        _refuse([Fault("/budget_trainings", "buys less than a second of training: allow more")])
    spot = spot_of(request)
    curve = BestCurve()
    with _trace(request.trace) as trace:
        writer = TraceWriter(trace) if trace is not None else None
        run, transactions = _simulated(request, table, spot, curve, writer)
    others: list[Beside] = []
    if spot is not None and request.beside:
        others = beside(run, spot, table, lambda other: _simulated(request, table, other)[0])
    return _result(request, table, run, curve, transactions, spot, others)


def _simulated(
    request: Request,
    table: RecordedTable,
    spot: Spot | None,
    curve: BestCurve | None = None,
    writer: TraceWriter | None = None,
) -> tuple[SimulatedRun, int]:
    """Run the job to its end. Return the run, and the number of transactions whose invariants were checked."""
    invariants = Invariants()
    watchers = [invariants.recorded]
    watchers += [one.recorded for one in (curve, writer) if one is not None]
    run = table_run(
        table,
        budget_trainings=request.budget_trainings,
        algorithm=_algorithm(request),
        trials=request.trials,
        wall_clock_ns=request.wall_clock_ns,
        workers=request.workers,
        startup_steps=request.startup_steps,
        faults=_chances(request),
        spot=spot,
        watchers=watchers,
    )
    if curve is not None:
        curve.follow(run)
    run.on_turn = lambda: invariants.after_turn(run)
    run.run(turns_max=TURNS_MAX)
    invariants.at_end(run)
    return run, invariants.transactions


def _refuse(faults: list[Fault]) -> None:
    if faults:
        raise Invalid(*faults)


def _trace(path: Path | None) -> contextlib.AbstractContextManager[TextIO | None]:
    if path is None:
        return contextlib.nullcontext()
    try:
        return path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise BadFile(f"{path} cannot be written: {error.strerror}") from error


def _algorithm(request: Request) -> Algorithm:
    scheduler = next(name for name in SCHEDULERS if name == request.scheduler)
    sampler = next(name for name in SAMPLERS if name == request.sampler)
    return Algorithm(scheduler, sampler, request.seed)


def _chances(request: Request) -> Faults:
    return Faults(
        crash=request.crash_rate,
        repeat=request.repeat_rate,
        driver_restart=request.restart_rate,
        clock_jump=request.clock_jump_rate,
        loss=request.loss_rate,
    )


def _result(
    request: Request,
    table: RecordedTable,
    run: SimulatedRun,
    curve: BestCurve,
    transactions: int,
    spot: Spot | None,
    others: list[Beside],
) -> Result:
    tables, state = run.journal.tables, run.loop.state
    posted = tables.account.posted.usd
    limit = tables.account.limit.usd
    reason = run.loop.end.reason if run.loop.end else None
    best = None if curve.best_trial is None else state.trials[curve.best_trial]
    bill = {
        kind: sum(e.cost.usd.micro_usd for e in tables.entries.values() if e.kind == kind) for kind in KINDS
    }
    return Result(
        table=table.name,
        best=curve.best if best else None,
        best_config=table.shown(best.config) if best else None,
        best_step=curve.best_step if best else None,
        finished=best is not None and best.steps >= table.steps,
        normalised_regret=table.normalised_regret(curve.best) if math.isfinite(curve.best) else None,
        best_curve=[(_trainings(table, spent), value) for spent, value in curve.points],
        spent=_trainings(table, posted),
        budget=_trainings(table, limit),
        spent_usd=posted.usd,
        budget_usd=limit.usd,
        overspend_usd=max(ZERO, posted - limit).usd,
        bill_usd={kind: Money(micro).usd for kind, micro in bill.items()},
        trials=len({trial for trial, _ in tables.attempts}),
        steps=len(tables.reports),
        resumes=sum(attempt > 1 for _, attempt in tables.attempts),
        preemptions=run.preemptions,
        crashes=run.crashes,
        restarts=run.restarts,
        stop_reason=reason,
        simulated_seconds=run.clock.elapsed_ns() / NS,
        transactions_checked=transactions,
        seed=request.seed,
        deadline_met=None if request.wall_clock_ns is None else reason != "wall_clock",
        spot=figures_of(run, table, spot) if spot is not None else None,
        beside=others,
    )


def _trainings(table: RecordedTable, spent: Money) -> float:
    """Convert money to mean trainings. The result is rounded, to hide that budgets are cut to whole micro-dollars."""
    return round(trainings_of(table, spent), 5)
