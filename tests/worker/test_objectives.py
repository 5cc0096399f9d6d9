"""Optuna objectives and nested configurations of Ray Tune, under a real supervisor."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import optuna
import pytest

from tuner.domain.job import config_values
from tuner.training.channel import BeginMessage, Reply, StopTraining
from tuner.worker.objective import NotInSearchSpace, run_objective

MODULE = "tests.frameworks.with_optuna"
CONFIG = {"optimizer": "sgd", "rate": 0.1, "momentum": 0.9, "layers": 2, "width_0": 8, "width_1": 16}


def started(drive: Any, case: str, config: dict[str, Any], **more: Any) -> Any:
    driver = drive(case, MODULE)
    driver.begin(config=config, kind="optuna", metric="value", **more)
    return driver


def channel_of(config: dict[str, Any]) -> Mock:
    begin = BeginMessage("trial_00012", 1, "m:f", config, "", metric="value")
    return Mock(begin=begin, is_used_by_run=False, report=Mock(return_value=Reply(stop=False, save=False)))


def test_reports_of_an_objective_are_steps(drive: Any) -> None:
    driver = started(drive, "objective", CONFIG, target_step=9)
    driver.until_state("ended")
    assert [report["step"] for report in driver.reports] == [1, 2, 3, 4, 5, 6]
    values = [report["metrics"]["value"] for report in driver.reports]
    assert values == sorted(values, reverse=True)
    assert driver.reports[0]["metrics"]["parameters"] == 24
    assert not driver.reports[0]["resumable"]
    assert not any(report["last"] for report in driver.reports)


def test_paused_objective_begins_again(drive: Any) -> None:
    driver = started(drive, "objective", CONFIG, target_step=2)
    driver.until_state("waiting")
    assert driver.end("pause")["saved_step"] in (0, None)
    driver.begin(config=CONFIG, kind="optuna", metric="value", target_step=3)
    driver.until_state("waiting")
    assert [report["step"] for report in driver.reports] == [1, 2, 1, 2, 3]
    assert driver.reports[0]["metrics"] == driver.reports[2]["metrics"]


def test_objective_that_ignores_pruning_is_stopped(drive: Any) -> None:
    driver = started(drive, "ignores_pruning", {"x": 0.5}, target_step=2)
    driver.until_state("waiting")
    driver.end("pause")
    assert len(driver.reports) == 2


@pytest.mark.parametrize("reply", [StopTraining(0), Reply(stop=True, save=True)])
def test_stopped_trial_should_be_pruned(reply: Reply | StopTraining) -> None:
    channel, pruned = channel_of({"x": 0.5}), []
    channel.report.side_effect = [Reply(stop=False, save=False), reply]

    def objective(trial: optuna.Trial) -> float:
        for step in range(9):
            trial.report(trial.suggest_float("x", 0, 1), step)
            pruned.append((trial.number, trial.should_prune()))
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.0

    with pytest.raises(StopTraining):
        run_objective(objective, channel)
    assert pruned == [(12, False), (12, True)]


@pytest.mark.parametrize(
    ("value", "suggest", "distribution"),
    [
        (3.7, lambda trial: trial.suggest_int("x", 1, 9), "IntDistribution("),
        (12, lambda trial: trial.suggest_int("x", 1, 9), "IntDistribution("),
        (4, lambda trial: trial.suggest_int("x", 1, 9, step=2), "IntDistribution("),
        ("4", lambda trial: trial.suggest_int("x", 1, 9), "IntDistribution("),
        (True, lambda trial: trial.suggest_float("x", 0, 1), "FloatDistribution("),
        (1.5, lambda trial: trial.suggest_float("x", 0, 1), "FloatDistribution("),
        (0.25, lambda trial: trial.suggest_float("x", 0, 1, step=0.1), "FloatDistribution("),
        ("c", lambda trial: trial.suggest_categorical("x", ["a", "b"]), "CategoricalDistribution("),
        (1, lambda trial: trial.suggest_categorical("x", [True, False]), "CategoricalDistribution("),
    ],
)
def test_value_outside_of_the_range_of_an_objective_is_refused(
    value: Any, suggest: Callable[[optuna.Trial], float], distribution: str
) -> None:
    with pytest.raises(NotInSearchSpace) as refused:
        run_objective(suggest, channel_of({"x": value}))
    assert all(part in str(refused.value) for part in ("'x'", repr(value), distribution, "search_space"))


def test_value_within_the_range_of_an_objective_has_the_type_of_the_suggestion() -> None:
    suggested: list[Any] = []

    def objective(trial: optuna.Trial) -> float:
        suggested.append(trial.suggest_int("whole", 1, 9, step=2))
        suggested.append(trial.suggest_float("step", 0.0, 0.5, step=0.1))
        suggested.append(trial.suggest_float("step", 0.0, 1.0, step=0.1))  # ignored, as in Optuna
        suggested.append(trial.suggest_categorical("number", [1.0, 2.0]))
        return 0.0

    run_objective(objective, channel_of({"whole": 3.0, "step": 0.3, "number": 1}))
    assert [repr(value) for value in suggested] == ["3", "0.3", "0.3", "1.0"]


def test_parameter_of_two_kinds_is_refused_as_in_optuna() -> None:
    def objective(trial: optuna.Trial) -> float:
        return trial.suggest_float("x", 0, 9) + trial.suggest_int("x", 0, 9)

    with pytest.raises(ValueError, match="different distribution kind"):
        run_objective(objective, channel_of({"x": 3.7}))


def test_returned_value_is_the_only_step(drive: Any) -> None:
    driver = started(drive, "one_value", {"x": 0.5, "y": 0.25, "z": 0.25}, target_step=9)
    driver.until_state("ended")
    assert [(report["step"], report["metrics"]) for report in driver.reports] == [(1, {"value": 1.0})]
    assert driver.reports[0]["last"]


def test_objective_that_prunes_itself_ends_with_its_steps(drive: Any) -> None:
    driver = started(drive, "prunes_itself", {"x": 0.25}, target_step=9)
    driver.until_state("ended")
    assert [report["metrics"]["value"] for report in driver.reports] == [0.25, 0.5]


def test_trial_is_one_of_optuna(drive: Any) -> None:
    driver = started(drive, "facts", {"choice": True, "whole": 2, "n": 3}, target_step=9)
    driver.until_state("ended")
    assert driver.reports[0]["metrics"] == {"value": 1.0}


def test_objective_with_spot_safe_that_is_promoted_twice_equals_an_uninterrupted_one(drive: Any) -> None:
    whole = started(drive, "with_spot_safe", {"rate": 0.01}, target_step=6, seed=1)
    whole.until_state("waiting")
    whole.end("stop")
    driver = drive("with_spot_safe", MODULE, storage=f"{whole.storage}-parts")
    driver.promoted_twice(6, config={"rate": 0.01}, kind="optuna", metric="value", seed=1)
    assert [report["step"] for report in driver.reports] == [1, 2, 3, 4, 5, 6]
    assert [driver_report["metrics"] for driver_report in driver.reports] == [
        whole_report["metrics"] for whole_report in whole.reports
    ]


@pytest.mark.parametrize(
    ("case", "config", "message"),
    [
        ("objective", {"rate": 0.1}, "the job's search space has no parameter 'optimizer'"),
        ("several_values", {"x": 1.0}, "returned several values"),
        ("not_a_number", {"x": 1.0}, "the objective's value is '1.0'"),
    ],
)
def test_forbidden_calls_of_an_objective_are_named(
    drive: Any, case: str, config: dict[str, Any], message: str
) -> None:
    error = started(drive, case, config, target_step=9).until_state("failed")["error"]
    assert message in error["message"]


def test_objective_without_its_kind_names_the_fix(drive: Any) -> None:
    driver = drive("objective", MODULE)
    driver.begin(config=CONFIG, target_step=9)
    assert "kind: optuna" in driver.until_state("failed")["error"]["message"]


def test_nested_values_reach_a_function_of_ray_tune(drive: Any) -> None:
    flat = {"rate": 0.1, "model.activation": "relu", "model.norm": True}
    driver = drive("train", "tests.frameworks.with_ray_tune")
    driver.begin(config=config_values(flat, {"model.depth": 3}, "ray_tune"), target_step=9, kind="ray_tune")
    driver.until_state("ended")
    assert [report["step"] for report in driver.reports] == [1, 2, 3, 4]
    assert driver.reports[0]["metrics"]["loss"] == pytest.approx(0.3)
