"""E11: does Tune's `OptunaSearch` work with Optuna 5, and what does it report to the study about a trial that ASHA stopped?"""

import time
from collections import Counter
from typing import Any

import optuna
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from benchmarks.ray_experiments.common import Plain, private_ray, say, tuner

STEPS = 8
SAMPLES = 24


class Bowl(Plain):
    """A loss that falls at every step towards (x - 0.3)². A config of kind "nan" diverges at its first step."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        return True

    def step(self) -> dict[str, Any]:
        config, step = self.config, self.iteration + 1
        if config["kind"] == "nan":
            return {"loss": float("nan"), "done": True}
        return {"loss": (config["x"] - 0.3) ** 2 + 1.0 / step, "done": step >= STEPS}


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=1, n_startup_trials=6)
    search = OptunaSearch(metric="loss", mode="min", sampler=sampler)
    space = {
        "x": tune.uniform(0, 1),
        "rate": tune.loguniform(1e-5, 1e-1),
        "kind": tune.choice(["a", "b", "nan"]),
        "n": tune.randint(1, 9),
    }
    with private_ray() as path:
        began = time.monotonic()
        scheduler = ASHAScheduler(metric="loss", mode="min", max_t=STEPS, grace_period=2, reduction_factor=2)
        results = tuner(
            Bowl,
            path,
            space=space,
            search_alg=search,
            scheduler=scheduler,
            num_samples=SAMPLES,
            reuse_actors=True,
        ).fit()
        say(f"optuna {optuna.__version__}: {len(results)} trials in {time.monotonic() - began:.1f} s")
        say(f"  errors: {len(results.errors)}")
    study = search._ot_study
    say(f"  states in the study: {dict(Counter(trial.state.name for trial in study.trials))}")
    ended = [result.metrics["training_iteration"] for result in results if result.metrics]
    say(
        f"  trials by their last step: {dict(sorted(Counter(ended).items()))}; ASHA's rungs are 2, 4 and {STEPS}"
    )
    lasts = {round(result.metrics["loss"], 9) for result in results if result.metrics}
    counts = Counter(
        (
            trial.params["kind"] == "nan",
            trial.state.name,
            trial.value is not None and round(trial.value, 9) in lasts,
        )
        for trial in study.trials
    )
    for (diverged, state, last), count in sorted(counts.items()):
        value = "with the loss of the last step" if last else "without a value"
        say(f"  {count} {'diverged' if diverged else 'healthy'} trials: {state}, {value}")


if __name__ == "__main__":
    main()
