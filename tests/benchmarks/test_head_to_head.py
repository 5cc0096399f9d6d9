"""The comparison with peers counts the same cost for each method."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from benchmarks.head_to_head import (
    Result,
    compare_with_simulated,
    cost_ratio,
    curve_of,
    lines,
    report,
    suggested,
    write_table,
)
from benchmarks.metered import STEPS, metered
from tests.worker.driving import Driver
from trainables import digits_mlp
from trainables.digits_mlp import SEARCH_SPACE
from tuner.simulator.table_file import load_table


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_cost_ratio_compares_the_cost_of_the_worse_of_both_results(mode: str, sign: int) -> None:
    ours = [(1.0, sign * 0.5), (2.0, sign * 0.9), (3.0, sign * 0.9)]
    theirs = [(1.0, sign * 0.2), (2.5, sign * 0.8), (9.0, sign * 0.99)]  # the last one costs more than ours
    assert cost_ratio(ours, theirs, mode) == 2.0 / 2.5
    assert cost_ratio(theirs, ours, mode) == 2.5 / 2.0


def test_curve_leaves_out_metrics_that_are_not_numbers() -> None:
    rows = [{"cpu_s": 1.0, "value": value} for value in (math.nan, 2.0, math.inf, 1.0, 3.0)]
    assert curve_of(rows, "min") == [(1.0, math.inf), (2.0, 2.0), (3.0, 2.0), (4.0, 1.0), (5.0, 1.0)]


def test_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert lines(log) == []
    log.write_text('{"cpu_s": 1.0}\n{"cpu_s": 2.0')
    assert lines(log) == [{"cpu_s": 1.0}]


def test_suggested_configuration_has_only_active_parameters() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    configs = [suggested(study.ask(), SEARCH_SPACE) for _ in range(20)]
    assert {("momentum" in config) == (config["optimizer"] == "sgd") for config in configs} == {True}
    assert len({config["optimizer"] for config in configs}) == 2


def test_report_compares_each_seed_with_the_peer_of_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    def result(method: str, seed: int, cost_s: float) -> Result:
        curve = [(cost_s, 0.9), (36.0, 0.9)]
        return Result("digits_mlp", method, seed, 5, curve, 60, 2, {"train": 3.0, "setup": 1.0})

    service = [result("service", seed, 9.0) for seed in range(3)]
    report([*service, *(result("ray_optuna", seed, 18.0) for seed in range(2))], usd_per_hour=0.1)
    lines = capsys.readouterr().out.splitlines()
    assert "### digits_mlp, 5 trainings, 3 seeds" in lines
    (row,) = [line for line in lines if line.startswith("| ray_optuna")]
    assert row.endswith("| 0.50 (0.50 to 0.50) |")
    assert "The service's money by kind: setup 25%, train 75%." in lines


def test_trainings_to_the_last_step_become_a_table_that_replays_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    configs = [suggested(study.ask(), SEARCH_SPACE) for _ in range(20)]
    reports = [
        {"config": config, "step": step, "value": math.nan if number == 0 else number / step, "cpu_s": 1.0}
        for number, config in enumerate(configs)
        for step in range(1, STEPS + (number < 19))
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in reports))
    path = tmp_path / "digits_mlp.npz"
    assert write_table(digits_mlp, [log, log], path) == 19, (
        "the last one was stopped, and repetitions do not count"
    )
    table = load_table(path)
    assert table.metric[18, 8] == 2.0
    assert table.metric[0, 0] == np.float32(round(1 / STEPS, 5)), (
        "a metric that is not a number counts as the worst"
    )
    assert {config["optimizer"] for config in table.configs} == {0, 1}
    bill = {"setup": 40.0, "train": 120.0}
    real = Result("digits_mlp", "service", 0, 5, [(60.0, 18.0)], 1, 10, bill, start_usd=20.0)
    compare_with_simulated([real], path, 19)
    assert "| digits_mlp | 19 | 5 | 1 | 18.000 (18.000 to 18.000) | " in capsys.readouterr().out


@pytest.mark.extended
@pytest.mark.parametrize(
    ("trainable", "config"),
    [
        ("digits_xgboost", {"learning_rate": 0.3}),
        ("char_gpt2", {"learning_rate": 0.01, "heads": 1, "layers": 1, "batch_size": 1, "dropout": 0.2, "weight_decay": 0.0}),
    ],
)  # fmt: skip
def test_trainable_of_the_comparison_resumes_with_the_same_metrics(
    trainable: str, config: dict[str, Any], tmp_path: Path
) -> None:
    given = {"trainable": trainable, "log": str(tmp_path / "resumed.jsonl"), **config}
    driver = Driver(tmp_path, "benchmarks.metered:train")
    try:
        driver.save_at(2, config=given, max_step=STEPS)
        driver.run_to(4, config=given, max_step=STEPS, restore=2)
    finally:
        driver.supervisor.close()
    metered(trainable, tmp_path / "whole.jsonl", config, lambda *_: None)
    resumed, whole = lines(tmp_path / "resumed.jsonl"), lines(tmp_path / "whole.jsonl")
    assert [line["step"] for line in whole] == list(range(1, STEPS + 1))
    assert [line["value"] for line in resumed] == pytest.approx([line["value"] for line in whole[:4]])
