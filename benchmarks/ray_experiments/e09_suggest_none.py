"""E9: the searcher has nothing to suggest and no trial exists. Which parts of Tune's loop continue?"""

import os
import signal
import threading
import time
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from benchmarks.ray_experiments.common import Plain, private_ray, say, tuner

SILENT_S = 20.0


class Worker(Plain):
    def step(self) -> dict[str, Any]:
        return {"done": True}


class Silent(Searcher):
    """Suggest a trial, then None for `SILENT_S`, then another trial if `more` is set, then FINISHED."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self._todo = [1, 2] if more else [1]
        self.suggest_calls, self.ended = 0, 0.0

    @property
    def silent(self) -> bool:
        return self.ended > 0 and time.monotonic() - self.ended < SILENT_S

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.ended == 0 and len(self._todo) > 0 and self._todo[0] == 1:
            return {"n": self._todo.pop(0)}
        if self.ended == 0 or self.silent:
            self.suggest_calls += self.silent
            return None
        return {"n": self._todo.pop(0)} if self._todo else Searcher.FINISHED  # type: ignore[no-any-return]

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.ended = self.ended or time.monotonic()

    def save(self, checkpoint_path: str) -> None: ...
    def restore(self, checkpoint_path: str) -> None: ...


class Watch(Callback):
    """Count the calls of hooks while the searcher returns None."""

    def __init__(self, silent: Silent) -> None:
        self._silent, self.counts = silent, {"on_step_begin": 0, "choose_trial_to_run": 0}

    def count(self, name: str) -> None:
        if self._silent.suggest_calls and self._silent.silent:
            self.counts[name] += 1

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        self.count("on_step_begin")


class Scheduler(FIFOScheduler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        self._watch.count("choose_trial_to_run")
        return super().choose_trial_to_run(tune_controller)


def case(path: Any, title: str, *, more: bool, signal_after_s: float | None = None) -> None:
    silent = Silent(more)
    watch = Watch(silent)
    if signal_after_s is not None:
        threading.Timer(signal_after_s, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    began = time.monotonic()
    tuner(
        Worker, path, search_alg=silent, num_samples=-1, scheduler=Scheduler(watch), callbacks=[watch]
    ).fit()
    ended = time.monotonic()
    say(
        f"{title}: silent for {SILENT_S:.0f} s, {silent.suggest_calls} calls of suggest; called meanwhile: {watch.counts}"
    )
    say(
        f"  fit() took {ended - began:.1f} s and returned {ended - silent.ended:.1f} s after its first trial's end"
    )


def main() -> None:
    with private_ray(cpus=1) as path:
        case(path, "then another trial", more=True)
        case(path, "SIGUSR1 after 8 s", more=False, signal_after_s=8.0)


if __name__ == "__main__":
    main()
