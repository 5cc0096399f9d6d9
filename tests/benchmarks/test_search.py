"""The search benchmark measures regret and money as it claims, and repeats its results for the same seed."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.tune.schedulers import MedianStoppingRule, TrialScheduler

from benchmarks.search import make_tables, spaces, statistics, surrogate
from benchmarks.search.arena import Arena, Decision, Problem, Resume, Start, spent
from benchmarks.search.methods import METHODS
from benchmarks.search.methods.halving import rungs
from benchmarks.search.methods.ray import METRIC, STEP, Trial
from benchmarks.search.methods.simple import FixedEpochs, MedianStopping
from benchmarks.search.plot import plot
from benchmarks.search.report import report
from benchmarks.search.runner import Result, Task, compete, read, run_all
from benchmarks.search.tables import Array, Table, regrets_of, with_noise
from tests.simulation.made_tables import written
from tests.strategies import examples
from tuner.domain.time import NS
from tuner.simulator.table_file import load_table

IN_ARENA = [name for name, method in METHODS.items() if method.make and not method.peers]


def made(rows: int = 60, steps: int = 9, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    unit = rng.random((rows, 2))
    ends = 1 - ((unit - 0.3) ** 2).sum(axis=1)
    metric = ends[:, None] - rng.random((rows, 1)) / np.arange(1, steps + 1)
    return Table("made_table", unit, metric, rng.uniform(0.5, 2, (rows, steps)))


class Anything:
    """A method that decides at random and resumes the trials it paused."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.paused: list[int] = []

    def next(self, may_start: bool) -> Start | Resume | None:
        if self.paused and self.rng.random() < 0.5:
            return Resume(self.paused.pop())
        return Start(self.rng.random(2)) if may_start and self.rng.random() < 0.7 else None

    def started(self, trial: int, point: Array) -> None:
        pass

    def report(self, trial: int, step: int, value: float) -> Decision:
        decision = Decision(int(self.rng.integers(1, 4)))
        if decision is Decision.PAUSE and step < 9:
            self.paused.append(trial)
        return decision


@given(st.integers(0, 1000), st.floats(0.1, 100), st.integers(1, 8), st.floats(0, 5))
@examples(50)
def test_busy_and_idle_worker_time_add_up_to_exactly_the_budget(
    seed: int, budget: float, workers: int, startup: float
) -> None:
    table = made()
    run = Arena(table, Anything(seed), budget=budget, workers=workers, startup=startup).run()
    assert run.busy_s + run.idle_s == pytest.approx(budget * table.full_s)
    assert run.busy_s >= 0
    assert run.idle_s >= 0
    assert all(0 < money <= budget * (1 + 1e-9) for money, _ in spent(table, run, workers))
    assert run.trials <= table.configs


class Once:
    """A method with a single trial, which is paused after its first step if `pause`."""

    def __init__(self, pause: bool) -> None:
        self.pause = pause
        self.orders: list[Start | Resume] = [Start(np.zeros(1))]

    def next(self, may_start: bool) -> Start | Resume | None:
        return self.orders.pop() if self.orders else None

    def started(self, trial: int, point: Array) -> None:
        pass

    def report(self, trial: int, step: int, value: float) -> Decision:
        if not self.pause or step > 1:
            return Decision.CONTINUE
        self.orders.append(Resume(trial))
        return Decision.PAUSE


@pytest.mark.parametrize(("pause", "times"), [(False, [1.5, 2.5, 3.5]), (True, [1.5, 3.0, 4.0])])
def test_starting_and_resuming_take_half_a_step_each(pause: bool, times: list[float]) -> None:
    table = Table("one", np.zeros((1, 1)), np.array([[1.0, 2.0, 3.0]]), np.ones((1, 3)))
    run = Arena(table, Once(pause), budget=4, workers=2, startup=0.5).run()
    assert run.curve == list(zip(times, [1.0, 2.0, 3.0], strict=True))
    assert run.busy_s == times[-1]
    assert run.idle_s == 2 * 6 - times[-1]
    assert spent(table, run, workers=2)[0] == (1.0, 1.0)


