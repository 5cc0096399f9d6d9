"""A Ray Tune script: the function and its `param_space`. `tuner submit` reads both from here."""

from typing import Any

from ray import tune

SPACE = {
    "rate": tune.loguniform(1e-4, 1e-1),
    "dropout": tune.quniform(0.0, 0.5, 0.05),
    "batch": tune.qrandint(16, 250, 16),
    "layers": tune.randint(1, 4),
    "width": tune.lograndint(16, 257),
    "model": {
        "activation": tune.choice(["relu", "gelu"]),
        "norm": tune.grid_search([True, False]),
        "depth": 3,
    },
    "data": {"folder": "/data", "shuffle": True},
    "seed": 7,
}


def train(config: dict[str, Any]) -> None:
    assert config["model"].keys() == {"activation", "norm", "depth"}
    for epoch in range(1, 5):
        tune.report({"loss": config["rate"] * config["model"]["depth"] / epoch})


if __name__ == "__main__":
    tune.Tuner(train, param_space=SPACE, tune_config=tune.TuneConfig(metric="loss", mode="min")).fit()
