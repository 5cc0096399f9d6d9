"""The README's commands and programs, run in its order against a real service."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.serving import Served

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CLUSTER = "tuner cluster --spot 2 --on-demand 1"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
STARTS = (
    "make demo",
    "make serve",
    "source .venv/bin/activate",
    CLUSTER,
)  # what these tests have done by themselves


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(README) if kind == language]


def environment(served: Served) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TUNER_URL": served.client.url, "TUNER_HOME": str(served.home)}


def test_the_commands_of_the_readme_do_what_it_says(served: Served, tmp_path: Path) -> None:
    (tmp_path / "digits.yaml").write_text(blocks("yaml")[0])
    lines = [line for block in blocks("console") for line in block.strip().splitlines() if line not in STARTS]
    assert len(lines) >= 9
    for line in lines:
        ran = command(line, served)
        done = subprocess.run(
            ["sh", "-c", ran],
            cwd=tmp_path,
            env=environment(served),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{ran}\n{done.stdout}\n{done.stderr}"
        assert done.stdout.strip(), ran


def command(line: str, served: Served) -> str:
    """The line with the newest job for JOB, and this service for the usual one."""
    newest = next(iter(served.client.jobs()), None)
    line = line.replace("JOB", newest.id if newest else "JOB")
    line = line.replace("benchmarks/data", str(ROOT / "benchmarks" / "data"))
    return line.replace("http://127.0.0.1:8000", served.client.url).replace("~/.tuner", str(served.home))


def test_the_python_program_of_the_readme_runs(served: Served, tmp_path: Path) -> None:
    program = blocks("python")[0]
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(served),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "learning_rate" in done.stdout