def test_regret_is_0_at_the_best_and_1_at_the_median_row() -> None:
    metric = np.array([[0.1, 0.5], [0.9, 0.7], [0.2, 0.3], [0.6, 0.6], [0.4, 0.2]])
    table = Table("five", np.zeros((5, 1)), metric, np.ones((5, 2)))
    assert (table.best, table.median, table.worst) == (0.9, 0.5, 0.3)
    assert table.normalised_regret(0.8) == pytest.approx(0.25)
    curve = regrets_of(table, [(0.5, 0.2), (1.0, 0.7), (3.0, 0.9)])
    assert curve == [(0.0, pytest.approx(1.5)), (1.0, pytest.approx(0.5)), (3.0, 0.0)]
    assert statistics.at(curve, [0.9, 1.0, 2.9, 100]).tolist() == pytest.approx([1.5, 0.5, 0.5, 0.0])


def test_regret_with_noise_is_that_of_the_exact_value_where_the_noisy_best_was_found(tmp_path: Path) -> None:
    (tmp_path / "noisy").mkdir()
    noisy_file, noisy = with_noise(written(tmp_path / "made.npz"), 0.05, tmp_path / "noisy")
    exact, seen = Table.load(tmp_path / "made.npz"), Table.load(noisy_file)
    assert noisy.exact is not None
    assert np.array_equal(noisy.exact, exact.metric)
    assert np.array_equal(noisy.metric, seen.metric)
    deviation = (noisy.metric - exact.metric).std() / (exact.best - exact.median)
    assert deviation == pytest.approx(0.05, rel=0.2)
    row, step = np.unravel_index(noisy.metric.argmax(), noisy.metric.shape)
    curve = regrets_of(noisy, [(2.0, float(noisy.metric.max()))])
    assert curve == [
        (0.0, exact.normalised_regret(exact.worst)),
        (2.0, exact.normalised_regret(float(exact.metric[row, step]))),
    ]
    again = Table.read(noisy.write(tmp_path))
    assert regrets_of(again, [(2.0, float(noisy.metric.max()))]) == curve


def test_table_equals_that_of_the_simulator(tmp_path: Path) -> None:
    path = written(tmp_path / "made.npz")
    product, table = load_table(path), Table.load(path)
    assert (table.best, table.median, table.full_s) == (product.best, product.median, product.full_s)
    assert table.normalised_regret(0.3) == product.normalised_regret(0.3)
    assert np.array_equal(Table.read(table.write(tmp_path)).metric, product.metric)


@pytest.mark.parametrize("name", IN_ARENA)
def test_method_improves_on_its_start_and_is_repeatable(name: str) -> None:
    table, task = made(), Task("made_table", name, workers=3, seed=1, budget=8)
    first, second = (compete(table, task) for _ in range(2))
    assert replace(first, seconds=0) == replace(second, seconds=0)
    assert first.curve[-1][1] < first.curve[0][1]
    assert first.trials >= 8


def test_fixed_epochs_train_only_the_best_after_the_first_steps_in_full() -> None:
    table = made()
    policy = FixedEpochs(
        Problem(table.dims, table.steps, workers=2, seed=0, money=12.0 * table.steps), first=2
    )
    first: dict[int, float] = {}
    reached: dict[int, int] = {}
    arena_report = policy.report

    def report(trial: int, step: int, value: float) -> Decision:
        reached[trial] = step
        if step == 2:
            first[trial] = value
        return arena_report(trial, step, value)

    policy.report = report  # type: ignore[method-assign]
    Arena(table, policy, budget=12, workers=2).run()
    in_full = {trial for trial, step in reached.items() if step == table.steps}
    assert in_full == set(sorted(first, key=lambda trial: -first[trial])[: FixedEpochs.TOP])
    assert {step for trial, step in reached.items() if trial not in in_full} == {2}
    assert len(reached) > 3 * FixedEpochs.TOP


def test_median_stopping_decides_like_ray_tune() -> None:
    rng = np.random.default_rng(0)
    mine = MedianStopping(Problem(dims=1, steps=8, workers=1, seed=0))
    rays = MedianStoppingRule(time_attr=STEP, metric=METRIC, mode="max", grace_period=1)
    nothing_waits = SimpleNamespace(get_live_trials=list)
    stopped = 0
    for number in range(30):
        trial, drift = Trial(number), rng.normal()
        mine.started(number, np.zeros(1))
        for step in range(1, 9):
            value = drift + rng.normal()
            theirs = rays.on_trial_result(nothing_waits, trial, {METRIC: value, STEP: step})
            decided = mine.report(number, step, value)
            assert (decided is Decision.STOP) == (theirs == TrialScheduler.STOP)
            if decided is Decision.STOP:
                stopped += 1
                break
    assert 0 < stopped < 30


def test_rungs_end_at_the_last_step() -> None:
    assert rungs(51) == [1, 3, 9, 27, 51]


