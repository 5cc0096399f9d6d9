"""A small network with dropout, trained with the `Trainer` of Lightning."""

from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
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


def data(count: int, seed: int) -> TensorDataset:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def train(
    config: dict[str, Any], metric: str = "val_loss", *further: Callback, plateau: bool = False
) -> None:
    trainer = lightning.Trainer(
        max_epochs=9,
        callbacks=[*further, TunerCallback(metric)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        accelerator="cpu",
    )
    loader = DataLoader(data(64, 1), batch_size=8, shuffle=True)
    trainer.fit(
        Classifier(plateau=plateau),
        loader,
        DataLoader(data(32, 2), batch_size=16),
        ckpt_path=tuner_checkpoint(),
    )


def train_until_plateau(config: dict[str, Any]) -> None:
    train(config, plateau=True)


def train_with_wrong_metric(config: dict[str, Any]) -> None:
    train(config, metric="validation_loss")
