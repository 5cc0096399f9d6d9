"""E6: what does `Tuner.restore` do with paused trials, and does setting them PAUSED in `on_trial_add` help?"""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Tuner
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from benchmarks.ray_experiments.common import environment, note, notes, private_ray, say, tuner


def trainable_of(log: Path) -> type[tune.Trainable]:
    class Worker(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            note(log, f"x={config['x']}")

        def step(self) -> dict[str, Any]:
            time.sleep(0.1)
            return {"done": self.iteration >= 5}

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {"something": 1}

        def load_checkpoint(self, checkpoint: Any) -> None: ...

    return Worker


class Rung(TrialScheduler):
    """Pause all trials at their second step, promote none, and interrupt the run when it has been idle for a second."""

    def __init__(self) -> None:
        super().__init__()
        self._idle_since = 0.0

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if os.environ.get("E6_TRICK") and trial.last_result:
            trial.set_status(Trial.PAUSED)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        return self.PAUSE if result["training_iteration"] == 2 else self.CONTINUE

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        trials = tune_controller.get_trials()
        idle = len(trials) == 3 and all(trial.status == Trial.PAUSED for trial in trials)
        now = time.monotonic()
        self._idle_since = (self._idle_since or now) if idle else 0.0
        if idle and now - self._idle_since > 1.0:
            os.kill(os.getpid(), signal.SIGUSR1)
            self._idle_since = now + 3600.0

    def on_trial_complete(self, *_: Any) -> None: ...
    def on_trial_error(self, *_: Any) -> None: ...
    def on_trial_remove(self, *_: Any) -> None: ...
    def debug_string(self) -> str:
        return ""


def statuses(results: tune.ResultGrid) -> dict[str, int]:
    return dict(Counter(trial.status for trial in results._experiment_analysis.trials))


def case(where: Path, title: str, trick: str) -> None:
    log = where / f"log-{title}"
    trainable = trainable_of(log)
    environment(E6_TRICK="")
    space = {"x": tune.grid_search([1, 2, 3])}
    before = tuner(trainable, where, name=title, space=space, scheduler=Rung()).fit()
    first = notes(log)
    environment(E6_TRICK=trick)
    after = Tuner.restore(str(where / "results" / title), trainable).fit()
    say(
        f"{title}: interrupted with {statuses(before)}; after restore begun again: {notes(log)[len(first) :]}"
    )
    steps = sorted(trial.last_result["training_iteration"] for trial in after._experiment_analysis.trials)
    say(f"  the restored run ended with {statuses(after)}, at steps {steps}")


def main() -> None:
    with private_ray(cpus=2) as path:
        case(path, "as-it-is", "")
        case(path, "with-the-trick", "1")


if __name__ == "__main__":
    main()
