"""Gradient boosting with XGBoost and with LightGBM."""

import sys
from typing import Any

import numpy

from tuner.training.boosting import TunerCallback, tuner_model

# The fork server imports PyTorch in advance for a file that contains its name.
PYTORCH = "tor" + "ch"


def data(count: int, seed: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    inputs = numpy.random.default_rng(seed).normal(size=(count, 4))
    return inputs, (inputs.sum(1) > 0).astype(int)


def xgboost(config: dict[str, Any], metric: str = "valid-logloss", rounds: int = 18, *further: Any) -> None:
    import xgboost

    train, valid = xgboost.DMatrix(*data(200, 1)), xgboost.DMatrix(*data(100, 2))
    xgboost.train(
        {"objective": "binary:logistic", "max_depth": 2, "eta": 0.3, "nthread": 1},
        train,
        num_boost_round=rounds,
        evals=[(valid, "valid")],
        verbose_eval=False,
        callbacks=[*further, TunerCallback(metric, every=2, artifacts_dir=config.get("artifacts_dir"))],
    )
    assert PYTORCH not in sys.modules


def xgboost_with_wrong_metric(config: dict[str, Any]) -> None:
    xgboost(config, metric="valid-auc")


def xgboost_ends_early(config: dict[str, Any]) -> None:
    xgboost(config, rounds=4)


def lightgbm(config: dict[str, Any], metric: str = "valid-binary_logloss", *further: Any) -> None:
    import lightgbm

    train, valid = (lightgbm.Dataset(*data(count, count)) for count in (200, 100))
    lightgbm.train(
        {"objective": "binary", "num_leaves": 4, "num_threads": 1, "verbosity": -1},
        train,
        num_boost_round=18,
        valid_sets=[valid],
        valid_names=["valid"],
        callbacks=[*further, TunerCallback(metric, every=2)],
        init_model=tuner_model(),
    )
    assert PYTORCH not in sys.modules


def lightgbm_with_wrong_metric(config: dict[str, Any]) -> None:
    lightgbm(config, metric="valid-auc")
