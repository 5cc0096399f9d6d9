"""The whole files that two guides show, on trainables and on frameworks, run as scripts and under a worker's supervisor."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.data_server import data_server
from tests.worker.driving import Driver

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE, FRAMEWORKS = DOCS / "trainables.md", DOCS / "frameworks.md"


def whole_files(page: Path) -> dict[str, str]:
    """Return the blocks of a page that are whole files, by name. They begin with their name."""
    blocks = re.findall(r"^```python\n(# (\S+\.py)\n.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return {name: code for code, name in blocks}


BLOCKS = whole_files(GUIDE) | whole_files(FRAMEWORKS)
MARKS = {
    "under_tune.py": [pytest.mark.system],
    "long_steps.py": [pytest.mark.extended],
    "progressive.py": [pytest.mark.extended],
    "student.py": [pytest.mark.extended],
    "with_artifacts.py": [pytest.mark.extended],
    "from_a_url.py": [pytest.mark.extended],
}
PROGRAMS = [
    pytest.param(name, marks=MARKS.get(name, [])) for name, code in BLOCKS.items() if "__main__" in code
]
EXTENDED = (
    "all_parts.py",
    "already_for_tune.py",
    "long_steps.py",
    "progressive.py",
    "student.py",
    "with_artifacts.py",
    "from_a_url.py",
)
# The gate runs one for the service. Trainables for Ray Tune have tests in tests/worker.
TRAINABLES = [
    pytest.param(name.removesuffix(".py"), marks=[pytest.mark.extended] if name in EXTENDED else [])
    for name, code in BLOCKS.items()
    if "def train(" in code
]
CONFIG = {"learning_rate": 0.01, "width": 8}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Write the files of the guide. The path is short because Ray's sockets are below it."""
    with tempfile.TemporaryDirectory(prefix="guide-", ignore_cleanup_errors=True) as name:
        for file, code in BLOCKS.items():
            (Path(name) / file).write_text(code)
        (Path(name) / "tmp").mkdir()
        yield Path(name)


def run(folder: Path, name: str) -> str:
    """Return the program's output. It runs in its folder and writes only there."""
    places = {"HOME": folder, "TMPDIR": folder / "tmp", "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {**os.environ, **{variable: str(value) for variable, value in places.items()}}
    done = subprocess.run(
        [sys.executable, name], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


PRINTS = {
    "all_parts.py": r"epoch 0.*\nepoch 1.*\nepoch 2.*\nepoch 3.*\nepoch 4.*\n",  # the second run resumes
    "under_tune.py": r"(?s).*\n?0\.[6-9]\d*\n$",
}


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_the_guide_prints_the_expected_output(folder: Path, name: str) -> None:
    printed = run(folder, name)
    assert re.fullmatch(PRINTS.get(name, ""), printed), printed


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.supervisor.close()


@pytest.mark.parametrize("module", TRAINABLES)
def test_trainable_of_the_guide_resumes_after_a_pause_under_a_supervisor(
    folder: Path, drivers: list[Driver], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("TUNER_CACHE_DIR", str(folder))
    with data_server() as server:
        server.content = b"0,1\n1,3\n2,5\n"
        config = {**CONFIG, "data": server.url()}
        driver = Driver(folder / "storage", f"{module}:train")
        drivers.append(driver)
        waiting: dict[str, Any] = driver.run_to(2, config=config)
        assert waiting["error"] is None
        assert driver.end("pause")["saved_step"] == 2
        driver.run_to(3, restore=2, config=config)
    assert [report["step"] for report in driver.reports] == [1, 2, 3]


@pytest.mark.extended
def test_student_of_the_guide_learns_from_another_trainable_of_it(
    folder: Path, drivers: list[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    teacher, student = (Driver(folder / "storage", f"{name}:train") for name in ("my_digits", "student"))
    drivers += [teacher, student]
    teacher.save_at(2, config=CONFIG)
    place = {"storage": str(folder / "storage"), "project": "default", "job": "job_1"}
    named = {**place, "trial": "trial_00000", "step": 2, "attempt": 1, "config": CONFIG}
    waiting = student.run_to(1, config=CONFIG, job="job_2", teacher=named)
    assert student.reports[0]["metrics"]["has_teacher"] is True
    assert waiting["usage"]["restored_bytes"] > 0
    assert waiting["meter"]["restore"] > 0


def test_every_block_of_the_guide_is_a_program_or_a_trainable() -> None:
    assert len(whole_files(GUIDE)) == GUIDE.read_text().count("```python")
    assert all("__main__" in code or "def train(" in code for code in BLOCKS.values())
