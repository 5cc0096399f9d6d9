"""A user's program: `SpotSafe` trainables under Ray Tune alone, with its own Ray cluster.

`python -m tests.training.tune_program DIRECTORY` writes what Tune recorded to DIRECTORY/recorded.json.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from trainables import digits_mlp
from tuner.training import SpotSafe


def fragile(config: dict[str, Any]) -> list[float]:
    """Fail in the fourth step of the first run. The losses depend on the parameters and generators."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    with SpotSafe(model=model, optimizer=optimizer, steps=6) as run:
        for step in run.steps():
            if step == 3 and not Path(config["mark"]).exists():
                Path(config["mark"]).touch()
                raise RuntimeError("an unlucky moment")
            loss = model(torch.randn(4, 3)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            run.report(loss=losses[-1], done_steps=step + 1, pid=os.getpid())
    return losses


def endless(config: dict[str, Any]) -> None:
    """Train without a number of steps, until Tune's stop criterion ends the trial."""
    with SpotSafe(model=torch.nn.Linear(1, 1)) as run:
        for step in run.steps():
            run.report(done_steps=step + 1)


CASES: dict[str, Callable[[dict[str, Any]], object]] = {
    "interrupted": fragile,
    "endless": endless,
    "digits_mlp": lambda config: digits_mlp.train({"width": 8}),
}


class Rows(tune.Callback):  # type: ignore[misc]
    """Collect every result as it arrives, because Tune's own files may lose those before a failure."""

    def __init__(self) -> None:
        self.by_case: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        wanted = ("done_steps", "training_iteration", "loss", "pid", "val_accuracy")
        self.by_case[trial.config["case"]].append({name: result.get(name) for name in wanted})


def train(config: dict[str, Any]) -> None:
    CASES[config["case"]](config)


def record_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Return, by case, Tune's results in the order of the steps, and how the trial ended."""
    rows = Rows()
    tuner = tune.Tuner(
        train,
        param_space={"case": tune.grid_search(list(CASES)), "mark": str(folder / "mark")},
        run_config=tune.RunConfig(
            name="all",
            storage_path=str(folder / "results"),
            failure_config=tune.FailureConfig(max_failures=1),
            stop={"training_iteration": 6},
            callbacks=[rows],
            verbose=0,
        ),
    )
    found = {}
    for result in tuner.fit():
        case = result.config["case"]
        found[case] = {"rows": rows.by_case[case], "error": str(result.error or "")}
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=2,
        _temp_dir=str(folder / "ray"),
        object_store_memory=100_000_000,
        log_to_driver=False,
    )
    try:
        recorded = record_all(folder)
    finally:
        ray.shutdown()
    assert (folder / "mark").exists()
    recorded["plain script"] = {"losses": fragile({"mark": folder / "mark"})}
    (folder / "recorded.json").write_text(json.dumps(recorded))


if __name__ == "__main__":
    main()
