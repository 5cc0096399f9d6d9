"""A user's program: a `SpotSafe` trainable under Ray Tune alone, with its own Ray cluster.

`python -m tests.training.tune_program DIRECTORY` writes what Tune recorded to DIRECTORY/recorded.json.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from tuner.training import SpotSafe

STEPS = 6


def fragile(config: dict[str, Any]) -> list[float]:
    """Fail in the fourth step of the first run, and train for `config["steps"]`, or until Tune ends the trial. The losses
    depend on the parameters and generators.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    with SpotSafe(model=model, optimizer=optimizer, steps=config.get("steps")) as run:
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


class Rows(tune.Callback):  # type: ignore[misc]
    """Collect every result as it arrives, because Tune's own files may lose those before a failure."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.rows.append({name: result[name] for name in ("done_steps", "training_iteration", "loss", "pid")})


def record(folder: Path) -> dict[str, Any]:
    """Return Tune's results in the order of the steps, and how the trial ended."""
    collected = Rows()
    tuner = tune.Tuner(
        fragile,
        param_space={"mark": str(folder / "mark")},
        run_config=tune.RunConfig(
            name="all",
            storage_path=str(folder / "results"),
            failure_config=tune.FailureConfig(max_failures=1),
            stop={"training_iteration": STEPS},
            callbacks=[collected],
            verbose=0,
        ),
    )
    (result,) = tuner.fit()
    return {"rows": collected.rows, "error": str(result.error or "")}


def main() -> None:
    folder = Path(sys.argv[1])
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=1,
        _temp_dir=str(folder / "ray"),
        object_store_memory=100_000_000,
        log_to_driver=False,
    )
    try:
        recorded = record(folder)
    finally:
        ray.shutdown()
    assert (folder / "mark").exists()
    recorded["losses of a plain script"] = fragile({"mark": folder / "mark", "steps": STEPS})
    (folder / "recorded.json").write_text(json.dumps(recorded))


if __name__ == "__main__":
    main()
