"""A service started as users start it: `tuner serve` in its own home with a real Ray cluster, and control of
all its processes.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tuner.client import Client
from tuner.schemas.job import Job

USER_CODE = Path(__file__).parent / "user_code"
TIMEOUT_S = 300.0
MARK = "TUNER_USER_TEST_HOME"  #: The variable by which the user code of a service is known, even after its worker has ended.


def until(what: str, condition: Callable[[], Any], *, timeout_s: float = TIMEOUT_S) -> Any:
    """Return the condition's result as soon as it is true.

    The limit only catches hangs. The pause between checks grows from 0.05 to 0.4 s, so that polling does not
    slow the processes down.
    """
    deadline, pause_s = time.monotonic() + timeout_s, 0.05
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.4)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


class Served:
    """A running service. `prices` sets TUNER_NODE_PRICES. The local node has two logical CPUs and `gpus`
    logical GPUs.
    """

    def __init__(self, home: Path, *, prices: str = "local=0.10", gpus: int = 0, **settings: str) -> None:
        self.home = home
        self.program = ["-m", "tuner.cli.main"]
        self.environment = {
            **os.environ,
            "TUNER_HOME": str(home),
            "TUNER_PORT": "0",
            "TUNER_NODE_PRICES": prices,
            "TUNER_LOCAL_CPUS": "2",
            "TUNER_LOCAL_GPUS": str(gpus),
            "TUNER_ALLOWED_MODULES": "*",
            "TUNER_PACKAGES": "on",
            "TUNER_CLOUD": "none",
            "PYTHONPATH": str(USER_CODE),
            MARK: str(home),
            **settings,
        }
        self.storage = settings.get("TUNER_STORAGE", str(home / "storage"))
        self._log = home / "serve.log"

    def start(self) -> "Served":
        """Start the service, and wait until it is ready. If it does not become ready, stop it."""
        self.home.mkdir(parents=True, exist_ok=True)
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "serve"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            self._wait()
        except BaseException:  # also Ctrl-C and the time limit of the test
            self.stop()
            raise
        return self

    def _wait(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        assert select.select([stdout], [], [], TIMEOUT_S)[0], (
            f"the service prints nothing within {TIMEOUT_S:.0f} s"
        )
        printed = stdout.readline()
        match = re.search(r"http://\S+?(?=,)", printed)
        assert match, f"{printed!r}: {self._log.read_text()[-2000:]}"
        self.client = Client(match[0], (self.home / "api_key").read_text().strip())
        until("the service is ready", self.client.is_ready)

    def kill_api(self) -> None:
        self.process.kill()
        self.process.wait()
        self.client.close()

    def restart(self) -> None:
        self.kill_api()
        self.start()

    def stop(self) -> None:
        """Stop the service and everything that it started, in any state. Do nothing if it was never started."""
        if not hasattr(self, "process"):
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if hasattr(self, "client"):
            self.client.close()
        assert self.tuner("stop").returncode == 0

    def tuner(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a `tuner` command with the settings of the service."""
        command = [sys.executable, "-m", "tuner.cli.main", *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    # Processes

    def head_pids(self) -> list[int]:
        import json

        return list(json.loads((self.home / "ray.json").read_text())["pids"])

    def drivers(self, job: str) -> list[psutil.Process]:
        return [p for p in self._descendants() if "tuner.service.driver" in line(p) and job in line(p)]

    def workers(self) -> list[psutil.Process]:
        """Return the Ray actors, which are the parents of fork servers."""
        servers = [p for p in self._descendants() if "tuner.worker.fork_server" in line(p)]
        return [
            parent
            for p in servers
            if (parent := _parent(p)) is not None and "fork_server" not in line(parent)
        ]

    def fork_servers(self) -> list[psutil.Process]:
        """Return the fork servers of this service, including those whose worker has ended."""
        return [
            p
            for p in psutil.process_iter()
            if "tuner.worker.fork_server" in line(p) and _mark(p) == str(self.home)
        ]

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.head_pids()[0]).children(recursive=True)
        except (psutil.Error, OSError, IndexError):
            return []

    def kill_driver(self, job: str) -> None:
        for process in until("the job has a driver", lambda: self.drivers(job)):
            kill(process)

    def kill_worker(self, job: str) -> None:
        """Kill the worker of a job. Its trainable must report the `fork_server` that it comes from."""
        kill(until("the job has a worker", lambda: self._worker(job)))

    def _worker(self, job: str) -> psutil.Process | None:
        running = (trial.id for trial in self.client.trials(job) if trial.state == "running")
        for trial in running:
            for point in self.client.trial(job, trial).curve[-1:]:
                for worker in self.workers():  # another worker may have replaced the one that reported
                    if point.metrics["fork_server"] in [child.pid for child in children(worker)]:
                        return worker
        return None

    def kill_head(self) -> None:
        """Kill all processes of the cluster, as a power loss would."""
        root = psutil.Process(self.head_pids()[0])
        for process in [root, *root.children(recursive=True)]:
            kill(process)

    # Jobs

    def submit(self, trainable: str, **changes: Any) -> Job:
        return self.client.submit(job(trainable, **changes))

    def finished(self, job: str) -> Job:
        return self.client.wait(job, timeout_s=TIMEOUT_S)

    def reports_at_least(self, job: str, count: int) -> None:
        until(f"{count} reports", lambda: self.has_reported(job, count))

    def has_reported(self, job: str, count: int) -> bool:
        """Return whether an unfinished job has reported at least `count` steps."""
        shown = self.client.job(job)
        assert shown.state in ("queued", "running"), shown
        return shown.progress.steps >= count


def job(trainable: str, **changes: Any) -> dict[str, Any]:
    """Return the request of a small job, with `changes` applied."""
    usual: dict[str, Any] = {
        "name": "test",
        "trainable": trainable,
        "objective": {"metric": "score", "mode": "max"},
        "search_space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "fidelity": {"min": 1, "max": 9, "reduction_factor": 3},
        "budget": {"usd": 0.001},
        "resources": {"max_concurrent_trials": 1},
    }
    return {**usual, **changes}


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    """Return the process's children, or an empty list if the process is gone."""
    try:
        return process.children(recursive=recursive)
    except psutil.Error:
        return []


def line(process: psutil.Process) -> str:
    """Return the process's command line, or an empty string if the process is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:
        return None


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:
        return None
