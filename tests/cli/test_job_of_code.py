"""`tuner submit MODULE:FUNCTION`: jobs from Ray Tune scripts and Optuna objectives."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tuner.cli.job_yaml import JobYaml, job_file

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
LOOKS_LIKE_NUMBERS = {"x": {"grid_search": ["1e-3", "on", "1"]}, "1e5": np.float64(1e-5), "y": {"1e5": "1e5"}}
ABSENT = object()


def written(directory: Path, **changes: Any) -> str:
    """Write a job file with these changes, and return its path. An ABSENT field is left out."""
    file = directory / "job.yaml"
    fields = {name: value for name, value in fakes.body(**changes).items() if value is not ABSENT}
    file.write_text(yaml.safe_dump(fields))
    return str(file)


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


@pytest.mark.parametrize(
    "words", [RAY, ["--space", f"{__name__}:LOOKS_LIKE_NUMBERS", *RAY[2:]]], ids=["ray", "text"]
)
def test_printed_job_file_is_the_job(
    tuner: Tuner, tmp_path: Path, rest: TestClient, words: list[str]
) -> None:
    text = tuner("submit", DIGITS, *words, "--print").stdout
    job = yaml.load(text, JobYaml)  # noqa: S506  a SafeLoader
    assert repr(job) == repr(json.loads(tuner("submit", DIGITS, *words, "--print", "--json").stdout))
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert tuner("submit", str(file)).exit_code == 0


# Plain scalars, and their values in the core schema of YAML 1.2.
SCALARS: dict[str, Any] = {
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
    **dict.fromkeys(["~", "null", "Null", "NULL", ""], None),
    **{word: word for word in ("on", "On", "off", "OFF", "yes", "Yes", "no", "NO", "y", "n", "tRUE", "=")},
    **{"10": 10, "-10": -10, "+10": 10, "0": 0, "010": 10, "-010": -10, "08": 8, "0o10": 8, "0x1F": 31},
    **{"0o8": "0o8", "0xG": "0xG", "0x": "0x", ".": ".", "10.0.0.1:80": "10.0.0.1:80"},
    **{"1.5": 1.5, "010.5": 10.5, "1.": 1.0, ".5": 0.5, "-.5": -0.5, "1e5": 1e5, "1E-3": 1e-3, ".5e3": 500.0, "+1.e1": 10.0},
    **{".inf": math.inf, "-.Inf": -math.inf, "e5": "e5", "1e": "1e"},
    **{"22:00": "22:00", "1:30:00.5": "1:30:00.5", "-1:30": "-1:30"},
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_scalar_is_read_as_in_yaml_1_2(text: str, value: Any) -> None:
    read = yaml.load(f"value: {text}", JobYaml)["value"]  # noqa: S506  a SafeLoader
    assert repr(read) == repr(value)
    assert math.isnan(yaml.load(".NaN", JobYaml))  # noqa: S506


@pytest.mark.parametrize("value", [*SCALARS, *SCALARS.values(), "1_000", "0b11", "2026-01-31"])
def test_values_are_written_so_that_they_are_read_again(value: Any) -> None:
    text = job_file({"value": [value], "key": {str(value): 1}})
    assert repr(yaml.load(text, JobYaml)) == repr({"value": [value], "key": {str(value): 1}})  # noqa: S506


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


@pytest.mark.parametrize(
    ("changes", "words", "text"),
    [
        ({"constants": 3}, RAY[:2], "constants must be a mapping in the job file"),
        ({"budget": 5}, ["--usd", "1"], "budget must be a mapping in the job file"),
        (
            {"objectives": [{"metric": "acc"}]},
            ["--mode", "min"],
            "the job has several objectives; change them in",
        ),
    ],
)
def test_option_for_a_part_that_it_cannot_change_is_wrong_usage(
    tuner: Tuner, tmp_path: Path, changes: dict[str, Any], words: list[str], text: str
) -> None:
    result = tuner("submit", written(tmp_path, **changes), *words)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.replace("│", " ").split())


def test_part_without_a_value_is_empty(tuner: Tuner, tmp_path: Path) -> None:
    file = written(tmp_path, constants=None, budget=None)
    job = json.loads(tuner("submit", file, *RAY[:2], "--usd", "1", "--print", "--json").stdout)
    assert (job["constants"]["seed"], job["budget"]) == (7, {"usd": 1.0})


def test_kind_replaces_that_of_a_file_with_a_search_space(tuner: Tuner, tmp_path: Path) -> None:
    result = tuner("submit", written(tmp_path), "--kind", "optuna", "--print", "--json")
    job = json.loads(result.stdout)
    assert (job["kind"], job["search_space"]) == ("optuna", fakes.body()["search_space"])
    assert "recording" not in result.stderr


@pytest.mark.parametrize(("trainable", "text"), [(ABSENT, "/search_space: is required"), (5, "/trainable: ")])
def test_objective_without_its_name_is_refused_by_the_service(
    tuner: Tuner, tmp_path: Path, trainable: object, text: str
) -> None:
    file = written(tmp_path, trainable=trainable, search_space=ABSENT)
    result = tuner("submit", file, "--kind", "optuna")
    assert result.exit_code == 1
    assert text in result.stderr


def test_space_option_replaces_that_of_an_objective_without_running_it(tuner: Tuner, tmp_path: Path) -> None:
    file = written(
        tmp_path, kind="optuna", trainable="tests.frameworks.with_optuna:objective", search_space=ABSENT
    )
    result = tuner("submit", file, *RAY[:2], "--print", "--json")
    assert json.loads(result.stdout)["kind"] == "ray_tune"
    assert "recording" not in result.stderr


def test_plan_records_the_space_of_an_objective(tuner: Tuner, tmp_path: Path) -> None:
    file = written(
        tmp_path, kind="optuna", trainable="tests.frameworks.with_optuna:one_value", search_space=ABSENT
    )
    assert "recording the search space" in tuner("plan", file).stderr
    assert "recording the search space" in tuner("pilot", file).stderr


def test_module_that_exits_is_refused(tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit('no data')")
    monkeypatch.syspath_prepend(tmp_path)
    result = tuner("submit", DIGITS, "--space", "exits_at_import:SPACE", *RAY[2:])
    assert result.exit_code == 1
    assert "\n  not_importable: importing exits_at_import in " in result.stderr
    assert (
        "raised SystemExit: the code ended its process with 'no data' while it was imported" in result.stderr
    )


def test_module_of_a_search_space_gets_no_arguments(
    tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads_arguments.py").write_text(
        "import sys\nSPACE = {'x': {'grid_search': [1, 2]}, 'words': len(sys.argv)}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", ["tuner", "submit", "--space"])
    result = tuner("submit", DIGITS, "--space", "reads_arguments:SPACE", *RAY[2:], "--print", "--json")
    assert json.loads(result.stdout)["constants"] == {"words": 1}


@pytest.mark.parametrize("space", ["nowhere.at_all:SPACE", "tests.frameworks.with_ray_tune:NOTHING", "SPACE"])
def test_space_that_cannot_be_imported_is_refused(tuner: Tuner, space: str) -> None:
    result = tuner("submit", DIGITS, "--space", space, *RAY[2:])
    assert result.exit_code == 1
    assert "not_importable: " in result.stderr


def test_conversion_does_not_import_ray() -> None:
    code = (
        "import sys, tuner.cli.job_of_code\n"
        "from tuner.cli.ray_space import job_of_space\n"
        "job_of_space({'x': {'grid_search': [1, 2]}, 'y': 1})\n"
        "sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_best_configuration_of_a_job_is_tried_first(
    tuner: Tuner, rest: TestClient, done: str, tmp_path: Path
) -> None:
    file = written(tmp_path, start=[{"lr": 0.1, "width": 8}])
    result = tuner("submit", file, "--start", f"best-of:{done}", "--json")
    assert result.exit_code == 0, result.stderr
    best = rest.get(f"/v1/jobs/{done}/best").json()["config"]
    assert json.loads(result.stdout)["start"] == [best, {"lr": 0.1, "width": 8}]
    assert tuner("submit", file, "--start", "best").exit_code == 2
