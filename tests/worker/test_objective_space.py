"""Record the search space of Optuna objectives, which run without a study."""

import time
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import HealthCheck, given

from tests.frameworks import with_optuna
from tests.strategies import examples, spaces
from tuner.domain.space import Categorical, Config, Float, Int, Space, SpaceRefused
from tuner.training.channel import StopTraining
from tuner.worker.objective_space import recorded_space

SGD = ("sgd",)


def suggesting(space: Space) -> Callable[[optuna.Trial], float]:
    """Return an objective that suggests the active parameters of a space."""

    def objective(trial: optuna.Trial) -> float:
        config: Config = {}
        for name in space.order:
            parameter = space.parameters[name]
            if space.active(name, config):
                match parameter:
                    case Float(low, high, log):
                        config[name] = trial.suggest_float(name, low, high, log=log, step=parameter.step)
                    case Int(low, high, log):
                        config[name] = trial.suggest_int(name, low, high, log=log, step=parameter.step or 1)
                    case Categorical(choices):
                        config[name] = trial.suggest_categorical(name, choices)  # type: ignore[type-var]
        return 0.0

    return objective


@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(spaces())
def test_recorded_space_has_the_configurations_of_the_objective(space: Space) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Optuna lowers `high` to the last value of a step
        recorded = recorded_space(suggesting(space))
    assert recorded.faults() == []
    for seed in range(20):
        assert recorded.contains(space.sample(Random(seed)))
        assert space.contains(recorded.sample(Random(seed)))


def test_choices_of_numpy_become_plain_numbers() -> None:
    """Otherwise the job file, which is YAML, could not be written."""

    def objective(trial: Any) -> float:
        return float(
            trial.suggest_categorical("rate", [np.float64(0.5), np.float64(0.1), np.str_("auto")]) == "auto"
        )

    choices = recorded_space(objective).parameters["rate"].choices  # type: ignore[union-attr]
    assert [type(choice) for choice in choices] == [float, float, str]


def test_conditional_suggestions_get_conditions() -> None:
    assert recorded_space(with_optuna.objective).parameters == {
        "optimizer": Categorical(("sgd", "adamw")),
        "rate": Float(1e-4, 1.0, log=True),
        "momentum": Float(0.0, 0.9, when={"optimizer": SGD}, step=0.1),
        "layers": Int(1, 3),
        "width_0": Int(8, 64, step=8),
        "width_1": Int(8, 64, when={"layers": (2, 3)}, step=8),
        "width_2": Int(8, 64, when={"layers": (3,)}, step=8),
    }


def test_suggestion_that_needs_two_values_at_once_gets_both_conditions() -> None:
    def objective(trial: optuna.Trial) -> float:
        a, b = (trial.suggest_categorical(name, [False, True]) for name in "ab")
        return trial.suggest_float("c", 0.0, 1.0) if a and b else 0.0

    assert recorded_space(objective).parameters["c"].when == {"a": (True,), "b": (True,)}


def test_deprecated_suggestions_are_recorded() -> None:
    assert recorded_space(with_optuna.one_value).parameters == {
        "x": Float(-1.0, 1.0),
        "y": Float(0.0, 1.0, step=0.25),
        "z": Float(0.1, 1.0, log=True),
    }


def test_spot_safe_ends_a_run_at_its_first_report() -> None:
    assert recorded_space(with_optuna.with_spot_safe).parameters == {"rate": Float(1e-3, 1e-1, log=True)}


def test_stopped_run_of_an_objective_is_recorded() -> None:
    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("x", 0.0, 1.0)
        raise StopTraining(0)

    assert recorded_space(objective).parameters == {"x": Float(0.0, 1.0)}


def raises(trial: Any) -> float:
    trial.suggest_float("x", 0.0, 1.0)
    raise FileNotFoundError("data.csv")


def exits(trial: Any) -> float:
    trial.suggest_float("x", 0.0, 1.0)
    raise SystemExit("no data")


def on_a_threshold(trial: Any) -> float:
    return float(trial.suggest_float("y", 0, 1) if trial.suggest_float("x", 0, 1) > 0.5 else 0.0)


def on_either(trial: Any) -> float:
    a, b = (trial.suggest_categorical(name, [False, True]) for name in "ab")
    return float(trial.suggest_float("c", 0.0, 1.0) if a or b else 0.0)


def with_a_changing_range(trial: Any) -> float:
    return float(trial.suggest_int("b", 0, trial.suggest_int("a", 1, 5)))


def with_tuples(trial: Any) -> float:
    return float(sum(trial.suggest_categorical("layers", [(1, 2), (3,)])))


def with_very_many_conditions(trial: Any) -> float:
    chosen = [trial.suggest_categorical(f"use_{n}", [True, False]) for n in range(9)]
    return float(sum(trial.suggest_float(f"x_{n}", 0, 1) for n, used in enumerate(chosen) if used))


def slow(trial: Any) -> float:
    trial.suggest_float("x", 0.0, 1.0)
    time.sleep(60)
    return 0.0


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
@pytest.mark.parametrize(
    ("objective", "code", "text"),
    [
        (raises, "objective_raised", "FileNotFoundError: data.csv with {'x': 0.0}"),
        (exits, "objective_raised", "SystemExit: no data with {'x': 0.0}"),
        (on_a_threshold, "condition", "'y'"),
        (on_either, "condition", "'c'"),
        (with_a_changing_range, "changing_range", "'b'"),
        (with_tuples, "choice", "(1, 2)"),
        (with_very_many_conditions, "too_many_conditions", "200 runs"),
        (slow, "too_slow", "0 runs"),
        (lambda trial: 0.0, "no_parameters", "suggests no parameters"),
    ],
)
def test_unrecordable_objective_asks_for_a_search_space(objective: Any, code: str, text: str) -> None:
    with pytest.raises(SpaceRefused) as refused:
        recorded_space(objective, limit_s=0.5 if code == "too_slow" else 60)
    assert refused.value.code == code
    assert text in refused.value.detail
    assert "search_space" in refused.value.detail or code == "choice"
