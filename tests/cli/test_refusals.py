"""What the command line refuses, it says: what is wrong, where, and what to do."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests import fakes
from tests.cli.conftest import Tuner
from tests.cli.test_commands import ASKING
from tuner.cli.main import app


@pytest.mark.parametrize("name", [name for name in ASKING if "JOB" in ASKING[name][0]])
def test_a_job_that_is_not_there_is_said_on_standard_error(tuner: Tuner, name: str) -> None:
    for more in ([], ["--json"]):
        result = tuner(*(word.replace("JOB", "job_0") for word in ASKING[name][0]), *more)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert "There is no such thing" in result.stderr
        assert "'job_0'" in result.stderr


@pytest.mark.parametrize("words", [["watch"], ["pause"], ["resume"], ["cancel"], ["topup", "--usd", "1"]])
def test_nothing_can_be_done_with_a_job_that_is_not_there(tuner: Tuner, words: list[str]) -> None:
    result = tuner(*words, "job_0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'job_0'" in result.stderr


def test_a_conflict_is_said_with_title_and_detail(tuner: Tuner, done: str) -> None:
    result = tuner("pause", done)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "This cannot be done in the present state"
    assert "succeeded cannot be paused" in result.stderr


def test_every_fault_of_a_file_is_said_with_its_place(tuner: Tuner, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(fakes.body(name="a/b", budget={"usd": -1})))
    result = tuner("submit", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "/name: " in result.stderr
    assert "/budget/usd: " in result.stderr


def test_nothing_affordable_names_the_cheapest(tuner: Tuner, done: str) -> None:
    result = tuner("best", done, "--max-cost-usd", "0.000001")
    assert result.exit_code == 1
    assert "the cheapest is trial_" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["best"],
        ["best", "JOB", "--max-cost-usd", "much"],
        ["trials", "JOB", "--limit", "0"],
        ["topup", "JOB"],
        ["topup", "JOB", "--gpu-hours", "1"],
        ["submit"],
        ["submit", "/nowhere/job.yaml"],
        ["jobs", "--colour"],
        ["pause", "a", "b"],
    ],
    ids=" ".join,
)
def test_wrong_usage_has_status_2(tuner: Tuner, waiting: str, words: list[str]) -> None:
    result = tuner(*(word.replace("JOB", waiting) for word in words))
    assert result.exit_code == 2
    assert result.stderr


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "a: [", "\x00"])
def test_a_file_that_holds_no_job_is_wrong_usage(tuner: Tuner, tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert tuner("submit", str(file)).exit_code == 2


def test_a_file_that_is_no_text_is_wrong_usage(tuner: Tuner, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert tuner("submit", str(file)).exit_code == 2


def test_a_date_in_a_file_is_said_to_be_wrong(tuner: Tuner, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(fakes.body()) + "constants: {since: 2026-01-01}\n")
    result = tuner("submit", str(file))
    assert result.exit_code in (1, 2)
    assert result.stderr


def test_a_wrong_setting_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_PORT", "many")
    result = CliRunner().invoke(app, ["jobs"])
    assert result.exit_code == 1
    assert "TUNER_PORT" in result.stderr


def test_a_service_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("time.sleep", lambda _: None)
    result = CliRunner().invoke(app, ["jobs"])
    assert result.exit_code == 1
    assert "The service does not answer" in result.stderr
    assert "tuner serve" in result.stderr
