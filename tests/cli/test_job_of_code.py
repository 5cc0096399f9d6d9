"""`tuner submit MODULE:FUNCTION`: jobs from Ray Tune scripts and Optuna objectives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner

RAY = [
    "--space",
    "tests.frameworks.with_ray_tune:SPACE",
    "--metric",
    "loss",
    "--mode",
    "min",
    "--usd",
    "0.01",
]
OBJECTIVE = ["tests.frameworks.with_optuna:objective", "--kind", "optuna", "--mode", "min", "--usd", "0.01"]
DIGITS = "trainables.digits_mlp:train"


def test_param_space_of_ray_tune_becomes_the_job(tuner: Tuner, rest: TestClient) -> None:
    result = tuner(
        "submit", DIGITS, *RAY, "--trials", "9", "--wall-clock", "5m", "--max-steps", "4", "--json"
    )
    assert result.exit_code == 0, result.stderr
    job = rest.get(f"/v1/jobs/{json.loads(result.stdout)['id']}").json()
    assert job["search_space"] == {
        "rate": {"type": "float", "low": 0.0001, "high": 0.1, "log": True},
        "dropout": {"type": "float", "low": 0.0, "high": 0.5, "log": False, "step": 0.05},
        "batch": {"type": "int", "low": 16, "high": 240, "log": False, "step": 16},
        "layers": {"type": "int", "low": 1, "high": 3, "log": False},
        "width": {"type": "int", "low": 16, "high": 256, "log": True},
        "model.activation": {"type": "categorical", "choices": ["relu", "gelu"]},
        "model.norm": {"type": "categorical", "choices": [True, False]},
    }
    assert job["constants"] == {"model.depth": 3, "data": {"folder": "/data", "shuffle": True}, "seed": 7}
    assert (job["name"], job["trainable"], job["kind"]) == ("trainables.digits_mlp.train", DIGITS, "ray_tune")
    assert job["objective"] == {"metric": "loss", "mode": "min", "target": None}
    assert (job["budget"]["usd"], job["budget"]["trials"], job["budget"]["wall_clock"]) == (0.01, 9, 300)
    assert job["fidelity"]["max"] == 4


def test_objective_becomes_the_job(tuner: Tuner) -> None:
    result = tuner("submit", *OBJECTIVE, "--print")
    assert result.exit_code == 0, result.stderr
    job = yaml.safe_load(result.stdout)
    assert (job["kind"], job["objective"]) == ("optuna", {"metric": "value", "mode": "min"})
    assert job["search_space"]["width_2"] == {
        "type": "int",
        "low": 8,
        "high": 64,
        "step": 8,
        "when": {"layers": [3]},
    }
    assert "recording the search space" in result.stderr


def test_printed_job_file_can_be_submitted(tuner: Tuner, tmp_path: Path, rest: TestClient) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(tuner("submit", DIGITS, *RAY, "--print").stdout)
    job = json.loads(tuner("submit", str(file), "--json").stdout)
    assert job["search_space"]["dropout"]["step"] == 0.05


def test_job_file_of_an_objective_needs_no_search_space(tuner: Tuner, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    sent = fakes.body(kind="optuna", trainable="tests.frameworks.with_optuna:one_value")
    del sent["search_space"]
    file.write_text(yaml.safe_dump(sent))
    job = yaml.safe_load(tuner("submit", str(file), "--usd", "0.5", "--print").stdout)
    assert job["search_space"]["y"] == {"type": "float", "low": 0.0, "high": 1.0, "step": 0.25}
    assert job["budget"]["usd"] == 0.5


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([DIGITS], "--space MODULE:NAME"),
        ([DIGITS, *RAY[:2], "--mode", "min", "--usd", "1"], "name the metric"),
        ([DIGITS, *RAY[:4], "--usd", "1"], "max or min"),
        ([DIGITS, *RAY[:6]], "give a budget"),
        ([DIGITS, "--kind", "keras"], "must be optuna"),
        ([*OBJECTIVE, "--space", "a:b"], "its own search space"),
    ],
)
def test_missing_option_is_wrong_usage(tuner: Tuner, words: list[str], text: str) -> None:
    result = tuner("submit", *words)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("space", ["nowhere.at_all:SPACE", "tests.frameworks.with_ray_tune:NOTHING", "SPACE"])
def test_space_that_cannot_be_imported_is_refused(tuner: Tuner, space: str) -> None:
    result = tuner("submit", DIGITS, "--space", space, *RAY[2:])
    assert result.exit_code == 1
    assert "not_importable: " in result.stderr


def test_conversion_does_not_import_ray() -> None:
    code = "import sys, tuner.cli.ray_space, tuner.cli.job_of_code; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
