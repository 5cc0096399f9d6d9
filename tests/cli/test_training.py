"""`tuner train`: the command that `tuner best` prints can be pasted, and trains the printed configuration."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update
from starlette.testclient import TestClient

from tests import fakes
from tests.cli.conftest import Tuner
from tests.fakes import FakeService
from tuner.cli.training import command
from tuner.client import Client
from tuner.cluster.nodes import Node
from tuner.database.tables import reports
from tuner.schemas.answers import Environment

CODE = """
import torch
from tuner.training import SpotSafe


def train(config):
    print("called with", sorted(config))
    model = torch.nn.Linear(1, 1)
    with SpotSafe(model=model) as run:
        for step in run.steps():
            print("in step", step)
            run.report(acc=config["lr"] * (step + 1), whole=step)
"""
FAILS = """
def train(config):
    raise RuntimeError("its own fault")
"""
PARSES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
arguments = parser.parse_args()

def train(config):
    return {"acc": arguments.lr}
"""
WRITES_MORE = """
from pathlib import Path
from ray import tune
from tuner.training.framework_run import FrameworkRun

def uses_the_directory(config):
    run = FrameworkRun()
    run.begin()
    (run.directory / "trainer").mkdir()
    while True:
        if run.report({"acc": 1}):
            run.save(lambda place: (place / "model.txt").write_text("trained"))

class Steps(tune.Trainable):
    def step(self):
        return {"acc": 1}
    def save_checkpoint(self, checkpoint_dir):
        (Path(checkpoint_dir) / "model.txt").write_text("trained")
"""
READS_FIDELITY = """
from tuner.training import SpotSafe


def train(config):
    with SpotSafe(state={}) as run:
        for step in run.steps():
            run.report(total=run.total_steps, rung=run.rung, size=run.fidelity("size"))
"""
SERVES = """
import torch
from tuner.training import SpotSafe


def train(config):
    with SpotSafe(model=torch.nn.Linear(1, 1)) as run:
        for step in run.steps():
            run.report(acc=step, latency_ms=7.2, price=run.usd_per_million(3.6))
"""
CHOOSES_GPUS = """
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "7"


def train(config):
    return {"gpu": int(os.environ["CUDA_VISIBLE_DEVICES"])}
"""
EXITS = """
raise SystemExit(2)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(CODE)
    (folder / "fails.py").write_text(FAILS)
    return folder


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the line in a shell without a reachable service."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TUNER_URL": "http://127.0.0.1:1"}
    return subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.integers(1, 1000))
def test_printed_command_holds_the_exact_configuration(config: dict[str, Any], step: int) -> None:
    words = shlex.split(command("trainables.digits_mlp:train", config, step, total_steps=step))
    assert words[:4] == ["tuner", "train", "trainables.digits_mlp:train", "--steps"]
    assert (int(words[4]), words[5], json.loads(words[6])) == (step, "--config", config)
    with_seed = Environment(threads=2, seed=7, versions={}, variables={}, code=None)
    line = command("m:f", config, step, with_seed, total_steps=step + 1)
    assert line.startswith(f"tuner train m:f --steps {step} --total-steps {step + 1} --config ")
    assert line.endswith(" --threads 2 --seed 7")


def test_best_prints_the_command_with_constants_and_step(tuner: Tuner, rest: TestClient, done: str) -> None:
    best, job = rest.get(f"/v1/jobs/{done}/best").json(), rest.get(f"/v1/jobs/{done}").json()
    values = {**job["constants"], **best["config"]}
    expected = command(job["trainable"], values, best["step"], total_steps=job["fidelity"]["max"])
    shown = tuner("best", done).stdout
    assert shown.rstrip().endswith(f"to train it:\n  {expected}")
    assert shown.startswith("acc ")
    assert f"  {expected}" in tuner("best-of-all", job["trainable"], "acc").stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"teacher": {"job": "job_0", "trial": "trial_00000", "step": 1}},
        {
            "fidelity": {
                "unit": "epoch",
                "min": 1,
                "max": 9,
                "reduction_factor": 3,
                "proxies": {"size": [1, 2]},
            }
        },
        {"fidelity": {"unit": "epoch", "min": 1, "max": None, "reduction_factor": 3, "proxies": None}},
    ],
    ids=["teacher", "proxies", "no last step"],
)
def test_best_names_the_job_if_the_function_and_its_configuration_are_not_enough(
    tuner: Tuner, rest: TestClient, done: str, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    ask, best = Client.job, rest.get(f"/v1/jobs/{done}/best").json()
    monkeypatch.setattr(Client, "job", lambda client, job: ask(client, job).model_copy(update=changes))
    expected = f"tuner train {done} --trial {best['trial']} --steps {best['step']}"
    assert tuner("best", done).stdout.rstrip().endswith(f"to train it:\n  {expected}")


def test_function_is_trained_with_the_total_of_steps_that_is_given(folder: Path) -> None:
    (folder / "reads_total.py").write_text(READS_FIDELITY.replace('run.fidelity("size")', "1"))
    done = typed("tuner train reads_total:train --steps 2 --total-steps 9 --json", folder)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["metrics"]["total"] for report in reports] == [9, 9]


def test_configuration_is_trained_to_its_step_and_saved(folder: Path) -> None:
    line = command("mine:train", {"lr": 0.25, "data": "it's"}, 3, total_steps=3)
    done = typed(f"{line} --json --save kept", folder)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["step"] for report in reports] == [1, 2, 3]
    assert reports[-1]["metrics"] == {"acc": 0.75, "whole": 2}
    assert "called with ['data', 'lr']" in done.stderr
    assert "in step 2" in done.stderr
    assert "in step 3" not in done.stderr
    assert (folder / "kept" / "step_00000003" / "state.pt").is_file()


def test_error_of_a_trainable_is_shown(folder: Path) -> None:
    done = typed("tuner train fails:train", folder)
    assert done.returncode == 1
    assert "its own fault" in done.stderr


@pytest.mark.parametrize("target", ["uses_the_directory", "Steps"])
def test_nothing_but_the_checkpoint_remains_of_a_training(tmp_path: Path, target: str) -> None:
    (tmp_path / "writes.py").write_text(WRITES_MORE)
    (tmp_path / "scratch").mkdir()
    line = f"TMPDIR={tmp_path}/scratch PYTHONDONTWRITEBYTECODE=1 tuner train writes:{target} --steps 2"
    for option in ("", "--save kept", "--save kept"):
        done = typed(f"{line} {option}", tmp_path)
        assert done.returncode == 0, done.stderr
        expected = {"writes.py", "scratch", *(["kept"] if option else [])}
        assert {path.name for path in tmp_path.iterdir()} == expected
        assert list((tmp_path / "scratch").iterdir()) == []
    assert f"saved in {tmp_path}/kept/step_00000002" in done.stderr
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["step_00000002"]
    assert (tmp_path / "kept" / "step_00000002" / "model.txt").read_text() == "trained"


def test_code_that_parses_its_command_line_gets_no_arguments(folder: Path) -> None:
    (folder / "parses.py").write_text(PARSES)
    done = typed("tuner train parses:train --steps 3 --json", folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"] == {"acc": 0.5}


def test_code_that_chooses_other_gpus_when_it_is_imported_is_told_that_they_were_restored(
    folder: Path,
) -> None:
    (folder / "chooses.py").write_text(CHOOSES_GPUS)
    done = typed("CUDA_VISIBLE_DEVICES=0 tuner train chooses:train --json", folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"] == {"gpu": 0}
    assert (
        "The module set CUDA_VISIBLE_DEVICES to '7' while it was imported. It was restored to '0'"
        in done.stderr
    )


def test_code_that_ends_its_process_when_it_is_imported_is_refused_with_advice(folder: Path) -> None:
    (folder / "exits.py").write_text(EXITS)
    done = typed("tuner train exits:train", folder)
    assert done.returncode == 1
    assert "trainable: the code ended its process with 2 while it was imported" in done.stderr


def test_program_is_trained_in_the_current_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_API_KEY", "secret")
    (folder / "mine.sh").write_text("""echo begins $TUNER_API_KEY
