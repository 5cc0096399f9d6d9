"""Estimators of scikit-learn: trained in parts, in one call, and over the folds of a cross-validation."""

from typing import Any

import numpy
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier

from tuner.training import SpotSafe

inputs, digits = load_digits(return_X_y=True)
x_train, x_valid, y_train, y_valid = train_test_split(inputs / 16, digits, random_state=0)


def train(config: dict[str, Any]) -> None:
    """Train a network in parts. Each step is one epoch."""
    model = MLPClassifier((config["width"],), learning_rate_init=config["learning_rate"])
    with SpotSafe(model=model) as run:
        for _ in run.steps(27):
            model.partial_fit(x_train, y_train, classes=range(10))
            run.report(accuracy=model.score(x_valid, y_valid), loss=model.loss_)


def fit(config: dict[str, Any]) -> float:
    """Train once, and return a number. It is recorded as the objective's metric."""
    model = GaussianNB(var_smoothing=config["smoothing"]).fit(x_train, y_train)
    return model.score(x_valid, y_valid)


def folds(config: dict[str, Any]) -> None:
    """Cross-validate. Each step is one fold, and the metric is the mean of the folds so far."""
    scores: list[float] = []
    splits = list(StratifiedKFold(5).split(inputs, digits))
    with SpotSafe(scores=scores) as run:
        for fold in run.steps(5):
            rows, held_out = splits[fold]
            model = SGDClassifier(alpha=config["alpha"], random_state=0).fit(inputs[rows], digits[rows])
            scores.append(model.score(inputs[held_out], digits[held_out]))
            run.report(accuracy=numpy.mean(scores))