def made_results() -> list[Result]:
    """Build results in which random search reaches regret 0.5 with 100 and asha with 10."""
    tasks = (Task("made_table", method, 4, seed, 100) for method in ("random", "asha") for seed in range(3))
    reached = {"random": 100.0, "asha": 10.0}
    return [Result(t, [(0.0, 2.0), (reached[t.method], 0.5)], 1, 0.0, 1.0) for t in tasks]


def test_reaching_the_regret_at_a_tenth_of_the_cost_saves_a_factor_of_ten() -> None:
    cells = statistics.by_cell(made_results())
    random, asha = ({"made_table": cells[name, "made_table", 4]} for name in ("random", "asha"))
    assert statistics.saving(asha, random, 100).factor.mean == pytest.approx(10, rel=0.01)
    assert statistics.saving(random, random, 100).factor.mean == pytest.approx(1)
    worse = statistics.difference(
        statistics.regrets(random["made_table"], 50), statistics.regrets(asha["made_table"], 50)
    )
    assert asdict(worse) == {"mean": 1.5, "low": 1.5, "high": 1.5}


def test_results_are_complete_stored_and_reported(tmp_path: Path) -> None:
    paths = [written(tmp_path / "made_small.npz")]
    tasks = [Task("made_small", m, 2, s, 6) for m in ("random", "asha", "ours_asha_random") for s in (0, 1)]
    tasks += [replace(task, noise=0.05) for task in tasks]
    file = tmp_path / "results.jsonl"
    ran = list(run_all(paths, tasks, file, peers_python=None, jobs=1))
    assert {result.task for result in ran} == set(tasks)
    assert read(file) == ran
    assert list(run_all(paths, tasks, file, peers_python=None, jobs=1)) == []
    exact = [result for result in ran if not result.task.noise]
    assert len(exact) == len(tasks) / 2
    text = "\n".join(report(exact, [3, 6], METHODS))
    for task in tasks:
        assert f"| {METHODS[task.method].title} | 2 |" in text
    assert "plot" in plot(ran, METHODS, tmp_path).lower()


def test_report_names_the_tables_on_which_ours_is_worse_than_the_stronger_peer_and_the_worst_run() -> None:
    regrets = {
        ("made_a", "ours"): (0.2, 0.3),
        ("made_a", "asha_kde"): (0.5, 0.5),
        ("made_a", "bohb"): (0.1, 0.1),
        ("made_b", "ours"): (0.1, 0.1),
        ("made_b", "asha_kde"): (0.1, 0.2),
        ("made_b", "bohb"): (0.6, 0.7),
    }
    results = [
        Result(Task(table, method, 4, seed, 20), [(0.0, 1.0), (5.0, regret)], 9, 0.0, 1.0)
        for (table, method), each in regrets.items()
        for seed, regret in enumerate(each)
    ]
    *_, row = report(results, [20, 50], METHODS)  # no run has a budget of 50
    assert row == "| @20 | 2 | 1 | made_a: 0.150 [0.100, 0.200] | 0.30, 0.70 |"


@pytest.mark.parametrize("kind", spaces.MADE)
def test_made_problem_is_repeatable_and_no_quality_is_above_1(kind: spaces.Kind) -> None:
    made, rng = spaces.problem(kind, 0), Random(0)
    drawn = [made.space.sample(rng) for _ in range(3000)]
    qualities = [made.quality(config) for config in drawn]
    assert 0.5 < max(qualities) <= 1
    again = spaces.problem.__wrapped__(kind, 0)  # not the one that `problem` keeps
    assert again is not made
    assert [again.value(config, 9) for config in drawn[:50]] == [
        made.value(config, 9) for config in drawn[:50]
    ]


def test_searches_of_made_problems_improve_with_money_and_are_reported() -> None:
    tasks = [
        spaces.Task(kind, 0, method, budget, 2, 0)
        for kind in spaces.MADE
        for method in spaces.METHODS
        for budget in (2.0, 6.0)
    ]
    results = {task: spaces.regret(task) for task in tasks}
    for kind in spaces.MADE:
        poor, rich = (
            fmean(regret for task, regret in results.items() if (task.kind, task.budget) == (kind, b))
            for b in (2, 6)
        )
        assert 0 < rich < poor
    report_lines = "\n".join(spaces.rows(results, [2.0, 6.0]))
    assert all(report_lines.count(f"| {method} |") == 2 for method in spaces.METHODS)


