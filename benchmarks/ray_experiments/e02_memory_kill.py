"""E2: an actor is killed by the system or by Ray's memory monitor. What happens to `fit()`?

The monitor's threshold is a share of the machine's memory: it is set 2 GB above what is in use now.
"""

import os
import signal
import time
from typing import Any

import psutil
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from benchmarks.ray_experiments.common import (
    Plain,
    environment,
    one_line,
    private_ray,
    recorded_error,
    say,
    tuner,
)

GB = 1 << 30


class Victim(Plain):
    def step(self) -> dict[str, Any]:
        if self.config["death"] == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config["death"] == "memory":
            self._hoard()
        time.sleep(0.3)
        return {"done": self.iteration >= 9}

    def _hoard(self) -> None:
        """Allocate and write six GB, at two GB per second."""
        self._held = []
        for _ in range(60):
            self._held.append(b"x" * (GB // 10))
            time.sleep(0.05)


class Listener(FIFOScheduler):
    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        say(f"  on_trial_error of {trial.config['death']!r}: {recorded_error(trial)}")


def case(death: str, monitor: bool) -> None:
    used, total = psutil.virtual_memory().used, psutil.virtual_memory().total
    environment(RAY_memory_monitor_refresh_ms="100" if monitor else "0")
    environment(RAY_memory_usage_threshold=f"{(used + 2 * GB) / total:.3f}")
    say(f"death by {death}, with a healthy trial; Ray's memory monitor is {'on' if monitor else 'off'}")
    with private_ray(cpus=2) as path:
        space = {"death": {"grid_search": [death, "none"]}}
        began = time.monotonic()
        try:
            results = tuner(Victim, path, space=space, scheduler=Listener()).fit()
            ended = [result.metrics.get("training_iteration") for result in results if not result.error]
            say(f"  fit() returned after {time.monotonic() - began:.1f} s; healthy trials' steps: {ended}")
        except Exception as error:
            say(f"  fit() RAISED after {time.monotonic() - began:.1f} s: {one_line(error)}")
            say(
                f"  caused by {type(error.__cause__).__name__}, of {type(error.__cause__).__mro__[1].__name__}"
            )


def main() -> None:
    case("SIGKILL", monitor=False)
    case("memory", monitor=True)


if __name__ == "__main__":
    main()
