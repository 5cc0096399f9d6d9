"""The comparison with peers counts the same cost for each method."""

import math

import optuna
import pytest

from benchmarks.head_to_head import Result, cost_ratio, curve_of, report, suggested
from trainables.digits_mlp import SEARCH_SPACE


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_cost_ratio_compares_the_cost_of_the_worse_of_both_results(mode: str, sign: int) -> None:
    ours = [(1.0, sign * 0.5), (2.0, sign * 0.9), (3.0, sign * 0.9)]
    theirs = [(1.0, sign * 0.2), (2.5, sign * 0.8), (9.0, sign * 0.99)]  # the last one costs more than ours
    assert cost_ratio(ours, theirs, mode) == 2.0 / 2.5
    assert cost_ratio(theirs, ours, mode) == 2.5 / 2.0


def test_curve_leaves_out_metrics_that_are_not_numbers() -> None:
    rows = [{"cpu_s": 1.0, "value": value} for value in (math.nan, 2.0, math.inf, 1.0, 3.0)]
    assert curve_of(rows, "min") == [(1.0, math.inf), (2.0, 2.0), (3.0, 2.0), (4.0, 1.0), (5.0, 1.0)]


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