echo '{"loss": 1}' >> $TUNER_METRICS; sleep 0.1; echo '{"loss": 2}' >> $TUNER_METRICS; exit $1""")
    line = "tuner train tuner.worker.program:run --config {} --json"
    config = {"command": "bash mine.sh {code}", "metrics_pattern": None, "steps": None, "values": {"code": 0}}
    done = typed(line.format(shlex.quote(json.dumps(config))) + " --steps 3", folder)
    assert [json.loads(line)["metrics"] for line in done.stdout.splitlines()] == [{"loss": 1}, {"loss": 2}]
    assert "begins" in done.stderr
    assert "bash mine.sh {code} returned after step 2 of 3" in done.stderr
    failed = typed(line.format(shlex.quote(json.dumps({**config, "values": {"code": 3}}))), folder)
    assert failed.returncode == 1
    assert "the program ended with exit status 3; it printed last: begins" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_trial_of_a_job_is_trained_to_its_best_step(
    tuner: Tuner, rest: TestClient, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("tuner.cli.training._train", lambda training, **_: asked.append(training))
    assert tuner("train", done).exit_code == 0
    assert tuner("train", done, "--trial", "trial_00001").exit_code == 0
    assert tuner("train", done, "--trial", "trial_00001", "--steps", "2").exit_code == 0
    best, job = rest.get(f"/v1/jobs/{done}/best").json(), rest.get(f"/v1/jobs/{done}").json()
    trial = rest.get(f"/v1/jobs/{done}/trials/trial_00001").json()
    at = max(trial["curve"], key=lambda point: (point["metric"], -point["step"]))["step"]
    assert [(training.entry, training.config, training.steps) for training in asked] == [
        (job["trainable"], best["config"], best["step"]),
        (job["trainable"], trial["config"], at),
        (job["trainable"], trial["config"], 2),
    ]


def test_job_whose_code_is_in_a_package_names_the_package(
    tuner: Tuner, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked, changes = Client.job, list[Any](), {"package": "pkg_1", "trainable": "pickled_train:train"}
    monkeypatch.setattr(Client, "job", lambda client, job: ask(client, job).model_copy(update=changes))
    monkeypatch.setattr("tuner.cli.training._train", lambda training, **_: asked.append(training))
    for words in (["best", done], ["best-of-all", fakes.ENTRY, "acc"]):
        shown = tuner(*words).stdout
        assert shown.rstrip().endswith(f"the code of {done} is in package pkg_1")
        assert "tuner train" not in shown
    refused = tuner("train", done)
    assert refused.exit_code == 1
    assert f"the code of {done} is in package pkg_1, and pickled_train:train is not found" in refused.stderr
    assert asked == []
    changes["trainable"] = fakes.ENTRY
    assert tuner("train", done).exit_code == 0
    assert asked[0].entry == fakes.ENTRY


def test_trial_of_a_job_is_trained_with_the_total_steps_rungs_and_proxies_of_the_job(
    tuner: Tuner, service: FakeService, rest: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code_with_rungs.py").write_text(READS_FIDELITY)
    monkeypatch.syspath_prepend(str(tmp_path))
    fidelity = {"min": 1, "max": 9, "reduction_factor": 3, "proxies": {"size": [16, 32]}}
    ask, changes = Client.job, {"trainable": "code_with_rungs:train"}
    monkeypatch.setattr(Client, "job", lambda client, job: ask(client, job).model_copy(update=changes))
    for scheduler in ("asha", "none"):
        job = fakes.submit(rest, fidelity=fidelity, algorithm={"scheduler": scheduler})
        fakes.simulate(service, job)
        words = ["--trial", "trial_00000", "--steps", "3", "--save", str(tmp_path / scheduler), "--json"]
        done = tuner("train", job, *words)
        assert done.exit_code == 0, done.output
        assert [json.loads(line)["metrics"] for line in done.stdout.splitlines()] == [
            {"total": 9, "rung": 0, "size": 16},
            {"total": 9, "rung": 1, "size": 32},
            {"total": 9, "rung": 1, "size": 32},
        ]
        assert (tmp_path / scheduler / "step_00000003" / "state.pt").is_file()


@pytest.mark.parametrize("role", ["objective", "constraint"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_trial_of_a_job_is_trained_with_the_price_and_the_serving_metrics_of_the_job(
    tuner: Tuner,
    service: FakeService,
    rest: TestClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    nodes: int,
) -> None:
    (tmp_path / "code_that_serves.py").write_text(SERVES)
    monkeypatch.syspath_prepend(str(tmp_path))
    ask, changes = Client.job, {"trainable": "code_that_serves:train"}
    monkeypatch.setattr(Client, "job", lambda client, job: ask(client, job).model_copy(update=changes))
    fields: dict[str, Any] = {"constraints": [{"metric": "usd_per_million", "max": 5}]}
    if role == "objective":
        fields = {
            "objectives": [
                {"metric": "acc", "mode": "max"},
                {"metric": "usd_per_million", "mode": "min"},
            ]
        }
    service.cluster.fake_nodes = [
        Node(f"n{number}", cpus=2, gpus=0, memory_bytes=8 << 30) for number in range(2)
    ]
    job = fakes.submit(rest, **fields, resources={"nodes": nodes})
    fakes.simulate(service, job)
    done = tuner("train", job, "--trial", "trial_00000", "--steps", "1", "--json")
    assert done.exit_code == 0, done.output
    (line,) = map(json.loads, done.stdout.splitlines())
    node = rest.get(f"/v1/jobs/{job}").json()["price"]
    price = node["usd_per_hour"] / node["cpus"]  # a trial uses one CPU of each of its nodes
    assert line["metrics"] == {
        "acc": 0,
        "latency_ms": 7.2,
        "price": pytest.approx(price),  # a prediction takes a millionth of an hour
        "usd_per_million": pytest.approx(2 * price),
    }


@pytest.mark.parametrize(
    ("violations", "step"),
    [({1: 0.0, 2: 0.5}, 1), ({1: 0.5, 2: 0.2}, 2)],
    ids=["one step is feasible", "one step comes nearest"],
)
def test_best_step_of_a_trial_satisfies_the_constraints(
    tuner: Tuner,
    service: FakeService,
    rest: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    violations: dict[int, float],
    step: int,
) -> None:
    job = fakes.submit(rest)
    fakes.simulate(service, job)
    rows = rest.get(f"/v1/jobs/{job}/trials").json()["items"]
    trial = max(rows, key=lambda row: int(row["steps"]))["id"]
    with service.database.write() as db:
        here = (reports.c.job == job) & (reports.c.trial == trial)
        db.execute(update(reports).where(here).values(violation=0.9, value=0.9))
        for at, violation in violations.items():
            values = {"violation": violation, "value": at / 10}
            db.execute(update(reports).where(here, reports.c.step == at).values(values))
    last: list[int] = []
    monkeypatch.setattr("tuner.cli.training._train", lambda training, **_: last.append(training.steps))
    assert tuner("train", job, "--trial", trial).exit_code == 0
    assert last == [step]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mine:train", "--config", "{lr: 1}"], "is not JSON"),
        (["mine:train", "--config", "[1]"], "must be an object"),
        (["mine:train", "--trial", "trial_00000"], "give a job id"),
        (["job_0", "--config", "{}"], "a job has its own"),
        (["job_0", "--total-steps", "9"], "a job has its own total"),
        (["mine:train", "--steps", "0"], "--steps"),
    ],
)
def test_wrong_usage_names_the_expected_argument(tuner: Tuner, words: list[str], says: str) -> None:
    result = tuner("train", *words)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "entry", ["nowhere.at_all:train", "tests.worker.plain_cases:fly", "tests.worker.plain_cases:"]
)
def test_unimportable_trainable_is_reported(tuner: Tuner, entry: str) -> None:
    result = tuner("train", entry)
    assert result.exit_code == 1
    assert "trainable:" in result.stderr
