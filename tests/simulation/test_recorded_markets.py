"""Test jobs on spot machines that come and go as recorded: their costs, their decisions, and whether they end
in time.
"""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests import seeds
from tests.simulation.made_tables import arrays, written
from tests.simulation.test_simulated_jobs import check_books, ended, outcome
from tests.simulation.watched import run_watched
from tuner.domain.job import Algorithm, MarketPolicy, SchedulerName
from tuner.domain.money import Cost
from tuner.domain.time import NS
from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import SpotConditions, table_run
from tuner.simulator.traces import Trace, load_traces
from tuner.simulator.world import Faults, SimulatedRun

MINUTE = 60 * NS
HOUR = 60 * MINUTE
MARKETS: tuple[MarketPolicy, ...] = ("spot", "spot_with_fallback", "on_demand")
SHIPPED = load_traces("bamboo")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> RecordedTable:
    """Trainings of 24 min to an hour, in steps of 36 to 90 s that vary by up to a fifth."""
    columns = arrays(rows=40, steps=40, mean_s=60)
    rng = Random("uneven")
    columns["time"] = columns["time"] * [[rng.uniform(0.8, 1.2) for _ in row] for row in columns["time"]]
    return load_table(written(tmp_path_factory.mktemp("tables") / "made.npz", columns))


def made(*minutes: float, nodes: int = 1) -> Trace:
    """Return a trace that is available and unavailable by turns, for the given minutes."""
    segments, at = [], 0
    for number, length in enumerate(minutes):
        segments.append((at, at + round(length * MINUTE), nodes * (1 - number % 2)))
        at = segments[-1][1]
    return Trace("made", tuple(segments))


def drawn(seed: int) -> Trace:
    """Return a trace in which most periods are short and some long, as in recorded traces."""
    rng = Random(f"market/{seed}")
    return made(*(max(0.1, rng.lognormvariate(2, 1.5)) for _ in range(30)))


def run_of(
    table: RecordedTable,
    spot: SpotConditions,
    *,
    budget: float = 1000,
    seed: int = 0,
    scheduler: SchedulerName = "none",
    **more: Any,
) -> SimulatedRun:
    run = run_watched(
        table_run(
            table,
            budget_trainings=budget,
            algorithm=Algorithm(scheduler, "random", seed),
            spot=spot,
            **{"workers": 1, "startup_steps": 0.5, **more},
        )
    )
    check_books(run)
    assert run.journal.tables.account.held == Cost()
    return run


def usd(run: SimulatedRun) -> int:
    return run.journal.tables.account.posted.usd.micro_usd


def lost(run: SimulatedRun) -> int:
    return sum(e.cost.usd.micro_usd for e in run.journal.tables.entries.values() if e.kind == "lost")


def markets(run: SimulatedRun) -> list[str]:
    """Return the market of each attempt that had a machine, in order."""
    return [row.market for row in run.journal.tables.attempts.values() if row.assigned_at is not None]


# Budgets hold


@pytest.mark.parametrize("seed", seeds.first(8, 16))
def test_job_stays_within_budget_on_any_recorded_market(table: RecordedTable, seed: int) -> None:
    rng = Random(f"recorded/{seed}")
    trace = rng.choice([*SHIPPED, drawn(seed)])
    spot = SpotConditions(
        trace=trace,
        start_ns=rng.randrange(trace.length_ns),
        notice_ns=rng.choice((None, 15 * NS, trace.notice_ns)),
        market=rng.choice(MARKETS),
        saving=rng.choice((0.0, 0.5, 0.66, 0.9)),
        save_ns=rng.choice((0, NS, 30 * NS)),
        every_ns=rng.choice(("auto", "auto", None, 5 * MINUTE)),
    )
    chances = [rng.choice((0, rng.uniform(0, 0.03))) for _ in range(4)]
    run = run_of(
        table,
        spot,
        budget=rng.uniform(0.05, 4),
        seed=seed,
        scheduler=rng.choice(("asha", "asha_stopping", "none", "auto")),
        workers=rng.randint(1, 4),
        wall_clock_ns=rng.choice((None, HOUR, 6 * HOUR)),
        faults=Faults(crash=chances[0], repeat=chances[1], driver_restart=chances[2], loss=chances[3]),
    )
    assert run.journal.tables.account.posted.fits(run.journal.tables.account.limit)
    assert ended(run) in ("budget_usd", "wall_clock")


# Decisions


# The gate runs each scheduler and each market at least once, and fallback with and without a notice.
@pytest.mark.parametrize(
    ("scheduler", "market", "notice_ns"),
    [
        ("asha", "spot", None),
        ("none", "spot", None),
        ("auto", "spot_with_fallback", 30 * NS),
        ("asha_stopping", "spot_with_fallback", None),
        *(
            pytest.param(*variant, marks=pytest.mark.extended)
            for variant in (
                ("auto", "spot", None),
                ("asha_stopping", "spot", None),
                ("auto", "spot_with_fallback", None),
                ("asha", "spot_with_fallback", None),
                ("none", "spot_with_fallback", None),
                ("asha", "spot_with_fallback", 30 * NS),
                ("asha_stopping", "spot_with_fallback", 30 * NS),
                ("none", "spot_with_fallback", 30 * NS),
            )
        ),
    ],
)
def test_frequent_preemptions_do_not_change_decisions(
    table: RecordedTable, scheduler: SchedulerName, market: MarketPolicy, notice_ns: int | None
) -> None:
    def run(trace: Trace | None) -> SimulatedRun:
        spot = SpotConditions(trace=trace, market=market, notice_ns=notice_ns)
        return run_of(table, spot, scheduler=scheduler, seed=1, trials=12)

    calm, rough = run(None), run(made(*(2, 1, 4, 0.5, 3, 1) * 10))
    assert calm.preemptions == 0
    assert rough.preemptions >= (20 if market == "spot" else 10)
    assert outcome(rough) == outcome(calm)
    assert ended(calm) == "trials"


