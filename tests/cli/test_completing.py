"""Shell completion as a shell requests it: by environment variables, over real HTTP."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.testclient import TestClient
from typer import Context
from typer.main import get_command
from typer.testing import CliRunner

from tests import fakes
from tests.fakes import FakeService, SharedApp
from tuner.cli import arguments
from tuner.cli.main import app


@pytest.fixture(scope="module")
def url(service: FakeService) -> Iterator[str]:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(SharedApp(service), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(120)
    listening.close()


@pytest.fixture(autouse=True)
def settings(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_URL", url)
    monkeypatch.setenv("TUNER_API_KEY", fakes.KEY)
    # A shell gives up silently after a short timeout; the test must not.
    monkeypatch.setattr(arguments, "TIMEOUT_S", 240.0)


def completed(line: str, shell: str = "bash") -> list[str]:
    words = line.split(" ")
    completion_variables = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    env = {"_TUNER_COMPLETE": f"complete_{shell}", **completion_variables}
    result = CliRunner().invoke(app, [], env=env, prog_name="tuner")
    return [line for line in str(result.stdout).split("\n") if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_job_ids_are_completed_with_their_names(done: str, waiting: str, shell: str) -> None:
    completions = "\n".join(completed("tuner watch job_", shell))
    assert done in completions
    assert waiting in completions
    if shell != "bash":
        assert "digits, succeeded" in completions


def test_completions_start_with_the_typed_text(done: str, waiting: str) -> None:
    assert completed(f"tuner best {done[:-1]}") == [done]
    assert completed("tuner best nothing") == []


def test_completion_uses_no_proxy_for_a_service_on_this_machine(
    done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would get the key."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert completed(f"tuner best {done[:-1]}") == [done]


def test_trial_ids_are_completed_for_the_given_job(done: str) -> None:
    assert "trial_00000" in completed(f"tuner trial {done} trial_0000")
    assert "trial_00000" in completed(f"tuner train {done} --trial trial_0000")
    assert completed("tuner trial job_0 trial_") == []


def test_ids_of_the_project_are_completed(
    rest: TestClient, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest.post("/v1/projects", json={"name": "vision"}).raise_for_status()
    answer = rest.post("/v1/jobs", json=fakes.body(), headers={"Tuner-Project": "vision"})
    answer.raise_for_status()
    assert completed("tuner --project vision watch job_") == [answer.json()["id"]]
    assert completed(f"tuner --project vision trial {done} trial_") == []
    monkeypatch.setenv("TUNER_PROJECT", "vision")
    assert completed("tuner watch job_") == [answer.json()["id"]]
    assert done in completed("tuner --project default watch job_")


def test_commands_states_and_sort_orders_are_completed() -> None:
    assert set(completed("tuner pa")) == {"pause", "pareto", "packages"}
    assert completed("tuner jobs --state suc") == ["succeeded"]
    assert completed("tuner trials JOB --sort m") == ["metric"]


@pytest.mark.parametrize("there", ["http://127.0.0.1:1", "nonsense", "wrong key"])
def test_completion_is_silent_if_the_service_does_not_answer(
    done: str, there: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNER_API_KEY" if there == "wrong key" else "TUNER_URL", there)
    assert completed("tuner watch job_") == []
    assert arguments.jobs(Context(get_command(app)), "") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_shown_and_installed(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # These options depend on the variable, so the command line is built again.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr("typer.testing._get_command", get_command)
    shown = CliRunner().invoke(app, ["--show-completion", shell], prog_name="tuner")
    assert "_TUNER_COMPLETE=complete_" + shell in shown.stdout
    installed = CliRunner().invoke(app, ["--install-completion", shell], prog_name="tuner")
    assert f"{shell} completion installed in {tmp_path}" in installed.stdout
