"""Simulates a job over recorded learning curves: the code of a real job on a simulated clock, with its invariants checked."""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, get_args

from tuner.domain.cost import KINDS
from tuner.domain.errors import BadFile, Fault, Invalid
from tuner.domain.job import Algorithm, SamplerName, SchedulerName
from tuner.domain.money import ZERO, Money
from tuner.domain.space import Config
from tuner.domain.time import NS
from tuner.engine.simulated.invariants import Invariants
from tuner.engine.simulated.recorder import BestCurve, TraceWriter
from tuner.engine.simulated.table_run import NOTICE_NS, Preemptions, money_of, table_run, trainings_of
from tuner.engine.simulated.tables import RecordedTable, load_table
from tuner.engine.simulated.world import Faults, SimulatedRun

MAX_TRAININGS = 1_000_000
MAX_WORKERS = 10_000
TURNS_MAX = 10**9
SCHEDULERS: tuple[SchedulerName, ...] = get_args(SchedulerName)
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
RATES = ("crash_rate", "loss_rate", "repeat_rate", "restart_rate", "clock_jump_rate")


@dataclass(frozen=True, slots=True)
class Request:
    """`*_rate`: chances per message of a worker, of which there is about one a step. `preemptions`: a CSV of availability;
    `noticeless`: workers go without the two minutes' notice. `trace`: where every event and ledger entry is written."""

    table: Path
    budget_trainings: float
    workers: int = 4
    seed: int = 0
    scheduler: str = "auto"
    sampler: str = "auto"
    startup_steps: float = 1
    preemptions: Path | None = None
    trace_id: str | None = None
    noticeless: bool = False
    crash_rate: float = 0
    loss_rate: float = 0
    repeat_rate: float = 0
    restart_rate: float = 0
    clock_jump_rate: float = 0
    trace: Path | None = None

    def faults(self) -> list[Fault]:
        """Everything wrong with the request itself."""
        bounds = {
            "/workers": (1 <= self.workers <= MAX_WORKERS, f"must be between 1 and {MAX_WORKERS}"),
            "/seed": (-(2**63) <= self.seed < 2**63, "must fit into 64 bits"),
            "/startup_steps": (0 <= self.startup_steps <= 1000, "must be between 0 and 1000"),
            "/budget_trainings": (
                0 < self.budget_trainings <= MAX_TRAININGS,
                f"must be more than 0, and at most {MAX_TRAININGS}",
            ),
            "/scheduler": (self.scheduler in SCHEDULERS, f"must be one of {', '.join(SCHEDULERS)}"),
            "/sampler": (self.sampler in SAMPLERS, f"must be one of {', '.join(SAMPLERS)}"),
            "/trace_id": (
                self.trace_id is None or self.preemptions is not None,
                "names a trace of a file of preemptions: give that, too",
            ),
        }
        for name in RATES:
            bounds[f"/{name}"] = (0 <= getattr(self, name) <= 0.5, "must be between 0 and 0.5")
        return [Fault(pointer, mend) for pointer, (holds, mend) in bounds.items() if not holds]


@dataclass(frozen=True, slots=True)
class Result:
    """Money is counted in trainings, where nothing else is said. `best_curve`: (spent without idle time, best value so far).
    `best`, `best_step` and the like are None where nothing was reported."""

    table: str
    best: float | None
    best_config: Config | None
    best_step: int | None
    finished: bool
    normalised_regret: float | None
    best_curve: list[tuple[float, float]]
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


def simulate(request: Request) -> Result:
    """Raises Invalid for what cannot be simulated, BadFile for a table or trace that cannot be used, and InvariantBroken where
    the job did not do as it must."""
    _refuse(request.faults())
    table = load_table(request.table)
    if money_of(table, request.budget_trainings) <= ZERO or request.budget_trainings * table.full_s < 1:
        _refuse([Fault("/budget_trainings", "buys less than a second of training: allow more")])
    invariants, curve = Invariants(), BestCurve()
    with _trace(request.trace) as trace:
        watchers = [invariants.recorded, curve.recorded]
        if trace is not None:
            watchers.append(TraceWriter(trace).recorded)
        run = table_run(
            table,
            budget_trainings=request.budget_trainings,
            algorithm=_algorithm(request),
            workers=request.workers,
            startup_steps=request.startup_steps,
            faults=_chances(request),
            preemptions=_preemptions(request),
            watchers=watchers,
        )
        curve.follow(run)
        run.on_turn = lambda: invariants.after_turn(run)
        run.run(turns_max=TURNS_MAX)
    invariants.at_end(run)
    return _result(request, table, run, curve, invariants)


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


def _preemptions(request: Request) -> Preemptions | None:
    if request.preemptions is None:
        return None
    return Preemptions(request.preemptions, request.trace_id, None if request.noticeless else NOTICE_NS)


def _result(
    request: Request, table: RecordedTable, run: SimulatedRun, curve: BestCurve, invariants: Invariants
) -> Result:
    tables, state = run.journal.tables, run.loop.state
    posted = tables.account.posted.usd
    limit = tables.account.limit.usd
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
        stop_reason=run.loop.end.reason if run.loop.end else None,
        simulated_seconds=run.clock.elapsed_ns() / NS,
        transactions_checked=invariants.transactions,
        seed=request.seed,
    )


def _trainings(table: RecordedTable, spent: Money) -> float:
    """Rounded, so that the micro-dollars to which a budget is cut do not show."""
    return round(trainings_of(table, spent), 5)
