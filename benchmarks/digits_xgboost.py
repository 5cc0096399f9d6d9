"""Gradient boosted trees for scikit-learn's handwritten digits, with XGBoost. A step is six boosting rounds of ten trees each."""

from typing import Any

import xgboost

from trainables.digits_mlp import data
from tuner.training.boosting import TunerCallback

SEARCH_SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "float", "low": 0.01, "high": 1.0, "log": True},
    "max_depth": {"type": "int", "low": 1, "high": 8},
    "min_child_weight": {"type": "float", "low": 0.1, "high": 10.0, "log": True},
    "subsample": {"type": "float", "low": 0.3, "high": 1.0},
    "colsample_bytree": {"type": "float", "low": 0.1, "high": 1.0},
    "reg_lambda": {"type": "float", "low": 1e-3, "high": 10.0, "log": True},
}
OBJECTIVE = {"metric": "valid-mlogloss", "mode": "min"}
ROUNDS_A_STEP = 6
STEPS = 27


def train(config: dict[str, Any]) -> None:
    """Tune the parameters of the search space. Report the log-loss of the validation images, in nats, after each step."""
    x_train, x_valid, y_train, y_valid = (part.numpy() for part in data())
    valid = xgboost.DMatrix(x_valid, y_valid, nthread=1)
    fixed = {"objective": "multi:softprob", "num_class": 10, "nthread": 1, "seed": 0}
    xgboost.train(
        {**fixed, **config},
        xgboost.DMatrix(x_train, y_train, nthread=1),
        num_boost_round=STEPS * ROUNDS_A_STEP,
        evals=[(valid, "valid")],
        verbose_eval=False,
        callbacks=[TunerCallback("valid-mlogloss", every=ROUNDS_A_STEP)],
    )
