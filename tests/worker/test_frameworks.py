"""Trainings with transformers, Lightning, XGBoost, LightGBM and scikit-learn, under a real supervisor."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.worker.driving import NODE, SECOND
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.cluster.notices.node_board import NodeBoard
from tuner.cluster.notices.notice import Notice
from tuner.domain.time import Instant

pytestmark = pytest.mark.needs("libgomp")  # for LightGBM
METRICS = {
    ("with_transformers", "train"): "eval_loss",
    ("with_transformers", "train_by_steps"): "eval_loss",
    ("with_transformers", "train_with_two_sets"): "eval_other_loss",
    ("with_transformers", "train_with_stream"): "eval_loss",
    ("with_lightning", "train"): "val_loss",
    ("with_lightning", "train_until_plateau"): "val_loss",
    ("with_lightning", "train_with_arguments"): "val_loss",
    ("with_lightning", "train_with_rare_validation"): "val_loss",
    ("with_xgboost", "train"): "valid-logloss",
    ("with_lightgbm", "train"): "valid-binary_logloss",
    ("with_xgboost", "train_with_lightgbm"): "valid-binary_logloss",
    ("with_xgboost", "train_with_schedule"): "valid-logloss",
    ("with_lightgbm", "train_with_schedule"): "valid-binary_logloss",
}


# Importing transformers or Lightning takes 15 s of processor time.
CASES = [
    pytest.param(*case, marks=[] if case[0] in ("with_xgboost", "with_lightgbm") else pytest.mark.extended)
    for case in METRICS
]


@pytest.mark.parametrize(("module", "case"), CASES)
def test_training_that_is_promoted_twice_equals_an_uninterrupted_one(
    drive: Any, module: str, case: str
) -> None:
    metric = METRICS[module, case]
    whole = drive(case, f"tests.frameworks.{module}")
    whole.run_to(6, config={})
    whole.end("finish")
    parts = drive(case, f"tests.frameworks.{module}", storage=str(whole.storage) + "-parts")
    parts.promoted_twice(6, config={})
    assert [report["step"] for report in parts.reports] == [1, 2, 3, 4, 5, 6]
    expected = [report["metrics"][metric] for report in whole.reports]
    assert expected[5] < expected[0]
    # LightGBM adds up the restored trees in another order.
    tolerance = 1e-12 if "lightgbm" in f"{module}.{case}" else 0
    assert [report["metrics"][metric] for report in parts.reports] == pytest.approx(
        expected, rel=tolerance, abs=0
    )


def test_callback_stores_the_files_of_its_directory_for_artifacts(drive: Any, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "trees.txt").write_text("two")
    driver = drive("train", "tests.frameworks.with_xgboost")
    driver.save_at(2, config={"artifacts_dir": str(tmp_path / "figures")})
    stored = TrialArtifacts(str(driver.storage), "default", "job_1", "trial_00000").list()
    assert {name: (artifact.step, artifact.size_bytes) for name, artifact in stored.items()} == {
        "trees.txt": (1, 3)
    }


@pytest.mark.extended
@pytest.mark.parametrize(
    ("case", "metric", "at", "saved_step", "in_step"),
    [
        ("transformers", "eval_loss", 9, 1, True),  # in the second epoch
        ("lightning", "val_loss", 11, 1, True),
        ("lightning", "val_loss", 3, 0, True),  # in the first epoch
        ("lightning_with_rare_validation", "val_loss", 27, 1, True),  # in the second epoch of a step
        ("xgboost", "valid-logloss", 3, 2, False),  # rounds are short, so the step is finished
        ("lightgbm", "valid-binary_logloss", 3, 2, False),
    ],
)
def test_preempted_training_equals_an_uninterrupted_one(
    drive: Any,
    node_board: NodeBoard,
    tmp_path: Path,
    case: str,
    metric: str,
    at: int,
    saved_step: int,
    in_step: bool,
) -> None:
    """A training that warns, and gets a notice in the middle of a step, saves there."""
    config = {"what": "wait", "at": at, "reached": str(tmp_path / "reached"), "gate": str(tmp_path / "gate")}
    driver = drive(case, "tests.worker.framework_cases")
    driver.begin(target_step=3, config=config)
    driver.until(lambda _: Path(config["reached"]).exists())
    node_board.announce(NODE, Notice("gone", Instant(time.time_ns() + 1000 * SECOND), "goes"))
    driver.until(lambda result: result["leaving"])
    Path(config["gate"]).touch()
    try:
        preempted = driver.until_state("preempted")
    finally:
        node_board.withdraw(NODE, "gone")
    if in_step:
        assert preempted["part"], preempted
        assert preempted["part"]["step"] == saved_step
    else:
        assert preempted["saved_step"] == saved_step
    driver.run_to(3, config=config, reported_step=saved_step, restore=None if in_step else saved_step)
    driver.end("finish")
    whole = drive(case, "tests.worker.framework_cases", storage=f"{driver.storage}-whole")
    whole.run_to(3, config=config)
    tolerance = 1e-12 if case == "lightgbm" else 0
    assert [report["metrics"][metric] for report in driver.reports] == pytest.approx(
        [report["metrics"][metric] for report in whole.reports], rel=tolerance, abs=0
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("case", "what"),
    [
        *((case, "fill memory") for case in ("transformers", "lightning", "xgboost", "lightgbm")),
        *((case, "fill memory of the GPU") for case in ("transformers", "lightning")),
    ],
)
def test_training_that_runs_out_of_memory_fails_for_that_reason(drive: Any, case: str, what: str) -> None:
    driver = drive(case, "tests.worker.framework_cases")
    driver.begin(target_step=3, config={"what": what, "at": 3}, memory_limit_bytes=1500 << 20)
    assert driver.until_state("failed")["error"]["kind"] == "memory"


@pytest.mark.parametrize(
    ("module", "case", "message"),
    [
        pytest.param(
            "with_lightning",
            "train_with_wrong_metric",
            "logged metrics are val_loss",
            marks=pytest.mark.extended,
        ),
        ("with_xgboost", "train_with_wrong_metric", "evaluated metrics are valid-logloss"),
        pytest.param(
            "with_lightgbm",
            "train_with_wrong_metric",
            "evaluated metrics are valid-binary_logloss",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_wrong_metric_name_fails_and_names_the_right_ones(
    drive: Any, module: str, case: str, message: str
) -> None:
    driver = drive(case, f"tests.frameworks.{module}")
    driver.begin(target_step=2, config={})
    assert message in driver.until_state("failed")["error"]["message"]


@pytest.mark.extended
def test_trainer_of_the_package_pytorch_lightning_is_refused(drive: Any) -> None:
    driver = drive("lightning_of_the_other_package", "tests.worker.framework_cases")
    driver.begin(target_step=1, config={})
    error = driver.until_state("failed")["error"]
    assert error["type"] == "TypeError"
    assert "of the package pytorch_lightning; import it from lightning.pytorch instead" in error["message"]


@pytest.mark.extended
def test_lightning_checkpoint_that_could_not_be_read_fails_at_its_first_save(drive: Any) -> None:
    driver = drive("train_with_objects", "tests.frameworks.with_lightning")
    driver.run_to(1, config={"weights_only": None})
    error = driver.end("pause", "failed")["error"]
    assert error["type"] == "TypeError"
    assert "objects in 'best' (float64) with" in error["message"]
    driver.promoted_twice(4, config={"weights_only": False})


@pytest.mark.extended
def test_lightning_checkpoint_that_a_variable_makes_readable_is_saved(drive: Any) -> None:
    driver = drive("train_with_objects", "tests.frameworks.with_lightning")
    variables = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    driver.promoted_twice(4, config={"weights_only": None, "variables": variables})


@pytest.mark.extended
def test_metrics_that_a_trainer_adds_to_an_evaluation_are_reported(drive: Any) -> None:
    driver = drive("train_with_more_metrics", "tests.frameworks.with_transformers")
    driver.run_to(1, config={})
    metrics = driver.reports[0]["metrics"]
    assert (metrics["eval_added"], metrics["eval_logged"]) == (1.5, 2.5)
    assert {"eval_loss", "loss"} <= metrics.keys()


@pytest.mark.extended
def test_nested_metrics_of_a_transformers_trainer_are_reported_without_lists(drive: Any) -> None:
    driver = drive("train_with_nested_metrics", "tests.frameworks.with_transformers")
    driver.run_to(1, config={})
    metrics = driver.reports[0]["metrics"]
    assert metrics["eval_report/even/f1-score"] == 0.5
    assert metrics["eval_report/accuracy"] == 0.25
    assert not [name for name in metrics if "confusion" in name]


@pytest.mark.parametrize("is_shared", [True, False], ids=["one callback", "a callback for each"])
@pytest.mark.parametrize("module", ["with_xgboost", "with_lightgbm"])
def test_second_training_of_a_trial_fails_with_advice(drive: Any, module: str, is_shared: bool) -> None:
    driver = drive("train_folds", f"tests.frameworks.{module}")
    driver.begin(target_step=9, config={"is_shared": is_shared})
    error = driver.until_state("failed")["error"]
    assert error["type"] == "SecondTraining"
    assert "make each of them a step" in error["message"]
    assert [report["step"] for report in driver.reports] == [1, 2, 3, 4]


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_cross_validation_of_a_boosting_library_is_refused_with_advice(drive: Any, library: str) -> None:
    driver = drive("train_with_cv", f"tests.frameworks.with_{library}")
    driver.begin(target_step=9, config={})
    error = driver.until_state("failed")["error"]
    assert f"{library}.cv trains one for each fold; call {library}.train" in error["message"]
    assert driver.reports == []


@pytest.mark.extended
@pytest.mark.parametrize(
    "module",
    ["with_lightning", "with_transformers"],
)
def test_training_that_ends_by_itself_saves_its_last_step(drive: Any, module: str) -> None:
    driver = drive("train_briefly", f"tests.frameworks.{module}")
    driver.begin(target_step=9, config={})
    assert driver.until_state("ended")["saved_step"] == 2


@pytest.mark.extended
@pytest.mark.parametrize("is_absolute", [True, False], ids=["absolute", "in a shared directory"])
def test_trials_do_not_mix_checkpoints_in_their_output_dir(
    drive: Any, tmp_path: Path, is_absolute: bool
) -> None:
    others = tmp_path / "out" / "checkpoint-4" / "of_another_trial"
    others.parent.mkdir(parents=True)
    others.touch()
    output_dir = str(tmp_path / "out") if is_absolute else "out"
    config = {"output_dir": output_dir, "ended": str(tmp_path / "ended"), "project": str(tmp_path)}
    driver = drive("transformers_with_output_dir", "tests.worker.framework_cases")
    driver.save_at(1, config=config)
    assert others.exists()
    driver.begin(target_step=9, restore=1, config=config)
    assert driver.until_state("ended")["saved_step"] == 2
    assert Path(config["ended"]).read_text() == config["output_dir"]


@pytest.mark.parametrize("case", ["train_briefly", "train_until_plateau"])
@pytest.mark.parametrize("module", ["with_xgboost", "with_lightgbm"])
def test_training_that_ends_by_itself_ends_at_the_same_step_after_pauses(
    drive: Any, module: str, case: str
) -> None:
    """A training ends because of its number of rounds or because of early stopping, and its last step is saved."""
    whole = drive(case, f"tests.frameworks.{module}")
    whole.begin(target_step=9, config={})
    ended = whole.until_state("ended")
    assert 3 < ended["saved_step"] == whole.reports[-1]["step"] < 9
    parts = drive(case, f"tests.frameworks.{module}", storage=f"{whole.storage}-parts")
    parts.save_at(1, config={})
    parts.run_to(3, restore=1, config={})
    parts.end("pause")
    parts.begin(target_step=9, restore=3, config={})
    assert parts.until_state("ended")["saved_step"] == ended["saved_step"]
    assert [report["step"] for report in parts.reports] == [report["step"] for report in whole.reports]
    metric = METRICS[module, "train"]
    assert [report["metrics"][metric] for report in parts.reports] == pytest.approx(
        [report["metrics"][metric] for report in whole.reports],
        rel=1e-12 if module == "with_lightgbm" else 0,
        abs=0,
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("module", "config"),
    [
        ("with_lightning", {}),
        ("with_transformers", {"stops": "first"}),
        ("with_transformers", {"stops": "last"}),
        ("with_transformers", {"stops": "last", "every": 4}),
    ],
)
def test_early_stopping_ends_a_paused_training_at_the_same_step(
    drive: Any, module: str, config: dict[str, Any]
) -> None:
    entry = f"tests.frameworks.{module}"
    whole = drive("train_until_stopped", entry)
    whole.begin(target_step=9, config=config)
    assert whole.until_state("ended")["saved_step"] == 5
    # The last pause is at the step after which the training ends.
    for pauses in ((2, 4), (5,)):
        parts = drive("train_until_stopped", entry, storage=f"{whole.storage}-{pauses[0]}")
        restore = None
        for step in pauses:
            parts.run_to(step, config=config, restore=restore)
            assert parts.end("pause")["saved_step"] == step
            restore = step
        parts.begin(target_step=9, config=config, restore=restore)
        assert parts.until_state("ended")["saved_step"] == 5
        assert _losses(parts.reports) == _losses(whole.reports)


def _losses(reports: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [
        (report["step"], value)
        for report in reports
        for name, value in report["metrics"].items()
        if name in ("eval_loss", "train_accuracy")
    ]


SKLEARN = "tests.frameworks.with_sklearn"
NETWORK = {"width": 8, "learning_rate": 0.01}


@pytest.mark.parametrize(
    ("case", "config", "steps"),
    [("train", NETWORK, 6), ("folds", {"alpha": 0.001}, 5)],
    ids=["train", "folds"],
)
def test_estimator_that_is_promoted_twice_equals_an_uninterrupted_one(
    drive: Any, case: str, config: dict[str, Any], steps: int
) -> None:
    whole = drive(case, SKLEARN)
    whole.run_to(steps, config=config, seed=3)
    whole.end("finish")
    parts = drive(case, SKLEARN, storage=f"{whole.storage}-parts")
    parts.promoted_twice(steps, config=config, seed=3)
    assert [report["step"] for report in parts.reports] == list(range(1, steps + 1))
    assert [report["metrics"] for report in parts.reports] == [report["metrics"] for report in whole.reports]


def test_estimator_with_a_notice_is_saved_and_continues(drive: Any, node_board: NodeBoard) -> None:
    driver = drive("train", SKLEARN)
    driver.run_to(2, config=NETWORK)  # its steps are too short for a notice to come in the middle of one
    node_board.announce(NODE, Notice("gone", Instant(time.time_ns() + 1000 * SECOND), "goes"))
    try:
        assert driver.until_state("preempted")["saved_step"] == 2
    finally:
        node_board.withdraw(NODE, "gone")
    driver.run_to(3, config=NETWORK, restore=2)
    assert [report["step"] for report in driver.reports] == [1, 2, 3]


@pytest.mark.extended
def test_estimator_that_runs_out_of_memory_fails_for_that_reason(drive: Any) -> None:
    driver = drive("train", SKLEARN)
    driver.begin(target_step=3, config={**NETWORK, "width": 5_000_000}, memory_limit_bytes=1000 << 20)
    assert driver.until_state("failed")["error"]["kind"] == "memory"


def test_returned_number_is_recorded_as_the_objectives_metric(drive: Any) -> None:
    driver = drive("fit", SKLEARN)
    driver.begin(target_step=9, config={"smoothing": 1e-9}, metric="accuracy", mode="max")
    driver.until_state("ended")
    (report,) = driver.reports
    assert report["metrics"].keys() == {"accuracy"}
    assert 0.5 < report["metrics"]["accuracy"] < 1
