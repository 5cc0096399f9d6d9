"""Jobs that tune a program, over REST and on the command line."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests import fakes
from tests.fakes import FakeService
from tests.packages.making import plain
from tuner.cli.main import app
from tuner.client import Client
from tuner.store import jobs
from tuner.worker.environment import code_of

COMMAND = "python train.py --lr {lr} --width {width}"
OBJECTIVES = [{"metric": "val/acc", "mode": "max"}, {"metric": "b", "mode": "min"}]


def body(command: str | None = COMMAND, **changes: Any) -> dict[str, Any]:
    request = fakes.body(command=command, **changes)
    if "trainable" not in changes:
        del request["trainable"]
    return {name: value for name, value in request.items() if value is not None}


@pytest.fixture
def on(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Return a client of a service that allows commands, which was started in a directory with a script."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return fakes.client_of(replace(service, settings=replace(service.settings, packages=True)))


def refused(answer: Any, pointer: str, *words: str) -> None:
    assert answer.status_code == 422, answer.text
    faults = answer.json()["errors"]
    assert [fault["pointer"] for fault in faults] == [pointer], faults
    assert all(word in faults[0]["detail"] for word in words), faults


def test_commands_are_refused_unless_the_operator_allows_user_code(client: TestClient) -> None:
    refused(client.post("/v1/jobs", json=body()), "/command", "TUNER_PACKAGES=on")


def test_job_shows_its_command_and_can_be_submitted_again(on: TestClient, service: FakeService) -> None:
    made = on.post("/v1/jobs", json=body())
    assert made.status_code == 201, made.text
    job = made.json()
    assert (job["command"], job["trainable"], job["metrics_pattern"]) == (COMMAND, COMMAND, None)
    planned = on.post("/v1/plans", json=body()).json()["job"]
    assert (planned["command"], planned["trainable"]) == (COMMAND, COMMAND)
    again = on.post("/v1/jobs", json={**body(), "trainable": job["trainable"]})
    assert again.status_code == 201, again.text
    with service.database.read() as db:
        spec = jobs.get(db, job["id"]).spec
    assert spec.entry == "tuner.worker.program:run"
    assert spec.begin_config({"lr": 0.5}) == {
        "command": COMMAND,
        "metrics_pattern": None,
        "steps": spec.fidelity.max,
        "values": {**spec.constants, "lr": 0.5},
    }


def test_function_has_neither_command_nor_pattern(client: TestClient, service: FakeService) -> None:
    job = client.post("/v1/jobs", json=fakes.body()).json()
    assert (job["command"], job["metrics_pattern"]) == (None, None)
    with service.database.read() as db:
        spec = jobs.get(db, job["id"]).spec
    assert (spec.entry, spec.begin_config({"lr": 0.5})["lr"]) == (fakes.ENTRY, 0.5)


def test_long_command_is_compared_by_its_digest(on: TestClient) -> None:
    long = COMMAND + " --data x" * 100
    first, other = (on.post("/v1/jobs", json=body(command)).json() for command in (long, long + "y"))
    assert first["command"] == long
    assert first["trainable"] != other["trainable"]
    assert len(first["trainable"]) == 298


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        (
            {"command": "python train.py {learning}"},
            "/command",
            ("{learning} is neither a parameter nor a constant",),
        ),
        ({"command": "python train.py {wdth}"}, "/command", ("did you mean {width}? To pass braces",)),
        ({"command": "awk '{print}'"}, "/command", ("{print}", "write {{ and }}", "constant; to")),
        ({"command": "python train.py {"}, "/command", ("write {{",)),
        ({"command": ""}, "/command", ("name a program",)),
        ({"command": "python 'train.py"}, "/command", ("No closing quotation",)),
        ({"command": "python train.py\n"}, "/command", ("one line",)),
        ({"command": "python train.py | tee log"}, "/command", ("without a shell", "bash script.sh")),
        ({"command": "python train.py >log"}, "/command", ("without a shell, so > has no effect",)),
        ({"command": "python train.py 2>err.txt"}, "/command", ("2> has no effect",)),
        ({"command": "python train.py; ls"}, "/command", ("so ; has no effect", "or use quotes")),
        ({"command": "bash -c 'echo {lr}'"}, "/command", ("read as shell syntax",)),
        ({"command": "bash -lc 'echo {lr}'"}, "/command", ("read as shell syntax",)),
        ({"command": "env bash -o pipefail -ec 'echo {lr}'"}, "/command", ("read as shell syntax",)),
        ({"command": "{lr} train.py"}, "/command", ("the program itself cannot be a placeholder",)),
        ({"command": "python ../train.py"}, "/command", ("../train.py is not inside", "without ..")),
        ({"command": "a/../../train.sh"}, "/command", ("a/../../train.sh is not inside",)),
        (
            {"metrics_pattern": "val/acc=(.*)", "objective": {"metric": "val/acc", "mode": "max"}},
            "/objective/metric",
            ("letters, digits and underscores",),
        ),
        (
            {"metrics_pattern": "(?P<b>.)", "objective": None, "objectives": OBJECTIVES},
            "/objectives/0/metric",
            ("letters, digits and underscores",),
        ),
        ({"command": "pyhton train.py"}, "/command", ("the program pyhton was not found",)),
        ({"command": "python tain.py"}, "/command", ("the file tain.py was not found in",)),
        ({"command": "./tain"}, "/command", ("the file ./tain was not found in",)),
        ({"command": COMMAND, "trainable": fakes.ENTRY}, "/command", ("either trainable or command",)),
        ({"command": None}, "/trainable", ("is required",)),
        (
            {"command": None, "trainable": "tuner.worker.program:run"},
            "/trainable",
            ("give command instead of trainable",),
        ),
        (
            {"command": None, "trainable": fakes.ENTRY, "metrics_pattern": "a"},
            "/metrics_pattern",
            ("leave out metrics_pattern",),
        ),
        ({"metrics_pattern": "("}, "/metrics_pattern", ("not a valid Python regular expression",)),
        ({"metrics_pattern": "x" * 1001}, "/metrics_pattern", ("1000",)),
        ({"metrics_pattern": "acc=(.*)"}, "/metrics_pattern", ("(?P<acc>...)", "no named groups")),
        ({"metrics_pattern": "(?P<loss>.*)"}, "/metrics_pattern", ("(?P<acc>...)", "named loss")),
        (
            {"command": "python train.py {steps}", "fidelity": {"unit": "epoch"}},
            "/command",
            ("fidelity.max",),
        ),
        ({"package": f"pkg_{'a' * 64}"}, "/package", ("does not exist",)),
    ],
)
def test_fault_of_a_command_is_named(
    on: TestClient, changes: dict[str, Any], pointer: str, words: tuple[str, ...]
) -> None:
    refused(on.post("/v1/jobs", json=body(**changes)), pointer, *words)


def test_seed_and_steps_are_placeholders_of_every_job(on: TestClient) -> None:
    command = "python train.py --seed {seed} --epochs={steps} {{lr}}"
    assert on.post("/v1/jobs", json=body(command)).status_code == 201


@pytest.mark.parametrize(
    "command",
    ["python train.py '|' \";\" a\\>b", "bash train.py -c {lr}", "bash -c 'echo \"$1\"; ls > log' bash {lr}"],
)
def test_quoted_shell_syntax_is_passed_to_the_program(on: TestClient, command: str) -> None:
    made = on.post("/v1/jobs", json=body(command))
    assert made.status_code == 201, made.text


ROUTES = ("/v1/jobs", "/v1/plans", "/v1/pilots")
PILOT = {"planning": {"pilot": {"usd": 0.002, "trials": 6}}, "budget": {"usd": 0.004}}


@pytest.mark.parametrize("route", ROUTES)
def test_unreadable_file_is_not_a_service_error(on: TestClient, tmp_path: Path, route: str) -> None:
    (tmp_path / "data").symlink_to("/proc/self/mem")  # a regular file whose first byte cannot be read
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    more = PILOT if route == "/v1/pilots" else {}
    spot = {"resources": {"market": "spot"}}  # the digest of the code decides about the self-test
    for changes in (more, more | spot):
        answer = on.post(route, json=body("python train.py data large ../data {lr}", **changes))
        assert answer.status_code in ((201, 200) if changes == more else (201, 200, 422)), answer.text


@pytest.mark.parametrize("route", ROUTES)
def test_no_file_of_a_command_is_read_if_commands_are_off(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr("tuner.worker.environment._file_digest", None)
    more = PILOT if route == "/v1/pilots" else {}
    answer = client.post(route, json=body("python ../../etc/passwd pyproject.toml", **more))
    refused(answer, "/command", "TUNER_PACKAGES=on")


def test_script_is_looked_for_in_the_package(on: TestClient) -> None:
    files = {"model.py": "", "scripts/train.sh": ""}
    package = on.post(
        "/v1/packages", content=plain(files), headers={"Content-Type": "application/zip"}
    ).json()
    made = on.post("/v1/jobs", json=body("bash scripts/train.sh {lr}", package=package["id"]))
    assert made.status_code == 201, made.text
    missing = on.post("/v1/jobs", json=body("python train.py {lr}", package=package["id"]))
    refused(missing, "/command", "the file train.py was not found in the package")


def test_digest_of_a_command_changes_with_its_script(
    on: TestClient, service: FakeService, tmp_path: Path
) -> None:
    job = on.post("/v1/jobs", json=body()).json()["id"]
    with service.database.read() as db:
        spec = jobs.get(db, job).spec
    before = code_of(spec, [str(tmp_path)])
    assert code_of(replace(spec, command=COMMAND + " --fast"), [str(tmp_path)]) != before
    (tmp_path / "train.py").write_text("print()")
    assert code_of(spec, [str(tmp_path)]) not in (before, None)
    changed = set()
    for time in (1, 2):
        with (tmp_path / "train.py").open("wb") as file:
            file.truncate(1 << 40)
        os.utime(tmp_path / "train.py", (time, time))
        changed.add(code_of(spec, [str(tmp_path)]))
    assert len(changed) == 2, "of a large file the time counts"


def test_best_prints_how_to_train_a_program(
    on: TestClient, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = on.post("/v1/jobs", json=body()).json()["id"]
    fakes.simulate(service, job)
    asked: list[Any] = []
    monkeypatch.setattr("tuner.cli.training._train", lambda training, **_: asked.append(training))
    client = Client("http://tuner", fakes.KEY, transport=on._transport)
    for command in ("best", "training"):
        monkeypatch.setattr(f"tuner.cli.{command}.connect", lambda: client)
    shown, best = CliRunner().invoke(app, ["best", job]), on.get(f"/v1/jobs/{job}/best").json()
    assert f"  tuner train {job} --trial {best['trial']} --steps {best['step']}" in shown.output
    refused = CliRunner().invoke(app, ["train", job], input="n\n")
    assert (refused.exit_code, asked) == (1, [])
    assert f"the job's command: {COMMAND}" in refused.stderr
    trained = CliRunner().invoke(app, ["train", job, "--yes"])
    assert trained.exit_code == 0, trained.output
    assert COMMAND in trained.stderr
    entry, values = asked[0].entry, asked[0].config
    assert (entry, values["command"], asked[0].steps) == ("tuner.worker.program:run", COMMAND, best["step"])
    assert json.dumps(values["values"]["lr"]) == json.dumps(best["config"]["lr"])
