"""Gradient boosting with XGBoost.

It is imported at the top, so that the fork server does that once. Each attempt would take a second of processor time for it.
"""

import sys
from typing import Any

import numpy
import xgboost

from tuner.training.boosting import TunerCallback

# The fork server imports PyTorch in advance for a file that contains its name.
PYTORCH = "tor" + "ch"


def data(count: int, seed: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    inputs = numpy.random.default_rng(seed).normal(size=(count, 4))
    return inputs, (inputs.sum(1) > 0).astype(int)


def train(
    config: dict[str, Any],
    metric: str = "valid-logloss",
    rounds: int = 18,
    *further: Any,
    eta: float = 0.3,
    callback: Any = None,
) -> None:
    callback = callback or TunerCallback(metric, every=2, artifacts_dir=config.get("artifacts_dir"))
    training, valid = xgboost.DMatrix(*data(200, 1)), xgboost.DMatrix(*data(100, 2))
    xgboost.train(
        {"objective": "binary:logistic", "max_depth": 2, "eta": eta, "nthread": 1},
        training,
        num_boost_round=rounds,
        evals=[(valid, "valid")],
        verbose_eval=False,
        callbacks=[*further, callback],
    )
    assert PYTORCH not in sys.modules


def train_with_wrong_metric(config: dict[str, Any]) -> None:
    train(config, metric="valid-auc")


def train_briefly(config: dict[str, Any]) -> None:
    train(config, rounds=8)


def train_folds(config: dict[str, Any]) -> None:
    """Train a model for each of two folds, with a callback for each or with one for both."""
    callback = TunerCallback("valid-logloss", every=2) if config["is_shared"] else None
    for _ in range(2):
        train(config, rounds=8, callback=callback)


def train_with_cv(config: dict[str, Any]) -> None:
    xgboost.cv(
        {"objective": "binary:logistic", "nthread": 1},
        xgboost.DMatrix(*data(200, 1)),
        num_boost_round=8,
        callbacks=[TunerCallback()],
    )


def train_with_schedule(config: dict[str, Any]) -> None:
    train(config, "valid-logloss", 18, xgboost.callback.LearningRateScheduler(lambda epoch: 0.3 * 0.9**epoch))


def train_until_plateau(config: dict[str, Any]) -> None:
    train(config, "valid-logloss", 18, xgboost.callback.EarlyStopping(rounds=8, min_delta=0.15), eta=2.0)


def train_with_lightgbm(config: dict[str, Any]) -> None:
    """Train with LightGBM in a process that has imported XGBoost, too."""
    from tests.frameworks import with_lightgbm

    with_lightgbm.train(config)
