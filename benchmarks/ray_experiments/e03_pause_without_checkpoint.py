"""E3: a trial without a checkpoint is paused. At which step does it continue when it is resumed?"""

import time
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from benchmarks.ray_experiments.common import note, private_ray, say, tuner


def train(config: dict[str, Any]) -> None:
    note(Path(config["log"]), "began")
    for step in range(1, 6):
        time.sleep(0.2)
        note(Path(config["log"]), f"step-{step}")
        tune.report({"step": step})


class PauseOnce(FIFOScheduler):
    """Pause the trial once, at its third step. The parent class resumes paused trials."""

    def __init__(self) -> None:
        super().__init__()
        self._paused = False

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if result["step"] == 3 and not self._paused:
            self._paused = True
            return self.PAUSE
        return self.CONTINUE


def main() -> None:
    with private_ray() as path:
        log = path / "log"
        results = tuner(train, path, space={"log": str(log)}, scheduler=PauseOnce()).fit()
        say(f"what the trainable did: {' '.join(log.read_text().split())}")
        metrics = results[0].metrics
        say(f"errors {len(results.errors)}; training_iteration {metrics['training_iteration']}")
        say(f"time_total_s {metrics['time_total_s']:.1f}, of {8 * 0.2:.1f} s of training")


if __name__ == "__main__":
    main()
