"""A job over a recorded table: its spec, its price, and the pace of its clockwork.

One training costs about a dollar: the price is that of a worker which trains a mean row in full for it. Heartbeats and
slices grow with the table's steps, so that a day of simulated training is not told second by second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.domain.budget import Budget
from tuner.domain.fidelity import Fidelity
from tuner.domain.job import Algorithm, JobSpec
from tuner.domain.money import Money, Price, Rate
from tuner.domain.objective import Objective
from tuner.domain.time import NS
from tuner.engine.simulated import traces
from tuner.engine.simulated.journal import Committed, Tables
from tuner.engine.simulated.tables import RecordedTable, RowsSampler, TableTraining
from tuner.engine.simulated.worker import Overheads
from tuner.engine.simulated.world import NONE, Faults, SimulatedRun
from tuner.engine.world import Terms
from tuner.tuning.samplers import sampler_for

METRIC = "metric"
SLICE_STEPS = 8
HEARTBEAT_STEPS = 4
HEARTBEAT_MIN_NS = NS
SAVE_EVERY_NS = 30 * NS  # as a real worker
NOTICE_NS = 120 * NS


@dataclass(frozen=True, slots=True)
class Preemptions:
    """By a recorded trace: drawn from the file's by the run's seed where `trace_id` is not given. `notice_ns` None: without."""

    path: Path
    trace_id: str | None = None
    notice_ns: int | None = NOTICE_NS


def price_of(table: RecordedTable) -> Price:
    return Price(max(1, round(3600 * 1_000_000 / table.full_s)))


def trainings_of(table: RecordedTable, spent: Money) -> float:
    """Money as so many mean trainings."""
    return spent.micro_usd / (table.full_s / 3600 * price_of(table).micro_usd_per_hour)


def money_of(table: RecordedTable, trainings: float) -> Money:
    return Money(round(trainings * table.full_s / 3600 * price_of(table).micro_usd_per_hour))


def table_run(
    table: RecordedTable,
    *,
    budget_trainings: float,
    algorithm: Algorithm,
    workers: int = 4,
    startup_steps: float = 1,
    faults: Faults = NONE,
    preemptions: Preemptions | None = None,
    watchers: Sequence[Callable[[Tables, Committed], None]] = (),
) -> SimulatedRun:
    """A run whose every draw comes of `algorithm.seed`. Raises TraceError where the trace cannot be used.

    An attempt takes `startup_steps` mean steps before its first one, as setup, or as restore where it is resumed; one
    that goes on without leaving its worker takes nothing, and neither does saving.
    """
    step_ns = table.mean_step_s * NS
    spec = JobSpec(
        "simulation",
        "recorded:table",
        Objective(METRIC),
        table.space,
        Budget(usd=money_of(table, budget_trainings)),
        fidelity=Fidelity("step", 1, table.steps),
        algorithm=algorithm,
    )
    startup_ns = round(startup_steps * step_ns)
    up_times = notice_ns = None
    if preemptions is not None:
        notice_ns = preemptions.notice_ns
        trace, start_ns = traces.drawn(
            preemptions.path, seed=algorithm.seed, notice_ns=notice_ns, trace_id=preemptions.trace_id
        )
        up_times = trace.up_times(workers, start_ns=start_ns)
    return SimulatedRun(
        spec,
        Terms("job_simulated", Rate(price_of(table)), workers, max(NS, round(SLICE_STEPS * step_ns))),
        TableTraining(table),
        overheads=Overheads(
            setup_ns=startup_ns,
            resumed_setup_ns=0,
            restore_ns=startup_ns,
            save_ns=0,
            save_every_ns=SAVE_EVERY_NS,
        ),
        faults=faults,
        seed=algorithm.seed,
        sampler=lambda: RowsSampler(table, sampler_for(spec)),
        heartbeat_ns=max(HEARTBEAT_MIN_NS, round(HEARTBEAT_STEPS * step_ns)),
        up_times=up_times,
        notice_ns=notice_ns,
        watchers=watchers,
    )
