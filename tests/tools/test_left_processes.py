"""The check for processes that a run left behind finds those of the run, and no others."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tools import left_processes

MARK = f"test-{uuid4()}"  # Other checkouts may run this file at the same time.
SLEEP = ("sleep", "300")


@contextmanager
def running(*command: str, mark: str | None = None) -> Iterator[int]:
    environment = {} if mark is None else {left_processes.VARIABLE: mark}
    process = subprocess.Popen(command, env={"PATH": "/usr/bin:/bin", **environment})
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_processes_of_the_run_are_found_by_mark_or_checkout(tmp_path: Path) -> None:
    since = time.time() - 60  # Start times are rounded, and count from when the machine started.
    unmarked = (sys.executable, "-c", "import time; time.sleep(300)")
    with ExitStack() as stack:
        marked = stack.enter_context(running(*SLEEP, mark=MARK))
        from_here = stack.enter_context(running(*unmarked, str(tmp_path / "program.py")))
        for mark in (None, "the mark of another run"):
            stack.enter_context(running(*SLEEP, mark=mark))
        stack.enter_context(running(*unmarked, f"{tmp_path}-2/program.py"))
        assert {process.pid for process in left_processes.left(MARK, since, tmp_path)} == {marked, from_here}
        # A process from before the run is not the run's, unless it has its mark.
        assert [process.pid for process in left_processes.left(MARK, since + 3600, tmp_path)] == [marked]


def test_program_prints_the_command_lines_and_the_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(left_processes, "GRACE_S", 0)
    since = str(time.time() + 3600)
    with running(*SLEEP, mark=MARK) as pid:
        assert left_processes.main(MARK, since) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("1\n", f"left running: {pid} sleep 300\n")
    assert left_processes.main(MARK, since) == 0
    assert capsys.readouterr() == ("0\n", "")
