"""Test whole jobs over recorded tables: budgets hold, the same seed gives the same run, and restarts change no
decision.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.made_tables import arrays, written
from tests.simulation.test_traces import COUNTS, count
from tests.simulation.test_traces import file as trace_file
from tests.simulation.watched import run_watched
from tuner.domain.errors import Invalid
from tuner.domain.job import Algorithm, SchedulerName
from tuner.domain.time import NS
from tuner.service.simulation import SimulationResult, recorded_spot, simulate
from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import table_run
from tuner.simulator.world import Faults, SimulatedRun

ALL = Faults(crash=0.02, loss=0.1, repeat=0.2, driver_restart=0.02, clock_jump=0.05)
SCHEDULERS: list[SchedulerName] = ["asha", "asha_stopping", "none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = tmp_path_factory.mktemp("tables")
    written(tables / "made.npz", arrays(rows=120))
    trace_file(
        tables,
        COUNTS,
        count(0, 4),
        count(300, 1),
        count(900, 3),
        count(1500, 0),
        count(1700, 4),
        count(4000, 4),
    )
    return tables


def simulated(folder: Path, budget: float = 8, **more: Any) -> SimulationResult:
    return simulate(folder / "made.npz", budget, **({"sampler": "random"} | more))


def run_of(recorded: RecordedTable, budget: float = 8, **more: Any) -> SimulatedRun:
    algorithm = Algorithm(more.pop("scheduler", "asha"), more.pop("sampler", "random"), more.pop("seed", 0))
    return run_watched(table_run(recorded, budget_trainings=budget, algorithm=algorithm, **more))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("budget", [0.1, 1, 8])
def test_budget_is_used_and_never_exceeded(folder: Path, scheduler: str, budget: float) -> None:
    simulation = simulated(folder, budget, scheduler=scheduler)
    assert simulation.overspend_usd == 0
    assert 0.9 * budget <= simulation.spent <= simulation.budget == budget
    assert sum(simulation.bill_usd.values()) == pytest.approx(simulation.spent_usd)
    assert simulation.spent_usd == pytest.approx(simulation.spent, rel=0.01)
    assert simulation.stop_reason == "budget_usd"


def test_best_curve_rises_within_the_spend_and_ends_at_the_best(folder: Path) -> None:
    simulation = simulated(folder)
    spent, values = (
        [point[0] for point in simulation.best_curve],
        [point[1] for point in simulation.best_curve],
    )
    assert spent == sorted(spent)
    assert values == sorted(set(values))
    assert values[-1] == simulation.best
    assert 0 < spent[0] <= spent[-1] <= simulation.spent
    assert simulation.normalised_regret is not None
    assert simulation.normalised_regret < 1
    assert set(simulation.best_config or {}) == {"lr", "width", "momentum"}


def test_budget_of_ten_trainings_completes_ten_equal_trainings(tmp_path: Path) -> None:
    """Without a start-up cost and with one worker, the money for ten trainings of equal rows buys ten, and each
    is completed.
    """
    even = arrays(rows=40)
    even["time"] = even["time"] * 0 + 20.0
    written(tmp_path / "made.npz", even)
    simulation = simulated(tmp_path, 10.001, workers=1, startup_steps=0, scheduler="none")
    assert (simulation.steps, simulation.finished) == (90, True)
    assert simulation.spent == pytest.approx(10, rel=0.001)
    assert simulation.simulated_seconds == pytest.approx(10 * 9 * 20, rel=0.001)
    assert simulation.bill_usd["train"] == pytest.approx(simulation.spent_usd, rel=0.001)


def test_starting_and_resuming_cost_the_configured_steps(folder: Path) -> None:
    free, slow_start = simulated(folder, startup_steps=0), simulated(folder, startup_steps=2)
    assert free.bill_usd["setup"] == free.bill_usd["restore"] == 0
    assert slow_start.steps < free.steps
    begun = slow_start.bill_usd["setup"] * 9 / 2
    assert begun == pytest.approx(slow_start.trials, abs=1.5)
    assert slow_start.resumes > 0
    assert slow_start.bill_usd["restore"] * 9 / 2 == pytest.approx(slow_start.resumes, abs=1.5)


def test_trained_time_is_the_sum_of_recorded_step_times(folder: Path) -> None:
    table = load_table(folder / "made.npz")
    run = run_of(table, scheduler="auto")
    for trial in run.loop.state.trials:
        row = table.rows[table.key(trial.config)]
        took = table.step_s[row][: trial.steps].sum() * NS
        assert trial.trained_ns == pytest.approx(took, rel=1e-6, abs=NS / 1000)
    assert any(trial.steps == table.steps for trial in run.loop.state.trials)


def test_large_budget_searches_every_row_of_the_table(folder: Path) -> None:
    simulation = simulated(folder, 1000, scheduler="none")
    assert (simulation.trials, simulation.stop_reason) == (120, "space_exhausted")
    assert simulation.normalised_regret == 0


def with_all_faults(folder: Path, seed: int) -> SimulatedRun:
    """Run a job with all faults on a recorded market. Check the invariants after each turn, and the ledger at the end."""
    spot = recorded_spot(folder / "trace.csv", seed=seed, market="spot_with_fallback")
    return run_of(
        load_table(folder / "made.npz"),
        15,
        seed=seed,
        scheduler="auto",
        spot=spot,
        faults=ALL,
        wall_clock_ns=3600 * NS,
    )


@pytest.mark.parametrize("seed", range(20))
def test_faults_on_a_recorded_market_break_no_invariant(folder: Path, seed: int) -> None:
    assert with_all_faults(folder, seed).journal.tables.reports


def digest(folder: str, seed: int) -> str:
    """Return a digest of all events and ledger entries of a job with all faults on a recorded market."""
    run = with_all_faults(Path(folder), seed)
    assert len(run.journal.tables.reports) > 20
    recorded = [*run.journal.tables.events, *run.journal.tables.entries.values()]
    return hashlib.sha256("\n".join(map(repr, recorded)).encode()).hexdigest()


def test_same_seed_gives_the_same_record_in_another_process(folder: Path) -> None:
    """The other process hashes strings with another seed."""
    program = f"from tests.simulation.test_table_runs import digest; print(digest({str(folder)!r}, 16))"
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert there.returncode == 0, there.stderr
    assert there.stdout.strip() == digest(str(folder), 16) != digest(str(folder), 6)


@pytest.mark.parametrize("budget", [0, -1, float("nan"), 1e-9])
def test_budget_that_buys_no_training_is_refused(folder: Path, budget: float) -> None:
    with pytest.raises(Invalid, match="budget_trainings: pays for less than one second"):
        simulated(folder, budget)