def write_model(path: Path, inputs: tuple[int, int], weights: Array, constants: Array) -> None:
    """Write a network that answers `x_cont @ weights + constants`, for `inputs` categorical and numeric columns."""
    floats, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x_cont", "weights"], ["product"]),
            onnx.helper.make_node("Add", ["product", "constants"], ["output"]),
        ],
        "linear",
        [
            onnx.helper.make_tensor_value_info("x_cat", whole, [None, inputs[0]]),
            onnx.helper.make_tensor_value_info("x_cont", floats, [None, inputs[1]]),
        ],
        [onnx.helper.make_tensor_value_info("output", floats, [None, len(constants)])],
        [
            onnx.numpy_helper.from_array(weights.astype(np.float32), "weights"),
            onnx.numpy_helper.from_array(constants.astype(np.float32), "constants"),
        ],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def written_surrogate(folder: Path) -> Path:
    """Write a surrogate whose accuracy is half of the share of the data plus a tenth of `eta`, and whose trainings take 27 s."""
    weights, constants = np.zeros((14, 9)), np.zeros(9)
    weights[12, 0], weights[1, 0], constants[6] = 0.5, 0.1, 27
    write_model(folder / "model.onnx", (3, 14), weights, constants)
    codes = {
        "task_id": {number: i for i, number in enumerate(surrogate.DATA_SETS)},
        "booster": {"gblinear": 0, "gbtree": 1, "dart": 2},
        "num.impute.selected.cpo": {"impute.mean": 0, "impute.median": 1, "impute.hist": 2},
    }
    (folder / "encoding.json").write_text(json.dumps(codes))
    return folder


def test_surrogate_answers_for_each_share_of_the_data_and_takes_inactive_numbers_as_0(tmp_path: Path) -> None:
    training, rng = surrogate.XGBoost(written_surrogate(tmp_path), 0, steps=27), Random(0)
    drawn = [training.space.sample(rng) for _ in range(20)]
    assert any("eta" not in config for config in drawn)
    for config in drawn:
        for step in (1, 9, 27):
            accuracy = step / 54 + 0.1 * float(str(config.get("eta", 0.0)))
            assert training.value(config, step) == pytest.approx(accuracy, abs=1e-6)
            assert training.step_ns(config, step) == NS
    seconds, best, middle = training.scale
    assert seconds == 27
    assert 0.5 <= middle < best <= 0.6


def test_searches_of_a_surrogate_find_better_configurations_than_the_median(tmp_path: Path) -> None:
    task = spaces.Task("surrogate", 0, "ours", 8.0, 2, 0, written_surrogate(tmp_path))
    regret = spaces.regret(task)
    assert regret < 0.5
    assert f"| ours | {regret:.3f} " in "\n".join(spaces.rows({task: regret}, [8.0]))


def test_made_tables_have_the_answers_of_the_surrogate_and_the_recorded_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_tables, "LCBENCH", (34539,))
    monkeypatch.setattr(make_tables, "TASKSET", ("patch32",))
    weights = np.zeros((8, 6))
    weights[0, make_tables.TIME], weights[0, make_tables.ACCURACY] = 2, 1  # of the epoch
    weights[2, make_tables.ACCURACY] = 10  # of the learning rate
    write_model(tmp_path / "model.onnx", (1, 8), weights, np.zeros(6))
    (tmp_path / "encoding.json").write_text(json.dumps({"OpenML_task_id": {"34539": 5}}))
    trainings = [
        {
            "hp": dict.fromkeys(make_tables.TASKSET_SCALES, 0.1 * number),
            "valid": {"loss": [number / 10] * 50 + [math.inf]},
        }
        for number in (1, 2, 3)
    ]
    (tmp_path / "FixedTextRNNClassification_imdb_patch32.json").write_text(json.dumps(trainings))
    make_tables.lcbench(tmp_path, tmp_path)
    make_tables.taskset(tmp_path, tmp_path)

    answered = load_table(tmp_path / "lcbench_34539.npz")
    with np.load(tmp_path / "lcbench_34539.npz") as arrays:
        rates = arrays["X"][:, 1]
    assert len(np.unique(rates)) == make_tables.CONFIGS
    epochs = np.arange(2, make_tables.STEPS + 2)
    assert answered.metric == pytest.approx(epochs[None] + 10 * rates[:, None], abs=1e-4)
    assert answered.step_s == pytest.approx(np.full((make_tables.CONFIGS, make_tables.STEPS), 2.0))
    recorded = load_table(tmp_path / "taskset_patch32.npz")
    assert recorded.metric[:, [0, 50]].tolist() == [[-0.1, -2.0], [-0.2, -2.0], [-0.3, -2.0]]
