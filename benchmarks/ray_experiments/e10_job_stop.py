"""E10: a Ray Job that runs Tune is stopped. What can its driver still do, depending on the signal and its handler?"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from benchmarks.ray_experiments.common import Plain, note, notes, say, scratch, tuner, wait_for
from tuner.cluster.head import LocalHead
from tuner.cluster.jobs import RayJobs

DEFAULT = {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": "3"}
OWN = {"TUNE_DISABLE_SIGINT_HANDLER": "1"}


class Worker(Plain):
    def step(self) -> dict[str, Any]:
        time.sleep(0.5)
        return {"loss": 1.0}


class Diary(Callback):
    """Record which hooks and blocks the driver reaches."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if info["result"]["training_iteration"] == 2:
            note(self._log, "training")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        note(self._log, "on_trial_complete")

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        note(self._log, "on_experiment_end")


class Ender(FIFOScheduler):
    """Stop every trial at its next result after SIGINT, through a handler of its own, as our loop does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        return self.STOP if self.asked else self.CONTINUE


class Endless(Searcher):
    def __init__(self, ender: Ender) -> None:
        super().__init__()
        self._ender = ender

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        return Searcher.FINISHED if self._ender.asked else {"x": 1}  # type: ignore[no-any-return]

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...
    def save(self, checkpoint_path: str) -> None: ...
    def restore(self, checkpoint_path: str) -> None: ...


def driver(where: Path) -> None:
    """Run Tune as the driver of the job."""
    log, ender = where / "log", Ender()
    try:
        run = tuner(
            Worker,
            where,
            search_alg=Endless(ender),
            num_samples=-1,
            scheduler=ender,
            callbacks=[Diary(log)],
        )
        if os.environ.get("TUNE_DISABLE_SIGINT_HANDLER") == "1":
            signal.signal(signal.SIGINT, ender.ask)
        results = run.fit()
        states = [trial.status for trial in results._experiment_analysis.trials]
        note(log, f"fit_returned:{'+'.join(sorted(set(states)))}")
    finally:
        note(log, "finally")


def case(jobs: RayJobs, path: Path, title: str, env: dict[str, str]) -> None:
    where, name = path / title.replace(" ", "-"), title.replace(" ", "-")
    where.mkdir()
    log = where / "log"
    command = f"exec {sys.executable} -m benchmarks.ray_experiments.e10_job_stop {where}"
    jobs.submit(name, command, env={"PYTHONPATH": str(Path.cwd()), **env})
    if wait_for(lambda: "training" in notes(log), 40.0) is None:
        say(f"{title}: never began: {jobs.logs(name)[-2000:]}")
        return
    jobs.stop(name)
    took = wait_for(lambda: jobs.status(name) not in ("pending", "running"), 60.0)
    say(f"{title}: {jobs.status(name)} after {took or 60.0:.1f} s; the driver's diary: {notes(log)}")
    states = list((where / "results" / "run").glob("experiment_state-*.json"))
    trials = [json.loads(data) for file in states for data, _ in json.loads(file.read_text())["trial_data"]]
    say(f"  in the snapshot on storage: {[trial['status'] for trial in trials] if states else 'no snapshot'}")


def main() -> None:
    with scratch() as path:
        head = LocalHead(path / "home", cpus=1)
        try:
            with contextlib.closing(head.dashboard(head.find_or_start())) as dashboard:
                jobs = RayJobs(dashboard)
                case(jobs, path, "SIGTERM and 3 s as by default", DEFAULT)
                case(jobs, path, "SIGINT and 120 s with the handler of Tune", {})
                case(jobs, path, "SIGINT and 120 s with a handler of our own", OWN)
        finally:
            head.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        driver(Path(sys.argv[1]))
    else:
        main()