# Deadlines


def in_time(
    table: RecordedTable, trace: Trace, seed: int, spare: float, **more: Any
) -> tuple[SimulatedRun, int]:
    """Run one training with a deadline that leaves, on demand alone, a share `spare` of its duration."""
    took = run_of(table, SpotConditions(market="on_demand"), seed=seed, trials=1).clock.elapsed_ns()
    limits = {"seed": seed, "trials": 1, "wall_clock_ns": round(took * (1 + spare))}
    assert ended(run_of(table, SpotConditions(market="on_demand"), **limits)) == "trials"
    start_ns = Random(f"start/{seed}").randrange(trace.length_ns)
    notice_ns = None if seed % 2 else 30 * NS
    spot = SpotConditions(trace=trace, start_ns=start_ns, market="spot_with_fallback", notice_ns=notice_ns)
    return run_of(table, replace(spot, **more), **limits), took


@pytest.mark.parametrize("seed", seeds.first(3, 6))
@pytest.mark.parametrize("spare", [0.01, 0.05, 0.2, 1.0])
def test_fallback_meets_any_deadline_that_on_demand_meets(
    table: RecordedTable, seed: int, spare: float
) -> None:
    for trace in (SHIPPED[seed % len(SHIPPED)], drawn(seed)):
        run, took = in_time(table, trace, seed, spare)
        assert ended(run) == "trials"
        assert run.clock.elapsed_ns() <= took * (1 + spare)


def test_job_with_spare_time_waits_a_limited_time_for_spot(table: RecordedTable) -> None:
    """Spot is available half of the time, by turns. With three times the needed time, the job need not use
    on-demand once its pace is known.
    """

    def on_demand(spot_wait_ns: int) -> float:
        run, _ = in_time(table, made(*(20, 20) * 20), 0, 2.0, spot_wait_ns=spot_wait_ns)
        assert ended(run) == "trials"
        return sum(hours(run, "on_demand").values()) / sum(hours(run, "spot").values())

    assert on_demand(HOUR) < 0.2
    assert on_demand(MINUTE) > 0.5


# Moving between markets


def hours(run: SimulatedRun, market: str) -> dict[int, float]:
    """Return the paid hours of each attempt in this market."""
    rows = [row for row in run.journal.tables.attempts.values() if row.market == market]
    paid = ((row, sum(cost.usd.micro_usd for cost in row.costs.values())) for row in rows)
    return {row.attempt: micro / row.price.micro_usd_per_hour for row, micro in paid if micro}


def test_job_falls_back_to_on_demand_and_returns_to_lasting_spot(table: RecordedTable) -> None:
    trace = Trace("back", ((0, 10 * MINUTE, 1), (10 * MINUTE, 25 * MINUTE, 0), (25 * MINUTE, 900 * HOUR, 1)))
    run = run_of(table, SpotConditions(trace=trace, market="spot_with_fallback", notice_ns=30 * NS), trials=1)
    assert markets(run) == ["spot", "on_demand", "spot"]
    assert run.preemptions == 1
    assert sum(hours(run, "on_demand").values()) == pytest.approx(0.25, abs=0.05)
    assert lost(run) < 0.03 * usd(run)


@pytest.mark.parametrize("seed", range(3))
def test_repeated_preemptions_end_on_demand(table: RecordedTable, seed: int) -> None:
    """Spot machines are preempted every minute, before a step is done or just after one.

    The training ends on demand, which it leaves for spot a few times without getting a machine.
    """
    storm = made(*(0.9, 0.1) * 10)
    alone = run_of(table, SpotConditions(market="on_demand"), seed=seed, trials=1)
    run = run_of(table, SpotConditions(trace=storm, market="spot_with_fallback"), seed=seed, trials=1)
    assert ended(run) == "trials"
    assert outcome(run) == outcome(alone)
    assert markets(run)[-1] == "on_demand"
    assert 3 <= run.preemptions <= 15
    assert lost(run) < 0.1 * usd(run)
    assert usd(run) < 1.25 * usd(alone)


def test_spot_only_job_under_repeated_preemptions_ends_with_its_budget(table: RecordedTable) -> None:
    run = run_of(table, SpotConditions(trace=made(*(0.4, 0.1) * 10)), budget=0.5, trials=1)
    assert ended(run) == "budget_usd"
    assert run.loop.state.steps == 0
    assert run.preemptions > 20
    assert usd(run) <= run.journal.tables.account.limit.usd.micro_usd


# Checkpoints


def test_checkpoint_frequency_follows_save_cost_and_preemption_risk(table: RecordedTable) -> None:
    """Saves are frequent if saving is cheap and machines go away without a notice, and rare on demand."""

    def saves(**more: Any) -> int:
        return len(run_of(table, SpotConditions(**more), trials=1).journal.tables.checkpoints)

    often = saves(trace=made(*(30, 5) * 10))
    assert often > 10
    assert saves(trace=made(*(30, 5) * 10), save_ns=200 * NS) < often
    assert saves(market="on_demand") < often / 2
    assert saves(every_ns=None) == 1


def test_checkpoint_still_being_saved_at_preemption_is_lost(table: RecordedTable) -> None:
    """Without a notice, the job continues from the newest checkpoint that was durable by then."""
    trace = made(30, 5, 10_000)
    quick, slow = (
        run_of(table, SpotConditions(trace=trace, save_ns=save_ns, every_ns=2 * MINUTE), trials=1)
        for save_ns in (0, 4 * MINUTE)
    )
    assert quick.preemptions == slow.preemptions == 1
    assert lost(quick) < lost(slow)
