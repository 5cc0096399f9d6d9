"""Gradient boosting with LightGBM, in a process that has not imported XGBoost: the callback is a different one then.

It is imported at the top, so that the fork server does that once. Each attempt would take a second of processor time for it.
"""

import sys
from typing import Any

import lightgbm
import numpy

from tuner.training.boosting import TunerCallback, tuner_model

# The fork server imports PyTorch in advance for a file that contains its name.
PYTORCH = "tor" + "ch"


def data(count: int, seed: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    inputs = numpy.random.default_rng(seed).normal(size=(count, 4))
    return inputs, (inputs.sum(1) > 0).astype(int)


def train(
    config: dict[str, Any],
    metric: str = "valid-binary_logloss",
    *further: Any,
    continuing: tuple[Any, ...] = (),
    rounds: int = 18,
    learning_rate: float = 0.1,
    callback: Any = None,
) -> None:
    callback = callback or TunerCallback(metric, every=2)
    training, valid = (lightgbm.Dataset(*data(count, count)) for count in (200, 100))
    lightgbm.train(
        {
            "objective": "binary",
            "num_leaves": 4,
            "num_threads": 1,
            "verbosity": -1,
            "learning_rate": learning_rate,
        },
        training,
        num_boost_round=rounds,
        valid_sets=[valid],
        valid_names=["valid"],
        callbacks=[*further, *callback.continuing(*continuing)],
        init_model=tuner_model(),
    )
    assert PYTORCH not in sys.modules


def train_with_wrong_metric(config: dict[str, Any]) -> None:
    train(config, metric="valid-auc")


def train_briefly(config: dict[str, Any]) -> None:
    train(config, rounds=8)


def train_folds(config: dict[str, Any]) -> None:
    """Train a model for each of two folds, with a callback for each or with one for both."""
    callback = TunerCallback("valid-binary_logloss", every=2) if config["is_shared"] else None
    for _ in range(2):
        train(config, rounds=8, callback=callback)


def train_with_cv(config: dict[str, Any]) -> None:
    lightgbm.cv(
        {"objective": "binary", "num_threads": 1, "verbosity": -1},
        lightgbm.Dataset(*data(200, 1)),
        num_boost_round=8,
        callbacks=[TunerCallback()],
        init_model=tuner_model(),
    )


def train_with_schedule(config: dict[str, Any]) -> None:
    train(
        config,
        continuing=(lightgbm.reset_parameter(learning_rate=[0.3 * 0.9**count for count in range(18)]),),
    )


def train_until_plateau(config: dict[str, Any]) -> None:
    train(
        config,
        continuing=(lightgbm.early_stopping(7, min_delta=0.11, verbose=False),),
        learning_rate=1.0,
    )
