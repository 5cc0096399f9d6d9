"""Errors of the command line say what is wrong, where, and what to do."""

from pathlib import Path
from threading import Event

import httpx2
import pytest
import yaml
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.cli.conftest import Tuner
from tests.cli.test_commands import ASKING
from tuner.cli import output
from tuner.cli.main import app
from tuner.client import Client

OF_A_JOB = [
    *(words for words, *_ in ASKING.values() if "JOB" in words),
    *(
        ["watch", "JOB"],
        ["pause", "JOB"],
        ["resume", "JOB"],
        ["cancel", "JOB"],
        ["topup", "JOB", "--usd", "1"],
    ),
]


@pytest.mark.parametrize("words", OF_A_JOB, ids=" ".join)
def test_missing_job_is_reported_on_standard_error(tuner: Tuner, words: list[str]) -> None:
    for more in ([], ["--json"]):
        result = tuner(*(word.replace("JOB", "job_0") for word in words), *more)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert "Not found" in result.stderr
        assert "'job_0'" in result.stderr


def test_conflict_is_reported_with_title_and_detail(tuner: Tuner, done: str) -> None:
    result = tuner("pause", done)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == "This cannot be done in the present state"
    assert "succeeded cannot be paused" in result.stderr


def test_every_fault_of_a_file_is_reported_with_its_pointer(tuner: Tuner, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(fakes.body(name="a/b", budget={"usd": -1})))
    result = tuner("submit", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "/name: " in result.stderr
    assert "/budget/usd: " in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["best"],
        ["best", "JOB", "--max-cost-usd", "much"],
        ["trials", "JOB", "--limit", "0"],
        ["topup", "JOB"],
        ["topup", "JOB", "--gpu-hours", "1"],
        ["topup", "JOB", "--usd", "-5"],
        ["topup", "JOB", "--usd", "0"],
        ["topup", "JOB", "--gpu-hours", "nan"],
        ["submit"],
        ["submit", "/nowhere/job.yaml"],
        ["jobs", "--colour"],
        ["pause", "a", "b"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_status_2(tuner: Tuner, waiting: str, words: list[str]) -> None:
    result = tuner(*(word.replace("JOB", waiting) for word in words))
    assert result.exit_code == 2
    assert result.stderr


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"- a\n- b\n", b"just words", b"a: [", b"\x00", b"\xff\xfe\x00"),
        yaml.safe_dump(fakes.body()).encode() + b"constants: {since: 2026-01-01}\n",
    ],
)
def test_file_without_a_valid_job_is_wrong_usage(tuner: Tuner, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(content)
    result = tuner("submit", str(file))
    assert result.exit_code == 2
    assert result.stderr


def test_invalid_setting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_PORT", "many")
    result = CliRunner().invoke(app, ["jobs"])
    assert result.exit_code == 1
    assert "TUNER_PORT" in result.stderr


def test_unreachable_service_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("time.sleep", lambda _: None)
    result = CliRunner().invoke(app, ["jobs"])
    assert result.exit_code == 1
    assert "The service does not answer" in result.stderr
    assert "tuner serve" in result.stderr


@pytest.mark.parametrize(
    ("error", "is_in_doubt"), [(httpx2.ReadError("it broke"), True), (httpx2.ConnectError("refused"), False)]
)
@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["submit", "FILE"], "the job may have been submitted; check `tuner jobs`"),
        (["pilot", "FILE"], "the pilot may have begun; check `tuner jobs`"),
        (["pilot", "FILE", "--wait"], "the pilot may have begun; check `tuner jobs`"),
        (["export", "job_0"], "the export may have begun; check the exports on the job's page"),
        (
            ["promote", "job_0", "trial_1"],
            "the trial may have been promoted; check `tuner trial job_0 trial_1`",
        ),
        (["stop", "job_0", "trial_1"], "the trial may have been stopped; check `tuner trial job_0 trial_1`"),
        (
            ["enqueue", "job_0", "--config", "{}"],
            "the configuration may have been added; check `tuner trials",
        ),
        (["resume", "job_0"], "the job may have been resumed; check `tuner job job_0`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_request_without_an_answer_says_what_may_have_been_done(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: httpx2.HTTPError,
    is_in_doubt: bool,
    words: list[str],
    note: str,
) -> None:
    def break_off(_: httpx2.Request) -> httpx2.Response:
        raise error

    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(fakes.body()))
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(
        "tuner.client.Client",
        lambda: Client("http://tuner", "key", transport=httpx2.MockTransport(break_off)),
    )
    result = CliRunner().invoke(app, [word.replace("FILE", str(file)) for word in words])
    assert result.exit_code == 1
    assert "The service does not answer" in result.stderr
    assert (note in result.stderr) is is_in_doubt


