"""E4: `max_concurrent_trials=2` and a scheduler that pauses, with four samples. Does the run ever end?"""

import os
import signal
import time
from collections import Counter
from typing import Any

from ray import tune
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from benchmarks.ray_experiments.common import Plain, private_ray, say, tuner

PATIENCE_S = 15.0


class Worker(Plain):
    def step(self) -> dict[str, Any]:
        time.sleep(0.1)
        return {"loss": self.config["x"]}


class Rung(TrialScheduler):
    """A rung with promotion: each trial pauses at step 2, and none continues before all four have reached it."""

    def __init__(self) -> None:
        super().__init__()
        self._paused: set[Trial] = set()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        if result["training_iteration"] < 2:
            return self.CONTINUE
        if trial in self._paused:
            return self.STOP
        self._paused.add(trial)
        return self.PAUSE

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        waiting = [trial for trial in tune_controller.get_trials() if trial.status == Trial.PAUSED]
        return waiting[0] if waiting and len(self._paused) == 4 else None

    def on_trial_add(self, *_: Any) -> None: ...
    def on_trial_complete(self, *_: Any) -> None: ...
    def on_trial_error(self, *_: Any) -> None: ...
    def on_trial_remove(self, *_: Any) -> None: ...
    def debug_string(self) -> str:
        return ""


class Patience(Callback):
    """Interrupt a run in which nothing happens anymore."""

    def __init__(self) -> None:
        self._seen, self._since, self.turns, self.stuck = Counter[str](), time.monotonic(), 0, False

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        now = Counter(trial.status for trial in trials)
        if now != self._seen or now[Trial.RUNNING]:
            self._seen, self._since, self.turns = now, time.monotonic(), 0
        self.turns += 1
        if not self.stuck and time.monotonic() - self._since > PATIENCE_S:
            self.stuck = True
            os.kill(os.getpid(), signal.SIGUSR1)


def case(title: str, path: Any, **options: Any) -> None:
    patience = Patience()
    space = {"x": tune.uniform(0, 1)}
    results = tuner(
        Worker, path, space=space, num_samples=4, scheduler=Rung(), callbacks=[patience], **options
    ).fit()
    states = Counter(trial.status for trial in results._experiment_analysis.trials)
    end = (
        f"stuck: {PATIENCE_S:.0f} s and {patience.turns} turns without any event"
        if patience.stuck
        else "ended"
    )
    say(f"{title}: {end}; trials: {dict(states)}")


def main() -> None:
    with private_ray() as path:
        case("no limit of concurrency", path)
        case("max_concurrent_trials=2", path, max_concurrent_trials=2)


if __name__ == "__main__":
    main()
