"""E8: a callback or a scheduler raises. What happens to the run, the actors and the trial?"""

import os
import time
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from benchmarks.ray_experiments.common import (
    Plain,
    alive,
    note,
    notes,
    one_line,
    private_ray,
    say,
    tuner,
    wait_for,
)

RAISED_AT: list[float] = []
HOOKS = ("callback.on_trial_result", "scheduler.on_trial_result", "scheduler.choose_trial_to_run")


def fail(where: str) -> None:
    RAISED_AT.append(time.monotonic())
    raise ValueError(f"from {where}")


class Worker(Plain):
    """Report every 0.2 s. With the role "long", run one step of ten minutes."""

    def setup(self, config: dict[str, Any]) -> None:
        note(Path(config["log"]), os.getpid())

    def step(self) -> dict[str, Any]:
        time.sleep(600.0 if self.config["role"] == "long" else 0.2)
        return {"done": self.iteration >= 4}


class Raising(Callback):
    def __init__(self, hook: str) -> None:
        self._hook = hook

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if self._hook == "callback.on_trial_result":
            fail("the callback")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if self._hook == "callback.on_trial_complete":
            fail("on_trial_complete")


class RaisingScheduler(FIFOScheduler):
    def __init__(self, hook: str) -> None:
        super().__init__()
        self._hook = hook

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if self._hook == "scheduler.on_trial_result":
            fail("the scheduler")
        return self.CONTINUE

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        results = [trial.last_result.get("training_iteration") for trial in tune_controller.get_trials()]
        if self._hook == "scheduler.choose_trial_to_run" and any(results):
            fail("the scheduler")
        return super().choose_trial_to_run(tune_controller)


def case(path: Path, hook: str) -> None:
    """Run two trials, one of which is in a step of ten minutes."""
    log = path / hook
    space = {"log": str(log), "role": tune.grid_search(["short", "long"])}
    RAISED_AT.clear()
    try:
        tuner(Worker, path, space=space, scheduler=RaisingScheduler(hook), callbacks=[Raising(hook)]).fit()
    except Exception as error:
        took = time.monotonic() - RAISED_AT[0]
        pids = [int(pid) for pid in notes(log)]
        left = [alive(pid) for pid in pids]
        dead = wait_for(lambda: not any(alive(pid) for pid in pids), 30.0)
        say(f"{hook}: fit() RAISED {one_line(error)}")
        say(f"  {took:.1f} s after its hook did; actors still alive then: {sum(left)} of {len(pids)};")
        say(f"  all dead {'never' if dead is None else f'{dead:.1f} s'} later, while the driver continues")


def completed(path: Path, max_failures: int) -> None:
    """Run a trial that completes, with a callback that raises at its end."""
    hook, log = "callback.on_trial_complete", path / f"complete-{max_failures}"
    space = {"log": str(log), "role": "short"}
    results = tuner(Worker, path, space=space, callbacks=[Raising(hook)], max_failures=max_failures).fit()
    say(f"{hook}, max_failures={max_failures}: fit() returned with {len(results.errors)} failed trials;")
    say(f"  the completed trial was run {len(notes(log))} times")


def main() -> None:
    with private_ray(cpus=2) as path:
        for hook in HOOKS:
            case(path, hook)
        completed(path, 0)
        completed(path, 2)


if __name__ == "__main__":
    main()
