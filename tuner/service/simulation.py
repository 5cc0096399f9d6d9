"""Simulate a job over recorded learning curves: the code of a real job on a simulated clock, with its invariants checked."""

import contextlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tuner.domain.cost import KINDS
from tuner.domain.errors import BadFile, Fault, Invalid
from tuner.domain.job import Algorithm
from tuner.domain.money import ZERO, Money
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.service.simulated_spot import Beside, SpotFigures, beside, figures_of, spot_of
from tuner.service.simulation_request import SAMPLERS, SCHEDULERS, Request
from tuner.simulator.invariants import Invariants
from tuner.simulator.recorded import BestCurve, RecordedTable, TraceWriter
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import Spot, money_of, table_run, trainings_of
from tuner.simulator.world import Faults, SimulatedRun

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
