"""Run the tests in three runs of pytest at the same time: the tests with a real Ray cluster or browser (system tests), the tests that
import PyTorch or Ray Tune, and all other tests.

    python -m tools.gate          the gate
    python -m tools.gate --all    all tests

System tests mostly wait for processes. The other two runs have a lower priority: they use only the processor time that is left, and cannot
make a system test late. All options are passed on to pytest. The exit status is that of the first run that fails.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LOWER_PRIORITY = 5
CLEANUP_S = (
    120  #: How long an interrupted run of pytest may take to stop its Ray clusters and database servers.
)


@dataclass(frozen=True, slots=True)
class Run:
    """One pytest run. On two cores, this number of workers was measured to be the fastest."""

    name: str
    marks: str
    workers: int
    niceness: int
    paths: tuple[str, ...] = ()  #: Arguments that select or leave out folders and files.
    variables: tuple[tuple[str, str], ...] = ()  #: Environment variables of the tests.

    def start(self, options: list[str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            self.marks,
            "-n",
            str(self.workers),
            "--durations=50",
            *self.paths,
            *options,
        ]
        # Without cached bytecode, each worker would compile all tests again.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return subprocess.Popen(
            ["nice", "-n", str(self.niceness), *words, "--dist", "loadfile", "--no-loadscope-reorder"],
            env={**environment, **dict(self.variables)},
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C does not reach the run and its workers. `main` interrupts each run once: a second SIGINT would end its cleanup.
            process_group=0,
        )


# Each worker imports all test files of its run. PyTorch, Ray Tune and scikit-learn take about 6 s of processor time,
# so the folders and files whose tests need them have a worker of their own.
HEAVY = (
    "tests/training",
    "tests/trainables",
    "tests/benchmarks",
    "tests/driver",
    "tests/worker/test_ranks.py",
    "tests/cluster/test_machine_watch.py",
    "tests/cluster/test_taking_away.py",
)
OTHERS = "not system and not browser"
# Threads of OpenMP wait for each other in busy loops. With several threads, a test of 2 s took 100 s at a lower priority next to the
# system tests.
ONE_THREAD = (("OMP_NUM_THREADS", "1"),)
# Playwright keeps an event loop running in its process. Tests that start their own loop would fail there;
# system tests start none.
RUNS = (
    Run("system and browser tests", "system or browser", 3, 0),
    Run("tests that import PyTorch or Ray Tune", OTHERS, 1, LOWER_PRIORITY, HEAVY, ONE_THREAD),
    Run(
        "other tests",
        OTHERS,
        3,
        LOWER_PRIORITY,
        tuple(f"--ignore={path}" for path in HEAVY),
        ONE_THREAD,
    ),
)


def main(options: list[str]) -> int:
    # On these signals, raise SystemExit, so that the `finally` below stops the runs of pytest. `nohup` ignores SIGHUP.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    # A shell starts background programs with SIGINT ignored, and the runs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    statuses = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-")))
        outputs = [folder / f"{number}.log" for number in range(len(RUNS))]
        files = [stack.enter_context(output.open("wb")) for output in outputs]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for run, file in zip(RUNS, files, strict=True):
                processes.append(run.start(options, file))
            for run, process, output in zip(RUNS, processes, outputs, strict=True):
                statuses.append(process.wait())
                took = time.monotonic() - began
                sys.stdout.write(f"== {run.name}, ended after {took:.0f} s\n{output.read_text()}\n")
                sys.stdout.flush()
        finally:
            stop(processes)
    # A run that a signal ended has a negative status.
    return next((status for status in statuses if status), 0)


def stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Interrupt the runs that are not over, wait until they have cleaned up, and kill those that take too long.

    SIGTERM would end pytest without the cleanup. Another Ctrl-C ends the wait. The Ray clusters and database servers of a run that is
    killed may stay.
    """
    running = [process for process in processes if process.poll() is None]
    deadline = time.monotonic() + CLEANUP_S
    try:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"a run of pytest did not clean up within {CLEANUP_S} s\n")
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers of pytest
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
