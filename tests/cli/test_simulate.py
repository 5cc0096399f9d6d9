"""`tuner simulate`: its output, and errors that name the file and the place."""

import json
import re
import shlex
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.simulation.made_tables import arrays, written
from tests.simulation.test_traces import COUNTS, count
from tests.simulation.test_traces import file as trace_file
from tuner.cli.main import app

ROOT = Path(__file__).parents[2]
NUMBERS = ("best", "spent", "budget", "trials", "steps", "resumes", "preemptions")


def tuner(*words: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, words)], terminal_width=200)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("tables") / "made.npz", arrays(rows=100))


def test_json_has_results_and_spend(table: Path) -> None:
    done = tuner("--table", table, "--budget-trainings", 5, "--sampler", "random", "--json")
    assert done.exit_code == 0, done.output
    simulation = json.loads(done.stdout)
    assert all(isinstance(simulation[name], int | float) for name in NUMBERS)
    assert simulation["budget"] == 5
    assert 4.5 <= simulation["spent"] <= 5
    assert simulation["overspend_usd"] == 0
    assert simulation["best_curve"][-1][1] == simulation["best"]
    assert set(simulation["best_config"]) == {"lr", "width", "momentum"}
    assert simulation["finished"] in (True, False)


def test_output_is_deterministic_and_text_shows_the_main_figures(table: Path) -> None:
    words = ("--table", table, "--budget-trainings", 3, "--workers", 2, "--seed", 7)
    shown = tuner(*words).stdout
    assert tuner(*words).stdout == shown
    for word in ("made", "of 3.00 trainings", "lr=", "setup", "train", "budget_usd"):
        assert word in shown


def test_preemptions_of_a_recorded_trace_are_simulated(table: Path, tmp_path: Path) -> None:
    path = trace_file(tmp_path, COUNTS, *(count(400 * i, 4 - 2 * (i % 2)) for i in range(9)))
    words = ["--table", table, "--budget-trainings", 40, "--sampler", "random", "--preemptions", path]
    done = tuner(*words, "--json")
    assert done.exit_code == 0, done.output
    simulation = json.loads(done.stdout)
    assert min(simulation["preemptions"], simulation["resumes"]) > 0
    assert simulation["spot"]["trace"] == "a"


def test_spot_simulation_shows_costs_on_each_market(table: Path) -> None:
    training = ["--training-time", "1h", "--workers", 1, "--scheduler", "none", "--sampler", "random"]
    words = ["--table", table, "--budget-trainings", 1, *training, "--preemptions", "bamboo"]
    words += ["--market", "spot_with_fallback", "--wall-clock", "30h"]
    done = tuner(*words, "--json")
    assert done.exit_code == 0, done.output
    simulation = json.loads(done.stdout)
    spot = simulation["spot"]
    assert spot["market"] == "spot_with_fallback"
    assert spot["notice_s"] == (30 if "gcp" in spot["trace"] else 120)
    paid = [Decimal(str(use["usd"])) for use in spot["markets"].values()]
    assert sum(paid) == Decimal(str(simulation["spent_usd"]))
    assert all(amount == round(amount, 6) for amount in paid)
    assert simulation["deadline_met"] is True
    assert spot["on_demand_usd"] == pytest.approx(spot["uninterrupted_usd"] / (1 - 0.66), rel=0.01)
    assert spot["times_uninterrupted"] == pytest.approx(simulation["spent_usd"] / spot["uninterrupted_usd"])
    shown = tuner(*words).stdout
    for word in (spot["trace"], "s of notice", "deadline  met", "on demand"):
        assert word in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--workers", "0"], "--workers"),
        (["--sampler", "luck"], "--sampler"),
        (["--startup-steps", "nan"], "--startup-steps"),
        (["--market", "on_demand"], "--preemptions"),
        (["--training-time", "0s"], "--training-time"),
        (["--wall-clock", "soon"], "--wall-clock"),
        (["--preemptions", "bamboo", "--market", "cheap"], "--market"),
    ],
)
def test_invalid_value_is_wrong_usage_of_its_option(table: Path, words: list[str], named: str) -> None:
    done = tuner("--table", table, "--budget-trainings", 1, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert named in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget-trainings", "0"], "budget_trainings: pays for less than one second"),
        (["--budget-trainings", "1", "--preemptions", "no.csv"], "bamboo"),
    ],
)
def test_simulation_that_is_impossible_is_refused(table: Path, words: list[str], message: str) -> None:
    done = tuner("--table", table, *words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr


def test_bad_table_or_trace_is_refused_with_file_and_place(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.npz", arrays() | {"time": arrays()["time"] * -1})
    done = tuner("--table", bad, "--budget-trainings", 1)
    assert done.exit_code == 1
    title, detail = done.stderr.splitlines()[0], done.stderr
    assert title == "The table cannot be used"
    assert str(bad) in detail
    assert "time[0, 0]" in detail
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    good = written(tmp_path / "good.npz")
    done = tuner("--table", good, "--budget-trainings", 1, "--preemptions", tmp_path / "t.csv")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0] == "The trace cannot be used"
    assert "line 1" in done.stderr


def documented() -> list[str]:
    pages = [ROOT / "README.md", ROOT / "docs" / "simulator.md", ROOT / "docs" / "how-to" / "spot.md"]
    blocks = [
        block for page in pages for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("tuner simulate")]


@pytest.mark.parametrize("line", documented())
def test_documented_commands_run(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = tuner(*shlex.split(line)[2:])
    assert done.exit_code == 0, done.output
    assert "trainings" in done.stdout or json.loads(done.stdout)["best"]


def test_simulate_commands_are_documented() -> None:
    assert len(documented()) >= 3
