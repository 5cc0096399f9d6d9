"""`python -m benchmarks.frameworks`: the processor time of training with tuner's adapter of a framework, divided by that of the bare
framework.

Each pair of trainings runs in a process of its own under a real worker: once bare and once with the adapter, in an order that alternates
from pair to pair. The time is the processor time of the training process with all of its threads, for its fastest step. Every step has the
same work, and other programs on the machine can only make a step slower. Imports and saves are not included. The last column is the
processor time within the adapter's own methods, as a share of the whole; other programs hardly change it. `python -m
benchmarks.checkpointing` measures the service's saves.

If names of frameworks are given as arguments, only these frameworks are measured. `--pairs` and `--steps` set the numbers of pairs and
steps.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy

from tests.worker.driving import Driver

Mark = Callable[[], None]
OWN_SECONDS = [0.0]  # of processor time within the methods of the adapter
ROWS, COLUMNS = 20_000, 20


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of an adapter, which adds its processor time to that of the adapter."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            OWN_SECONDS[0] += time.process_time() - began

    return call


def callbacks(mark: Any, adapter: Callable[[], Any] | None, *hooks: str) -> list[Any]:
    """Return the callback that marks the steps, and that of the adapter, whose hooks are timed."""
    if adapter is None:
        return [mark]
    callback = adapter()
    for hook in hooks:
        setattr(callback, hook, timed(getattr(callback, hook)))
    return [mark, callback]


def transformers(steps: int, adapted: bool, mark: Mark) -> None:
    """A step is an epoch of five optimizer steps and an evaluation of two batches."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    from tuner.training.transformers import TunerCallback

    class Marks(TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            mark()

    shape: Any = {"n_layer": 2, "n_head": 4, "n_embd": 128, "vocab_size": 500, "n_positions": 64}
    tokens = torch.randint(0, 500, (40, 64))
    examples: Any = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    both = callbacks(
        Marks(), TunerCallback if adapted else None, "on_step_end", "on_epoch_end", "on_evaluate"
    )
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    Trainer(model, arguments, train_dataset=examples, eval_dataset=examples[:16], callbacks=both).train()


def lightning(steps: int, adapted: bool, mark: Mark) -> None:
    """A step is an epoch of five batches and a validation of two."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
    from torch.utils.data import DataLoader, TensorDataset

    from tuner.training.lightning import TunerCallback

    class Marks(Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            mark()

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("val_loss", torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    data = TensorDataset(*images(160))
    hooks = "on_train_epoch_start", "on_train_batch_end", "on_train_epoch_end"
    trainer = Trainer(
        max_epochs=steps,
        callbacks=callbacks(Marks(), partial(TunerCallback, "val_loss") if adapted else None, *hooks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        accelerator="cpu",
    )
    valid = torch.utils.data.Subset(data, range(64))
    trainer.fit(Model(), DataLoader(data, 32, shuffle=True), DataLoader(valid, 32))


def pytorch(steps: int, adapted: bool, mark: Mark) -> None:
    """A step is an epoch of five batches, with `SpotSafe` and `checkpoint_if_due` after each batch."""
    import torch

    from tuner.training import SpotSafe

    model, (inputs, labels) = network(), images(160)
    optimizer = torch.optim.Adam(model.parameters())

    def epoch(after_batch: Callable[[], object] = lambda: None) -> torch.Tensor:
        for rows in torch.randperm(160).split(32):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            after_batch()
        return loss.detach()

    if not adapted:
        for _ in range(steps):
            epoch()
            mark()
        return
    with SpotSafe(model=model, optimizer=optimizer) as run:
        for step in run.steps():
            loss = epoch(timed(run.checkpoint_if_due))
            mark()
            timed(run.report)(loss=loss)
            if step + 1 == steps:
                break


def network() -> Any:
    import torch

    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 10),
    )  # fmt: skip


def images(count: int) -> Any:
    import torch

    return torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,))


def table() -> tuple[Any, Any]:
    inputs = numpy.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    return inputs, (inputs.sum(1) > 0).astype(int)


def xgboost(steps: int, adapted: bool, mark: Mark) -> None:
    """A step is ten rounds."""
    import xgboost
    from xgboost.callback import TrainingCallback

    from tuner.training.boosting import TunerCallback

    class Marks(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if epoch % 10 == 9:
                mark()
            return False

    data, adapter = xgboost.DMatrix(*table()), partial(TunerCallback, "train-logloss", every=10)
    xgboost.train(
        {"objective": "binary:logistic", "nthread": 1},
        data,
        num_boost_round=10 * steps,
        evals=[(data, "train")],
        verbose_eval=False,
        callbacks=callbacks(Marks(), adapter if adapted else None, "after_iteration"),
    )


def lightgbm(steps: int, adapted: bool, mark: Mark) -> None:
    """A step is twenty rounds."""
    import lightgbm

    from tuner.training.boosting import (
        _LightGBMCallback,  # `TunerCallback` returns it if XGBoost is not imported
    )

    data = lightgbm.Dataset(*table())
    lightgbm.train(
        {"objective": "binary", "num_threads": 1, "verbosity": -1},
        data,
        num_boost_round=20 * steps,
        valid_sets=[data],
        valid_names=["valid"],
        callbacks=[
            lambda env: mark() if env.iteration % 20 == 19 else None,
            *([timed(_LightGBMCallback(("valid-binary_logloss",), 20, None))] if adapted else []),
        ],
    )


def sklearn(steps: int, adapted: bool, mark: Mark) -> None:
    """A step is a `partial_fit` of a network, with `SpotSafe`."""
    from sklearn.neural_network import MLPClassifier

    from tuner.training import SpotSafe

    model, (inputs, labels) = MLPClassifier((64,)), table()
    if not adapted:
        for _ in range(steps):
            model.partial_fit(inputs, labels, classes=range(2))
            mark()
        return
    with SpotSafe(model=model) as run:
        for step in run.steps():
            model.partial_fit(inputs, labels, classes=range(2))
            mark()
            timed(run.report)(loss=model.loss_)
            if step + 1 == steps:
                break


FRAMEWORKS = {
    "PyTorch": pytorch,
    "transformers": transformers,
    "Lightning": lightning,
    "XGBoost": xgboost,
    "LightGBM": lightgbm,
    "scikit-learn": sklearn,
}


def train(config: dict[str, Any]) -> None:
    """Train bare and with the adapter. Write the seconds of the fastest step of each to a file, and the share of the adapter's own methods."""
    import torch

    torch.set_num_threads(1)
    measured = {}
    for adapted in (False, True) if config["bare_first"] else (True, False):
        marks: list[tuple[float, float]] = []
        FRAMEWORKS[config["framework"]](config["steps"], adapted, partial(_mark, marks))
        assert len(marks) == config["steps"], len(marks)
        fastest = min(later - earlier for (earlier, _), (later, _) in pairwise(marks))
        measured["adapted" if adapted else "bare"] = fastest
        if adapted:
            (began, own_before), (ended, own) = marks[0], marks[-1]
            measured["own"] = (own - own_before) / (ended - began)
    Path(config["out"]).write_text(json.dumps(measured))


def _mark(marks: list[tuple[float, float]]) -> None:
    marks.append((time.process_time(), OWN_SECONDS[0]))


def pairs(framework: str, count: int, steps: int, folder: Path) -> list[dict[str, float]]:
    measured = []
    for number in range(count):
        driver = Driver(folder / f"{framework}-{number}", "benchmarks.frameworks:train")
        out = folder / f"{framework}-{number}.json"
        config = {"framework": framework, "steps": steps, "bare_first": number % 2 == 0, "out": str(out)}
        try:
            driver.begin(target_step=None, max_step=10**6, lease_s=3600, config=config)
            driver.until_state("ended")
        finally:
            driver.supervisor.close()
        measured.append(json.loads(out.read_text()))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []], default=[])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    print(
        "| framework | ms of processor time a step, bare | with the adapter: ratio, median | range | own methods | load |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for framework in options.frameworks or FRAMEWORKS:
            measured = pairs(framework, options.pairs, options.steps, Path(folder))
            ratios = sorted(pair["adapted"] / pair["bare"] for pair in measured)
            step_ms = min(pair["bare"] for pair in measured) * 1e3
            print(
                f"| {framework} | {step_ms:.0f} | {statistics.median(ratios):.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f} | "
                f"{statistics.median(pair['own'] for pair in measured):.1%} | "
                f"{os.getloadavg()[0]:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
