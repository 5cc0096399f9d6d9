"""Follow the tutorial from its text alone: in an empty directory, with its own `tuner serve`, and with every
file and command as shown.
"""

import contextlib
import difflib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.checks.blocks import CONSOLE, ROOT, Block, blocks, commands
from tuner.cli.main import app

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
PAGE = blocks(ROOT / "docs/tutorial.md")
ALREADY = ("make install", "source .venv/bin/activate")  # already done, because these tests run
#: These commands run in the process of the test, because each start of Python costs about a second of processor time.
ASKING = re.compile(r"tuner (trainables|plan|jobs|best|pareto|bill|topup|watch)( [\w.$-]+)*")


class Newcomer:
    """A user who types what the page shows.

    Only the port differs, and the machine has one CPU at four times the page's price, so that budgets last a quarter as long.
    """

    def __init__(self, folder: Path) -> None:
        self._desk = folder / "desk"
        self._desk.mkdir()
        self._home = folder / "home"
        self._home.mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # Remove OMP_NUM_THREADS, as in most terminals. PyTorch then uses all cores.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TUNER_", "OMP_"))}
        # Its threads must not spin while they wait, because other tests need the processors.
        clean["OMP_WAIT_POLICY"] = "passive"
        small = {"TUNER_PORT": "0", "TUNER_LOCAL_CPUS": "1", "TUNER_CLOUD": "none"}
        price = {"TUNER_NODE_PRICES": "local=0.20"}
        self._environment = {**clean, **small, **price, "PATH": path, "HOME": str(self._home)}
        self._service: subprocess.Popen[bytes] | None = None
        self._job = "JOB"

    def save(self, name: str, text: str) -> None:
        (self._desk / name).write_text(text)

    def start(self, line: str) -> str:
        """Run a line in a terminal of its own, and return the two lines that it prints."""
        here, there = pty.openpty()
        with (self._home / "serve.log").open("w") as log:
            self._service = subprocess.Popen(
                ["sh", "-c", f"exec env {line}"],
                cwd=self._desk,
                env=self._environment,
                stdout=there,
                stderr=log,
            )
        os.close(there)
        self._terminal = os.fdopen(here)
        printed = self._terminal.readline() + self._terminal.readline()
        match = re.search(r"http://\S+?(?=,)", printed)
        assert match, printed + (self._home / "serve.log").read_text()
        self._environment["TUNER_URL"] = match[0]
        return printed

    def type(self, line: str, *, refused: bool = False) -> str:
        run = self._ask if ASKING.fullmatch(line) else self._run
        status, printed = run(line.replace("JOB", self._job))
        assert status == (1 if refused else 0), f"{line}\n{printed}"
        if submitted := re.search(r"^submitted (job_\w+)", printed, re.MULTILINE):
            self._job = submitted[1]
        return printed

    def _run(self, line: str) -> tuple[int, str]:
        """Run a line in a shell, and return its exit status and what it prints."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self._desk,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def _ask(self, line: str) -> tuple[int, str]:
        """Run a `tuner` command in this process, and return its exit status and what it prints."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._desk)
            for name in ("HOME", "TUNER_URL"):
                patch.setenv(name, self._environment[name])
            done = CliRunner().invoke(app, line.split()[1:])
        return done.exit_code, done.output

    def leave(self) -> None:
        if self._service is not None:
            with contextlib.suppress(ProcessLookupError):
                self._service.send_signal(signal.SIGINT)
            try:
                self._service.wait(30)
            except subprocess.TimeoutExpired:
                self._service.kill()
            self._terminal.close()
            self.type("tuner stop")


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    user = Newcomer(tmp_path)
    yield user
    user.leave()


def test_tutorial_commands_print_the_shown_output(newcomer: Newcomer) -> None:
    printed, ran, outputs = "", 0, dict[str, str]()
    for block in PAGE:
        if block.mark == "file":
            newcomer.save(block.detail, block.text)
        elif block.mark == "output":
            assert_like(block, printed)
        elif block.language in CONSOLE:
            for line in commands(block):
                printed = do(newcomer, line, block)
                outputs.setdefault(line, printed)
                ran += 1
    assert ran >= 15
    best = re.match(r"(accuracy \S+) by \S+ at step (\d+)", outputs["tuner best JOB"])
    assert best, outputs["tuner best JOB"]
    assert outputs["tuner train JOB"].splitlines()[-1] == f"step {best[2]}: {best[1]}"
    expected = re.search(r"(\S+) at epoch (\d+)", outputs["python train_best.py JOB"])
    assert expected, outputs["python train_best.py JOB"]
    assert (
        outputs["python train_best.py JOB"].splitlines()[-1] == f"epoch {expected[2]}: accuracy {expected[1]}"
    )


def do(newcomer: Newcomer, line: str, block: Block) -> str:
    if line in ALREADY:
        return ""
    if block.mark == "start":
        return newcomer.start(line)
    return newcomer.type(line, refused=block.detail == "refused")


def assert_like(block: Block, printed: str) -> None:
    """Assert that the page's output matches what was printed, except for figures, ids and up to a fifth of the
    words.
    """
    shown = words(block.text)
    missing = [word for word in shown if word not in words(printed)]
    assert len(missing) <= len(shown) / 5, f"{block}: {missing} in\n{printed}"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]{3,}", re.sub(r"(job|trial)_\w+|/home/\S+|http\S+", "", text.lower()))


def test_tutorial_changes_few_lines_of_the_script() -> None:
    """Indentation is ignored."""
    before, after = ([line.strip() for line in text.splitlines()] for text in versions("classify.py"))
    assert len(before) <= 40
    changed = [line for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:]]
    assert len(changed) <= 14, changed


def versions(name: str) -> list[str]:
    return [block.text for block in PAGE if block.mark == "file" and block.detail == name]
