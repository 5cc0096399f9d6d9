"""E5: `Tuner.restore` of a run whose `experiment_state` file is torn. Does it fail, or does it start over?"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback, Tuner
from ray.tune.experiment import Trial

from benchmarks.ray_experiments.common import Plain, note, notes, one_line, private_ray, say, tuner


def worker(log: Path) -> type[Plain]:
    """A trainable that records each config with which it begins."""

    class Worker(Plain):
        def setup(self, config: dict[str, Any]) -> None:
            note(log, f"x={config.get('x')}")

        def step(self) -> dict[str, Any]:
            time.sleep(0.1)
            return {"done": self.iteration >= 2}

    return Worker


SPACE = {"x": tune.grid_search([1, 2, 3, 4])}


class Interrupt(Callback):
    """Interrupt the run when the third of its four trials completes."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if sum(trial.status == Trial.TERMINATED for trial in trials) == 2:
            os.kill(os.getpid(), signal.SIGUSR1)


def case(where: Path, title: str, *, tear: bool, again: dict[str, Any] | None = None) -> None:
    log, name = where / f"log {title}", title.replace(" ", "-")
    trainable = worker(log)
    tuner(trainable, where, name=name, space=SPACE, callbacks=[Interrupt()]).fit()
    first = notes(log)
    state = next((where / "results" / name).glob("experiment_state-*.json"))
    if tear:
        state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    try:
        results = Tuner.restore(str(where / "results" / name), trainable, param_space=again).fit()
        say(f"{title}: restored; errors {len(results.errors)}, trials in the result {len(results)}")
    except Exception as error:
        say(f"{title}: restore RAISED {one_line(error)}")
    say(f"  trials begun at first {first}, after restore {notes(log)[len(first) :]}")


def main() -> None:
    with private_ray(cpus=1) as path:
        case(path, "whole", tear=False)
        case(path, "torn", tear=True)
        case(path, "torn, with the space given again", tear=True, again=SPACE)


if __name__ == "__main__":
    main()
