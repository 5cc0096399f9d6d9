"""E1: how long after a STOP in the middle of a step does a trial's process live?

The scheduler stops one trial three seconds after both have begun; another one keeps Tune's loop turning.
"""

import os
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from benchmarks.ray_experiments.common import (
    Plain,
    alive,
    environment,
    private_ray,
    recorded_error,
    say,
    tuner,
)


class Worker(Plain):
    def setup(self, config: dict[str, Any]) -> None:
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._step_s = new_config["step_s"][new_config["role"]]
        (Path(new_config["where"]) / new_config["role"]).write_text(str(os.getpid()))
        return True

    def step(self) -> dict[str, Any]:
        time.sleep(self._step_s)
        return {"steps": 1}


class Axe(FIFOScheduler):
    """Stop "victim" and watch its process. End "bystander" when that process is dead. "next" ends by itself."""

    def __init__(self, where: Path, kill: bool) -> None:
        super().__init__()
        self._where, self._kill, self._stopped, self.died = where, kill, 0.0, 0.0
        self._last_turn, self.longest_turn, self.error = 0.0, 0.0, ""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        now = time.monotonic()
        self.longest_turn = max(self.longest_turn, now - self._last_turn if self._last_turn else 0.0)
        self._last_turn = now
        pid_file = self._where / "victim"
        if pid_file.exists() and (self._where / "bystander").exists():
            if not self._stopped and now - pid_file.stat().st_mtime + time.time() - now > 3.0:
                self._stop(tune_controller)
            elif self._stopped and not self.died and not alive(int(pid_file.read_text())):
                self.died = now - self._stopped
        return super().choose_trial_to_run(tune_controller)

    def _stop(self, controller: Any) -> None:
        trial = next(t for t in controller.get_live_trials() if t.config["role"] == "victim")
        actor = trial.temporary_state.ray_actor
        self._stopped = time.monotonic()
        controller.stop_trial(trial)
        if self._kill:
            ray.kill(actor)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        over = trial.config["role"] == "next" or self.died
        return self.STOP if over else self.CONTINUE

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self.error = f"trial {trial.config['role']!r} failed: {recorded_error(trial)}"


def case(path: Path, title: str, step_s: float, *, kill: bool = False, reuse: bool = False) -> None:
    where = path / title.replace(" ", "-").replace("=", "")
    where.mkdir()
    axe = Axe(where, kill)
    roles = ["victim", "bystander", *(["next"] if reuse else [])]
    steps = {"victim": step_s, "bystander": 0.2, "next": 0.2}
    space = {"role": tune.grid_search(roles), "step_s": steps, "where": str(where)}
    results = tuner(Worker, where, space=space, scheduler=axe, reuse_actors=reuse).fit()
    ends = "all trials ended well" if not results.errors else axe.error
    say(f"{title}: dead after {axe.died:.1f} s; longest turn of the loop {axe.longest_turn:.1f} s; {ends}")


def main() -> None:
    with private_ray(cpus=2) as path:
        environment(TUNE_FORCE_TRIAL_CLEANUP_S="600")
        case(path, "step of 20 s left, defaults", 23.0)
        environment(TUNE_FORCE_TRIAL_CLEANUP_S="15")
        case(path, "endless step, CLEANUP_S=15", 600.0)
        environment(TUNE_FORCE_TRIAL_CLEANUP_S="5")
        case(path, "endless step, CLEANUP_S=5", 600.0)
        environment(TUNE_FORCE_TRIAL_CLEANUP_S="600")
        case(path, "endless step, stop_trial then ray.kill", 600.0, kill=True)
        case(path, "the same with reuse_actors", 600.0, kill=True, reuse=True)


if __name__ == "__main__":
    main()
