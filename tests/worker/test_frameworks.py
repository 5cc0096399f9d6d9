"""Trainings with transformers, Lightning, XGBoost and LightGBM, under a real supervisor."""

from typing import Any

import pytest

METRICS = {
    ("with_transformers", "train"): "eval_loss",
    ("with_transformers", "train_by_steps"): "eval_loss",
    ("with_lightning", "train"): "val_loss",
    ("with_lightning", "train_until_plateau"): "val_loss",
    ("with_boosting", "xgboost"): "valid-logloss",
    ("with_boosting", "lightgbm"): "valid-binary_logloss",
}


# Importing transformers or Lightning takes 15 s of processor time.
CASES = [
    pytest.param(*case, marks=[] if case[0] == "with_boosting" else pytest.mark.extended) for case in METRICS
]


@pytest.mark.parametrize(("module", "case"), CASES)
def test_interrupted_training_equals_an_uninterrupted_one(drive: Any, module: str, case: str) -> None:
    metric = METRICS[module, case]
    whole = drive(case, f"tests.frameworks.{module}")
    whole.begin(until=6, config={})
    whole.until_state("waiting")
    parts = drive(case, f"tests.frameworks.{module}", storage=str(whole.storage) + "-parts")
    parts.begin(until=2, config={})
    parts.until_state("waiting")
    parts.order("pause")
    assert parts.until_state("paused")["saved_step"] == 2
    parts.begin(until=6, config={}, restore=2)
    parts.until_state("waiting")
    assert [report["step"] for report in parts.reports] == [1, 2, 3, 4, 5, 6]
    expected = [report["metrics"][metric] for report in whole.reports]
    assert expected[5] < expected[0]
    # LightGBM adds up the restored trees in another order.
    tolerance = 1e-12 if case == "lightgbm" else 0
    assert [report["metrics"][metric] for report in parts.reports] == pytest.approx(
        expected, rel=tolerance, abs=0
    )


@pytest.mark.parametrize(
    ("module", "case", "message"),
    [
        pytest.param(
            "with_lightning", "train_with_wrong_metric", "logged are val_loss", marks=pytest.mark.extended
        ),
        ("with_boosting", "xgboost_with_wrong_metric", "evaluated are valid-logloss"),
    ],
)
def test_wrong_metric_name_fails_and_names_the_right_ones(
    drive: Any, module: str, case: str, message: str
) -> None:
    driver = drive(case, f"tests.frameworks.{module}")
    driver.begin(until=2, config={})
    assert message in driver.until_state("failed")["error"]["message"]


def test_training_that_ends_by_itself_saves_its_last_step(drive: Any) -> None:
    driver = drive("xgboost_ends_early", "tests.frameworks.with_boosting")
    driver.begin(until=9, config={})
    assert driver.until_state("ended")["saved_step"] == 2
