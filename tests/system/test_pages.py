"""Run every command and program that the documentation pages mark as run, in the order of each page, against
one real service.

tools/checks/blocks.py describes the marks.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.system.serving import Served
from tools.checks.blocks import CONSOLE, ROOT, Block, blocks, commands, pages
from tuner.cli.job_yaml import JobYaml
from tuner.cli.main import app

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
README = ROOT / "README.md"
OWN_TEST = {README, ROOT / "docs/tutorial.md"}
SHELL_SIGNS = set("|<>;&$`")
BUDGET = "budget: {usd: 0.002,"


def has_runs(page: Path) -> bool:
    return any(block.mark == "run" for block in blocks(page))


PAGES = [page for page in pages() if has_runs(page) and page not in OWN_TEST]


@pytest.fixture(scope="module")
def tried(served: Served) -> Iterator[Served]:
    """A service that has the README's job, which is submitted if it is missing. Quotas and budgets that the
    pages create are removed at the end.
    """
    if not any(job.name == "digits" for job in served.client.jobs(state="succeeded")):
        (job,) = [block for block in blocks(README) if block.mark == "file"]
        submitted = served.client.submit(yaml.load(job.text, JobYaml))  # noqa: S506  a SafeLoader
        served.client.wait(submitted.id)
    yield served
    served.client.put_quota()
    for budget in sorted(
        served.client.budgets().items, key=lambda shared_budget: shared_budget.parent is None
    ):
        served.client.remove_budget(budget.name)


def environment(served: Served) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TUNER_URL": served.client.url, "TUNER_HOME": str(served.home)}


def adapted(line: str, served: Served) -> str:
    """Return the line for this service: JOB becomes the newest job of the README's kind that has a best trial,
    and URLs and paths are replaced.
    """
    matching = (job for job in served.client.jobs() if job.name == "digits" and job.best_so_far)
    newest = next(matching, None)
    line = line.replace("JOB.yaml", "job.yaml").replace("JOB", newest.id if newest else "JOB")
    line = line.replace("benchmarks/data", str(ROOT / "benchmarks" / "data"))
    return line.replace("http://127.0.0.1:8000", served.client.url).replace("~/.tuner", str(served.home))


def run_line(line: str, served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a line and return its output: a `tuner` command in this process, because starting Python for each line would be slow,
    and any other line in a shell.
    """
    typed = adapted(line, served)
    if not line.startswith("tuner ") or SHELL_SIGNS & set(line):
        done = subprocess.run(
            ["sh", "-c", typed],
            cwd=folder,
            env=environment(served),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TUNER_URL", served.client.url)
        patch.setenv("TUNER_HOME", str(served.home))
        result = CliRunner().invoke(app, typed.split("#")[0].removeprefix("tuner "))
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    return result.stdout


def run_program(block: Block, served: Served, folder: Path) -> None:
    command = [sys.executable, "-c", block.text]
    done = subprocess.run(
        command, cwd=folder, env=environment(served), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.needs("curl")
def test_commands_and_program_of_the_readme_run(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has the page's money and few trials, because the rest of the money would only buy more trials. Less
    money would make the test fail on a busy machine, where a worker may take 20 s to start.
    """
    ran = 0
    for block in blocks(README):
        if block.mark == "file":
            assert BUDGET in block.text
            (tmp_path / block.detail).write_text(block.text.replace(BUDGET, f"{BUDGET} trials: 12,"))
        elif block.mark == "run" and block.language in CONSOLE:
            for line in commands(block):
                assert run_line(line, served, tmp_path, monkeypatch).strip(), line
                ran += 1
        elif block.mark == "run":
            run_program(block, served, tmp_path)
    assert ran >= 8


@pytest.mark.needs("curl")
@pytest.mark.extended
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_programs_of_a_page_run(
    page: Path, tried: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in blocks(page):
        if block.mark == "file":
            (tmp_path / block.detail).write_text(block.text)
    for block in blocks(page):
        if block.mark == "run" and block.language in CONSOLE:
            for line in commands(block):
                run_line(line, tried, tmp_path, monkeypatch)
        elif block.mark == "run":
            run_program(block, tried, tmp_path)