def one_line(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "name: a\nbudget: {usd: 1\nx: [\n",
            "line 3, column 2, is not YAML: expected ',' or '}', but got ':'",
        ),
        ("name: a\n---\nname: b\n", "line 2, column 1, begins a second YAML document; give one"),
        ("name: a\n\tb: 1\n", "line 2, column 1, is not YAML: found character '\\t'"),
    ],
)
@pytest.mark.parametrize("command", ["submit", "plan", "pilot", "estimate"])
def test_yaml_syntax_error_is_reported_with_line_and_column(
    tuner: Tuner, tmp_path: Path, command: str, text: str, says: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    result = tuner(command, str(file))
    assert result.exit_code == 2
    assert says in one_line(result.stderr)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "standard input, line 1, column 5, is not YAML"),
        ("- a", "standard input does not contain a job"),
        ("x: 2026-01-01", "standard input: /x is a date"),
        ("x: 2026-02-31", "standard input: day"),
        ("search_space: {lr: 'tune.uniform(0, 1)'}", "standard input: search_space.lr is a Python call"),
        ("#" * (2 << 20), "standard input is larger than 1 MiB"),
    ],
)
def test_error_in_a_job_on_standard_input_names_it(tuner: Tuner, text: str, says: str) -> None:
    result = tuner("submit", "-", typed=text)
    assert result.exit_code == 2
    assert says in one_line(result.stderr)


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("spin.py", "spin"),
        ("./models/digits/spin.py", "models.digits.spin"),
        ("{folder}/models/spin.py", "models.spin"),
        ("../elsewhere/spin.py", "spin"),
    ],
)
def test_submit_of_a_python_file_says_how_to_submit_a_function(
    tuner: Tuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, module: str
) -> None:
    """The module of a file below the working directory includes the names of its folders."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = folder / file.format(folder=folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("def train(run):\n    pass\n")
    result = tuner("submit", file.format(folder=folder))
    assert result.exit_code == 2
    assert f"to submit a function of a module, write {module}:train" in one_line(result.stderr)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tags: {sprint: 2026-01-01}", "/tags/sprint is a date: put it in quotes"),
        ("start: [{a/b: 2026-01-01 08:00:00}]", "/start/0/a~1b is a date: put it in quotes"),
        ("budget: {usd: .inf}", "/budget/usd is inf: give a finite number"),
        ("budget: {usd: .nan}", "/budget/usd is nan: give a finite number"),
        ("tags: {2026-01-01: x}", "/tags has the key 2026-01-01: put it in quotes"),
        ("tags: !!set {a}", "/tags is of the YAML type set: write text"),
        ("tags: {sprint: 2026-02-31}", "put dates and similar values in quotes"),
    ],
)
def test_value_that_json_does_not_have_is_reported_with_its_pointer(
    tuner: Tuner, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: a\n{text}\n")
    result = tuner("submit", str(file))
    assert result.exit_code == 2
    assert says in one_line(result.stderr)


def test_missing_items_are_reported_with_the_nearest_match(tuner: Tuner, rest: TestClient, done: str) -> None:
    assert f"the nearest: {done}" in tuner("job", done[:-1]).stderr
    newest = rest.get("/v1/jobs").json()["items"][0]["id"]
    assert f"the newest job with the name 'digits' is {newest}" in tuner("watch", "digit").stderr
    assert f"the newest job is {newest}" in tuner("bill", "x").stderr
    assert "the nearest: trial_" in tuner("trial", done, "trial_0000").stderr
    assert f"tuner trials {done}" in tuner("trial", done, "x").stderr
    tuner("budgets", "set", "vision", "--usd", "1")
    assert "the nearest: vision" in tuner("budgets", "show", "visio").stderr


@pytest.mark.parametrize(
    ("given", "kept", "says"),
    [
        ("wrong", None, "TUNER_API_KEY is not the key of the service at http://tuner"),
        (None, "wrong", "api_key is not the key of the service at http://tuner"),
        (None, None, "does not exist, so it has no key for"),
    ],
)
def test_missing_or_wrong_key_is_reported_with_its_location(
    tuner: Tuner,
    rest: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    given: str | None,
    kept: str | None,
    says: str,
) -> None:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    monkeypatch.setenv("TUNER_URL", "http://tuner")
    monkeypatch.setenv("TUNER_API_KEY", given or "")
    if kept:
        (tmp_path / "api_key").write_text(kept)
    transport = fakes.client_of(rest.app._service, with_key=False)._transport  # type: ignore[attr-defined]
    monkeypatch.setattr("tuner.client.Client", lambda: Client(transport=transport))
    result = CliRunner().invoke(app, ["jobs"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert says in result.stderr
    assert "TUNER_HOME" in result.stderr
    assert "header" not in result.stderr


def test_refused_key_of_a_user_is_reported_with_the_reason(
    tuner: Tuner, rest: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice about the service's own key, which a user cannot read, is not printed."""
    rest.put("/v1/members/ada", json={"role": "viewer"})
    key = rest.post("/v1/keys", json={"user": "ada", "name": "old"}).json()
    rest.delete(f"/v1/keys/{key['id']}")
    monkeypatch.setenv("TUNER_API_KEY", key["secret"])
    transport = fakes.client_of(rest.app._service, with_key=False)._transport  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "tuner.client.Client", lambda: Client("http://tuner", key["secret"], transport=transport)
    )
    result = CliRunner().invoke(app, ["jobs"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{key['id']} was revoked at" in result.stderr
    assert "TUNER_HOME" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("report", "JOB", "--month", "2026-11"),
        ("report", "JOB", "--timezone", "Europe/Berlin"),
        ("report", "JOB", "--format", "csv"),
        ("spend", "--csv", "--json"),
        ("spend", "--csv", "--format", "markdown"),
        ("spend", "--format", "csv", "--json"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tuner: Tuner, done: str, words: tuple[str, ...]) -> None:
    assert tuner(*(done if word == "JOB" else word for word in words)).exit_code == 2


def test_unknown_choice_of_an_option_is_refused_in_plain_words(tuner: Tuner, done: str) -> None:
    text = one_line(tuner("bill", done, "--format", "xml").stderr)
    assert "Invalid value for '--format': 'xml' is not one of 'table', 'markdown', 'csv'" in text


def test_silent_service_is_reported_while_the_command_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, reported = Event(), Event()

    def slow(request: httpx2.Request) -> httpx2.Response:
        asked.set()
        assert reported.wait(60)
        return httpx2.Response(200, json={"items": [], "next_cursor": None})

    monkeypatch.setattr(output, "SILENT_S", 0.01)
    say = output.SilenceNote._write

    def tell(note: output.SilenceNote) -> None:
        say(note)
        reported.set()

    monkeypatch.setattr(output.SilenceNote, "_write", tell)
    monkeypatch.setattr(
        "tuner.client.Client", lambda: Client("http://tuner", "key", transport=httpx2.MockTransport(slow))
    )
    result = CliRunner().invoke(app, ["jobs"])
    assert result.exit_code == 0
    assert asked.is_set()
    assert (
        "no answer from http://tuner after 0.01 s; the service may still be computing, or be overloaded"
        in result.stderr
    )


@pytest.mark.parametrize(
    "text",
    [
        "search_space: {lr: tune.loguniform(1e-4, 1e-1)}",
        "search_space:\n  lr: ray.tune.loguniform(1e-4, 1e-1)",
        "search_space:\n  lr: loguniform(1e-4, 1e-1)",
    ],
)
def test_ray_tune_function_in_a_file_is_refused_with_the_form_to_write(
    tuner: Tuner, tmp_path: Path, text: str
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    result = tuner("submit", str(tmp_path / "job.yaml"))
    assert result.exit_code == 2
    printed = " ".join(result.stderr.replace("│", " ").split())
    assert "search_space.lr is a Python call" in printed
    assert "{type: float, low: LOW, high: HIGH, log: true}" in printed
