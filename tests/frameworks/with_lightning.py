"""A small network with dropout, trained with the `Trainer` of Lightning."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import lightning
import numpy
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tuner.training.lightning import TunerCallback, tuner_checkpoint


class Classifier(lightning.LightningModule):
    """A classifier whose learning rate follows a cosine, or falls whenever the loss falls by less than 90 %."""

    def __init__(self, *, plateau: bool) -> None:
        super().__init__()
        self._plateau = plateau
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
        )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self.layers(inputs), labels)

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, labels = batch
        self.log("val_loss", functional.cross_entropy(self.layers(inputs), labels))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        if self._plateau:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)]


class HasArguments(Classifier):
    """A classifier that records its arguments, among them an object that is not plain data."""

    def __init__(self, arguments: Namespace) -> None:
        super().__init__(plateau=False)
        self.save_hyperparameters()


class KeepsBest(Classifier):
    """A classifier that adds a NumPy number to its checkpoints, as `on_save_checkpoint` of Lightning's documentation does."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["best"] = numpy.float64(9)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["best"] == 9


class Data(lightning.LightningDataModule):
    """The examples, with a path among the recorded arguments."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return DataLoader(data(64, 1), batch_size=8, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(data(32, 2), batch_size=16)


class LogsAtEpochEnd(Classifier):
    """A classifier that logs a metric at the end of its epochs. The metric stays the same."""

    def on_train_epoch_end(self) -> None:
        self.log("train_accuracy", 0.5)


def data(count: int, seed: int) -> TensorDataset:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def train(
    config: dict[str, Any],
    metric: str = "val_loss",
    *further: Callback,
    model: Classifier | None = None,
    max_steps: int = -1,
    datamodule: Data | None = None,
    epochs_per_step: int = 1,
    weights_only: bool | None = None,
) -> None:
    trainer = lightning.Trainer(
        max_epochs=9 * epochs_per_step,
        check_val_every_n_epoch=epochs_per_step,
        max_steps=max_steps,
        callbacks=[TunerCallback(metric), *further],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        accelerator="cpu",
    )
    loader = DataLoader(data(64, 1), batch_size=8, shuffle=True)
    loaders = [loader, DataLoader(data(32, 2), batch_size=16)] if datamodule is None else []
    trainer.fit(
        model or Classifier(plateau=False),
        *loaders,
        datamodule=datamodule,
        ckpt_path=tuner_checkpoint(),
        weights_only=weights_only,
    )


def train_with_rare_validation(config: dict[str, Any], *further: Callback) -> None:
    """A step of the job has two epochs."""
    train(config, "val_loss", *further, epochs_per_step=2)


def train_with_arguments(config: dict[str, Any]) -> None:
    train(config, model=HasArguments(Namespace(width=16)), datamodule=Data(Path()))


def train_with_objects(config: dict[str, Any]) -> None:
    os.environ.update(config.get("variables", {}))
    train(config, model=KeepsBest(plateau=False), weights_only=config["weights_only"])


def train_until_plateau(config: dict[str, Any]) -> None:
    train(config, model=Classifier(plateau=True))


def train_until_stopped(config: dict[str, Any]) -> None:
    """Stop after the fifth epoch, because the metric has not improved for four."""
    train(
        config,
        "train_accuracy",
        EarlyStopping("train_accuracy", patience=4),
        model=LogsAtEpochEnd(plateau=False),
    )


def train_briefly(config: dict[str, Any]) -> None:
    """Train two epochs of eight batches."""
    train(config, max_steps=16)


def train_with_wrong_metric(config: dict[str, Any]) -> None:
    train(config, metric="validation_loss")
