"""Test whole jobs over recorded tables: budgets hold, the same seed gives the same run, and restarts change no
decision.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.simulation.made_tables import arrays, table, written
from tests.simulation.test_traces import COUNTS, count
from tests.simulation.test_traces import file as trace_file
from tuner.cli.main import app
from tuner.domain.errors import BadFile, Invalid
from tuner.domain.job import Algorithm, SamplerName, SchedulerName
from tuner.domain.time import NS
from tuner.service.simulation import Request, Result, simulate
from tuner.simulator.invariants import Invariants
from tuner.simulator.recorded import RecordedTable
from tuner.simulator.table_file import load_table
from tuner.simulator.table_run import table_run
from tuner.simulator.world import Faults, SimulatedRun

ALL = {
    "crash_rate": 0.02,
    "loss_rate": 0.1,
    "repeat_rate": 0.2,
    "restart_rate": 0.02,
    "clock_jump_rate": 0.05,
}
SCHEDULERS: list[SchedulerName] = ["asha", "asha_stopping", "none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tables")
    written(found / "made.npz", arrays(rows=120))
    trace_file(
        found,
        COUNTS,
        count(0, 4),
        count(300, 1),
        count(900, 3),
        count(1500, 0),
        count(1700, 4),
        count(4000, 4),
    )
    return found


def simulated(folder: Path, budget: float = 8, **more: Any) -> Result:
    return simulate(Request(folder / "made.npz", budget, **({"sampler": "random"} | more)))


def run_of(found: RecordedTable, budget: float = 8, **more: Any) -> SimulatedRun:
    algorithm = Algorithm(more.pop("scheduler", "asha"), more.pop("sampler", "random"), more.pop("seed", 0))
    invariants = Invariants()
    run = table_run(
        found, budget_trainings=budget, algorithm=algorithm, watchers=[invariants.recorded], **more
    )
    run.on_turn = lambda: invariants.after_turn(run)
    run.run()
    invariants.at_end(run)
    return run


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("budget", [0.1, 1, 8])
def test_budget_is_used_and_never_exceeded(folder: Path, scheduler: str, budget: float) -> None:
    found = simulated(folder, budget, scheduler=scheduler)
    assert found.overspend_usd == 0
    assert 0.9 * budget <= found.spent <= found.budget == budget
    assert sum(found.bill_usd.values()) == pytest.approx(found.spent_usd)
    assert found.spent_usd == pytest.approx(found.spent, rel=0.01)
    assert found.stop_reason == "budget_usd"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("seed", range(3))
def test_budget_holds_under_all_faults_at_once(folder: Path, scheduler: str, seed: int) -> None:
    preempted = {"preemptions": folder / "trace.csv", "noticeless": seed == 1}
    found = simulated(folder, 30, scheduler=scheduler, seed=seed, **ALL, **preempted)
    assert found.overspend_usd == 0
    assert found.spent >= 0.95 * found.budget
    assert found.preemptions + found.crashes + found.restarts > 3
    assert found.bill_usd["lost"] > 0


def test_best_curve_rises_within_the_spend_and_ends_at_the_best(folder: Path) -> None:
    found = simulated(folder)
    spent, values = [point[0] for point in found.best_curve], [point[1] for point in found.best_curve]
    assert spent == sorted(spent)
    assert values == sorted(set(values))
    assert values[-1] == found.best
    assert 0 < spent[0] <= spent[-1] <= found.spent
    assert found.normalised_regret is not None
    assert found.normalised_regret < 1
    assert set(found.best_config or {}) == {"lr", "width", "momentum"}


def test_budget_of_ten_trainings_completes_ten_equal_trainings(tmp_path: Path) -> None:
    """Without a start-up cost and with one worker, the money for ten trainings of equal rows buys ten, and each
    is completed.
    """
    even = arrays(rows=40)
    even["time"] = even["time"] * 0 + 20.0
    written(tmp_path / "made.npz", even)
    found = simulated(tmp_path, 10.001, workers=1, startup_steps=0, scheduler="none")
    assert (found.steps, found.finished) == (90, True)
    assert found.spent == pytest.approx(10, rel=0.001)
    assert found.simulated_seconds == pytest.approx(10 * 9 * 20, rel=0.001)
    assert found.bill_usd["train"] == pytest.approx(found.spent_usd, rel=0.001)


def test_starting_and_resuming_cost_the_configured_steps(folder: Path) -> None:
    free, dear = simulated(folder, startup_steps=0), simulated(folder, startup_steps=2)
    assert free.bill_usd["setup"] == free.bill_usd["restore"] == 0
    assert dear.steps < free.steps
    begun = dear.bill_usd["setup"] * 9 / 2
    assert begun == pytest.approx(dear.trials, abs=1.5)
    assert dear.resumes > 0
    assert dear.bill_usd["restore"] * 9 / 2 == pytest.approx(dear.resumes, abs=1.5)


def test_trained_time_is_the_sum_of_recorded_step_times(folder: Path) -> None:
    found = load_table(folder / "made.npz")
    run = run_of(found, scheduler="auto")
    for trial in run.loop.state.trials:
        row = found.row(trial.config)
        took = found.step_s[row][: trial.steps].sum() * NS
        assert trial.trained_ns == pytest.approx(took, rel=1e-6, abs=NS / 1000)
    assert any(trial.steps == found.steps for trial in run.loop.state.trials)


def test_large_budget_searches_every_row_of_the_table(folder: Path) -> None:
    found = simulated(folder, 1000, scheduler="none")
    assert (found.trials, found.stop_reason) == (120, "space_exhausted")
    assert found.normalised_regret == 0


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes", "qmc"])
def test_restarted_drivers_and_lost_workers_change_no_decision(tmp_path: Path, sampler: SamplerName) -> None:
    found = table(tmp_path)
    faults = Faults(crash=0.03, repeat=0.2, driver_restart=0.03, clock_jump=0.1, loss=0.2)
    calm = run_of(found, 1000, workers=1, sampler=sampler, scheduler="asha")
    rough = run_of(found, 1000, workers=1, sampler=sampler, scheduler="asha", faults=faults)
    assert rough.restarts > 3
    for run in (calm, rough):
        assert run.loop.end is not None
        assert run.loop.end.reason == "space_exhausted"
    decided = [
        [(t.config, t.steps, t.status, t.value) for t in run.loop.state.trials] for run in (calm, rough)
    ]
    assert decided[0] == decided[1]
    assert [rung.ranked for rung in calm.loop.state.rungs] == [rung.ranked for rung in rough.loop.state.rungs]


def test_absent_workers_cost_time_but_no_money(tmp_path: Path) -> None:
    """Half of the time, no worker exists."""
    found = table(tmp_path, rows=200)
    path = trace_file(tmp_path, COUNTS, *(count(600 * i, 4 * (i % 2)) for i in range(20)))
    written(tmp_path / "made.npz", arrays(rows=200))
    always = simulated(tmp_path, 20)
    half = simulated(tmp_path, 20, preemptions=path)
    assert half.simulated_seconds > 1.6 * always.simulated_seconds
    assert half.spent == pytest.approx(always.spent, rel=0.05)
    assert half.preemptions >= 8
    assert half.resumes > always.resumes
    assert found.full_s > 0


def test_preemption_notice_reduces_lost_spend(tmp_path: Path) -> None:
    written(tmp_path / "made.npz", arrays(rows=200, mean_s=10))
    path = trace_file(tmp_path, COUNTS, *(count(250 * i, 4 - 2 * (i % 2)) for i in range(20)))
    noticed, silent = (
        simulated(tmp_path, 60, preemptions=path, noticeless=noticeless) for noticeless in (False, True)
    )
    assert noticed.preemptions > 5
    assert noticed.bill_usd["lost"] < silent.bill_usd["lost"] / 2


# The trace


def words_for(folder: Path, trace: Path) -> list[str]:
    """Return the arguments of a simulation with all faults that writes this trace."""
    words = ["--table", str(folder / "made.npz"), "--budget-trainings", "15", "--seed", "5", "--json"]
    rates = [word for rate, value in ALL.items() for word in (f"--{rate.replace('_', '-')}", str(value))]
    words += ["--trace", str(trace), "--preemptions", str(folder / "trace.csv"), "--wall-clock", "1h"]
    return ["simulate", *words, "--market", "spot_with_fallback", *rates]


def test_same_seed_writes_identical_trace_in_another_process(folder: Path) -> None:
    """The other process hashes strings with another seed."""
    here, there = folder / "here.jsonl", folder / "there.jsonl"
    printed = CliRunner().invoke(app, words_for(folder, here))
    assert printed.exit_code == 0, printed.output
    done = subprocess.run(
        [sys.executable, "-m", "tuner.cli.main", *words_for(folder, there)],
        env={
            "PYTHONHASHSEED": "1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed.stdout
    first = here.read_bytes()
    assert first == there.read_bytes()
    assert first.count(b'"$":"Reported"') > 20
    assert first.count(b'"entry":"post"') > 20


def test_other_seed_writes_another_trace(folder: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        simulated(folder, 2, seed=seed, trace=tmp_path / f"{seed}.jsonl")
    assert (tmp_path / "1.jsonl").read_bytes() != (tmp_path / "2.jsonl").read_bytes()


# Errors


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"budget_trainings": 0}, "/budget_trainings"),
        ({"budget_trainings": -1}, "/budget_trainings"),
        ({"budget_trainings": float("nan")}, "/budget_trainings"),
        ({"budget_trainings": float("inf")}, "/budget_trainings"),
        ({"budget_trainings": 1e-9}, "/budget_trainings"),
        ({"workers": 0}, "/workers"),
        ({"seed": 2**63}, "/seed"),
        ({"startup_steps": -1}, "/startup_steps"),
        ({"startup_steps": float("nan")}, "/startup_steps"),
        ({"scheduler": "best"}, "/scheduler"),
        ({"sampler": "worst"}, "/sampler"),
        ({"crash_rate": 1.0}, "/crash_rate"),
        ({"loss_rate": float("nan")}, "/loss_rate"),
        ({"trace_id": "a"}, "/trace_id"),
        ({"market": "spot"}, "/market"),
        ({"beside": True}, "/beside"),
        ({"preemptions": "bamboo", "market": "cheap"}, "/market"),
        ({"preemptions": "bamboo", "notice_ns": -1}, "/notice"),
        ({"preemptions": "bamboo", "notice_ns": NS, "noticeless": True}, "/notice"),
        ({"preemptions": "bamboo", "spot_saving": 1.0}, "/spot_saving"),
        ({"preemptions": "bamboo", "spot_saving": float("nan")}, "/spot_saving"),
        ({"preemptions": "bamboo", "spot_wait_ns": 0}, "/spot_wait"),
        ({"preemptions": "bamboo", "save_ns": 10**15}, "/save_time"),
        ({"preemptions": "bamboo", "every_ns": 0}, "/checkpoint_interval"),
        ({"trials": 0}, "/trials"),
        ({"wall_clock_ns": 0}, "/wall_clock"),
        ({"training_ns": 1}, "/training_time"),
    ],
)
def test_invalid_request_is_refused_with_its_pointer(
    folder: Path, changed: dict[str, Any], pointer: str
) -> None:
    request: dict[str, Any] = {"table": folder / "made.npz", "budget_trainings": 1, **changed}
    with pytest.raises(Invalid) as refused:
        simulate(Request(**request))
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


def test_unwritable_trace_path_is_refused(folder: Path) -> None:
    with pytest.raises(BadFile, match="cannot be written"):
        simulated(folder, trace=folder / "no" / "such" / "folder.jsonl")
