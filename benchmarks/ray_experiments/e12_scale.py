"""E12: what do 100 and 500 short trials cost the driver, and what do reused actors and Tune's save at the end change?"""

import os
import time
from pathlib import Path
from typing import Any

import psutil
from ray.tune import Callback, CheckpointConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from benchmarks.ray_experiments.common import Plain, environment, note, notes, private_ray, say, tuner

RESULTS = 5


class Worker(Plain):
    """Report results at once, so that only Tune is measured."""

    def setup(self, config: dict[str, Any]) -> None:
        note(Path(config["log"]), os.getpid())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True

    def step(self) -> dict[str, Any]:
        return {"loss": 1.0, "done": self.iteration >= RESULTS - 1}


class Plan(Searcher):
    """Suggest the given number of trials, then FINISHED."""

    def __init__(self, trials: int, log: Path) -> None:
        super().__init__()
        self._left, self._log = trials, str(log)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        if not self._left:
            return str(Searcher.FINISHED)
        self._left -= 1
        return {"log": self._log, "n": self._left}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...
    def save(self, checkpoint_path: str) -> None: ...
    def restore(self, checkpoint_path: str) -> None: ...


class Pulse(Callback):
    """Count the results."""

    results = 0

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.results += 1


def case(path: Path, trials: int, *, reuse: bool, save: bool) -> None:
    me, name = psutil.Process(), f"{trials}-{int(reuse)}-{int(save)}"
    log, pulse = path / f"log-{name}", Pulse()
    before, cpu, began = me.memory_info().rss, sum(me.cpu_times()[:2]), time.monotonic()
    tuner(
        Worker,
        path,
        name=name,
        num_samples=-1,
        search_alg=Plan(trials, log),
        scheduler=FIFOScheduler(),
        callbacks=[pulse],
        reuse_actors=reuse,
        checkpoint_config=CheckpointConfig(checkpoint_at_end=save),
    ).fit()
    wall, cpu = time.monotonic() - began, sum(me.cpu_times()[:2]) - cpu
    rss = me.memory_info().rss
    say(
        f"{trials} trials, {'reused' if reuse else 'new'} actors, {'a' if save else 'no'} save at the end: "
        f"{wall:.1f} s, {1000 * wall / trials:.0f} ms a trial; driver's CPU {1000 * cpu / trials:.1f} ms a trial, "
        f"{1000 * cpu / pulse.results:.2f} ms a result; {len(notes(log))} actors; "
        f"RSS {rss >> 20} MB (+{(rss - before) >> 20})"
    )


def main() -> None:
    environment(TUNE_GLOBAL_CHECKPOINT_S="60", TUNE_MAX_PENDING_TRIALS_PG="2")
    with private_ray(cpus=2) as path:
        case(path, 10, reuse=False, save=False)
        case(path, 100, reuse=True, save=True)
        case(path, 100, reuse=True, save=False)
        case(path, 500, reuse=True, save=False)
        case(path, 500, reuse=True, save=True)


if __name__ == "__main__":
    main()
